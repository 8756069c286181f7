"""What the lint finds in a log, repaired while the log is converted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worldmodel.corpus.index import SPLIT_BY_ID
from worldmodel.corpus.job import Log
from worldmodel.corpus.lint.codes import CODES
from worldmodel.corpus.lint.finding import Finding, LintReport
from worldmodel.trajectory import Trajectory, suggest

ALL = "all"


@dataclasses.dataclass(frozen=True)
class Repairs:
    """The repairs of one log.

    Attributes:
      report: what the lint found in it.
      codes: what of it is repaired, in the order of `CODES`.
    """

    report: LintReport
    codes: tuple[str, ...]

    def applied_to(self, log: Log) -> Iterable[Trajectory]:
        """The log's episodes, repaired."""
        from worldmodel.corpus.lint import fixes

        return fixes.apply(log, self.report, self.codes) if self.codes else log

    def to_json(self) -> dict[str, Any]:
        """For each code that is repaired, its findings: `message`, `evidence`, and the number of `episodes` named."""
        found = [finding for finding in self.report.findings if finding.code in self.codes]
        return {
            code: [
                {"message": each.message, "episodes": len(each.episodes), "evidence": dict(each.evidence)}
                for each in found
                if each.code == code
            ]
            for code in self.codes
        }


def check_codes(codes: Sequence[str]) -> None:
    """`ValueError` unless every code has a repair, or is "all"."""
    known = [code for code, kind in CODES.items() if kind.repair]
    for code in codes:
        if code not in (*known, ALL):
            raise ValueError(
                f"--fix {code!r} is no repair{suggest(code, known)}; repairs are {ALL}, {', '.join(known)}"
            )


def find_repairs(
    log: Log, codes: Sequence[str], note: Mapping[str, Any] | None = None, *, split_by: str = SPLIT_BY_ID
) -> Repairs:
    """Lints a log (reads it once), or takes what was found before from `note`, a `LintReport` in JSON form."""
    from worldmodel.corpus.lint.run import lint

    report = lint(log, log.spec, split_by=split_by) if note is None else _report_of(note)
    found = {finding.code for finding in report.findings}
    wanted = [code for code, kind in CODES.items() if code in codes or (ALL in codes and kind.repair and kind.in_all)]
    return Repairs(report, tuple(code for code in wanted if code in found))


def _report_of(note: Mapping[str, Any]) -> LintReport:
    findings = tuple(Finding(**finding) for finding in note["findings"])
    return LintReport(findings, note["episodes"], note["transitions"])
