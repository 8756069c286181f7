"""Two reports side by side: which numbers moved, and whether further than luck."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worldmodel.report.numbers import interval, read, text_estimate

FILE = "report.json"
_NOT_FIDELITY = {"seed", "versions", "timings", "config", "seconds", "real_steps", "training", "policy_training"}
"""Sections that say how a report was made."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A number that two reports have, or one of them only.

    Attributes:
      path: dotted.
      before, after: as the reports have it, an estimate or a plain number; None where it is missing or null.
      apart: whether the two 95% intervals do not overlap; None where either has no interval. Not overlapping asks for
        more than a significant difference at 5%.
    """

    path: str
    before: Any
    after: Any
    apart: bool | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """One line."""
        note = {True: "  intervals apart", False: "  within luck", None: ""}[self.apart]
        return f"{self.path}: {text_estimate(self.before)} -> {text_estimate(self.after)}{note}"


def load_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A report from its file, or from the run folder that holds it.

    Raises:
      FileNotFoundError: there is none.
      ValueError: the file is no report.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise FileNotFoundError(f"{file}: no report; `worldmodel probe RUN --out DIR` and quickstart write one")
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no report: {error}") from None
    if not isinstance(report, dict) or "one_step" not in report:
        raise ValueError(f"{file} is no report of a probe: it has no one_step")
    return report


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Every number of fidelity that differs between two reports, those with intervals apart first.

    Numbers in lists (curves, policies) are compared where the list's entries have names.

    Raises:
      ValueError: the reports are of different real environments.
    """
    if before.get("env_id") != after.get("env_id"):
        raise ValueError(f"one report is of {before.get('env_id')}, the other of {after.get('env_id')}")
    one, other = (dict(_numbers(report)) for report in (before, after))
    found = []
    for path in dict.fromkeys([*one, *other]):
        pair = one.get(path), other.get(path)
        if pair[0] != pair[1]:
            found.append(Difference(path, *pair, _apart(*pair)))
    return sorted(found, key=lambda d: ({True: 0, None: 1, False: 2}[d.apart], d.path))


def _apart(before: Any, after: Any) -> bool | None:
    one, other = interval(before), interval(after)
    if one is None or other is None:
        return None
    return one[1] < other[0] or other[1] < one[0]


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """`(path, estimate or number)`."""
    if read(value) is not None:
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if path or key not in _NOT_FIDELITY:
                yield from _numbers(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, Mapping) and isinstance(name := inner.get("name", inner.get("rule")), str):
                yield from _numbers(inner, f"{path}[{name}]")
