"""What the lint says: findings with evidence, and the report of them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fault of a log.

    Attributes:
      code: its name, e.g. `action-shifted`; what `convert --fix CODE` takes, where there is a fix.
      severity: "error": training on it is wrong; "warning": look at it; "note": good to know.
      message: one line for people, with the numbers that matter.
      episodes: ids of the episodes concerned; empty where it is the whole log.
      evidence: plain JSON numbers behind it.
      fix: the flag that repairs it (`--fix action-shifted`), or None.
    """

    code: str
    severity: Severity
    message: str
    episodes: Sequence[str] = ()
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fix: str | None = None


@dataclasses.dataclass(frozen=True)
class LintReport:
    """All findings of a log, and its size."""

    findings: tuple[Finding, ...]
    episodes: int
    transitions: int

    @property
    def errors(self) -> int:
        """Number of findings of severity "error"."""
        return sum(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """`{"findings": [..], "episodes", "transitions"}`, each finding with its fields' names."""
        findings = [dataclasses.asdict(f) | {"episodes": list(f.episodes)} for f in self.findings]
        return {"findings": findings, "episodes": self.episodes, "transitions": self.transitions}
