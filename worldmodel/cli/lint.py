"""`worldmodel data lint`: what is wrong in a log."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import tyro

from worldmodel.cli.logs import open_log, reader_options

if TYPE_CHECKING:
    from worldmodel.corpus.lint import LintReport

REPORT = "lint.json"
_COLORS = {"error": "red", "warning": "yellow", "note": "dim"}


@dataclasses.dataclass(frozen=True)
class LintOptions:
    """Looks for what is wrong in a log: values, ends, alignment of actions and rewards, copies, leaks.

    Exit code 1 with --strict and any error or warning. Beside a corpus's manifest the findings are kept in lint.json.

    Example: worldmodel data lint logs/cartpole.npz --strict
    """

    source: tyro.conf.Positional[str | None] = None
    """Folder of a corpus, or FORMAT:PLACE, or PLACE where the format can be recognised."""
    strict: bool = False
    """Exit with 1 where there is an error or a warning."""
    codes: bool = False
    """Print what each code means and what its repair does, and read no log."""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Option of the format's reader, KEY=VALUE. Repeatable."""
    seed: int = 0
    """Of the sample that the statistical checks see."""
    json: bool = False
    """Print one JSON object."""


def lint(options: LintOptions) -> dict[str, Any]:
    """Lints; prints and returns the findings (as `LintReport.to_json`). `SystemExit(1)` with `strict`."""
    if options.codes:
        return _print_codes(options)
    if options.source is None:
        raise ValueError("no log to lint; name one, or ask for --codes")
    from worldmodel.corpus import Corpus
    from worldmodel.corpus.lint import lint as run

    log = open_log(options.source, reader_options(options.option))
    split_by = log.manifest.split_by if isinstance(log, Corpus) else "id"
    report = run(log, seed=options.seed, split_by=split_by)
    result = report.to_json()
    if isinstance(log, Corpus):
        _keep(log.path, result)
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print_table(options.source, report)
    if options.strict and any(each.severity in ("error", "warning") for each in report.findings):
        raise SystemExit(1)
    return result


def _keep(folder: pathlib.Path, result: dict[str, Any]) -> None:
    """Writes the findings beside the manifest in one rename; says so where the folder cannot be written."""
    from worldmodel.cli.progress import console

    temporary = folder / f".{REPORT}.{os.getpid()}.writing"
    try:
        temporary.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, folder / REPORT)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        console.print(
            f"{REPORT} is not kept: {folder}: {error.strerror}", highlight=False, markup=False, soft_wrap=True
        )


def _print_table(source: str, report: LintReport) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console()
    table = Table(Column("code", no_wrap=True), "severity", "episodes", Column("message", overflow="fold"), "--fix")
    for each in report.findings:
        count = each.evidence.get("count", len(each.episodes))
        named = f"{count:,}" if count else ""
        table.add_row(
            each.code,
            Text(each.severity, style=_COLORS[each.severity]),
            named,
            Text(each.message),
            "yes" if each.fix else "",
        )
    if report.findings:
        console.print(table)
    counts = ", ".join(
        f"{sum(each.severity == severity for each in report.findings)} {severity}(s)" for severity in _COLORS
    )
    print(f"{source}: {report.episodes:,} episodes, {report.transitions:,} transitions: {counts}")
    fixable = dict.fromkeys(each.fix for each in report.findings if each.fix)
    if fixable:
        print(f"repaired by: worldmodel data convert {source} {' '.join(fixable)} --out DIR")


def _print_codes(options: LintOptions) -> dict[str, Any]:
    from worldmodel.corpus.lint.codes import CODES

    result = {"codes": {name: dataclasses.asdict(code) for name, code in CODES.items()}}
    if options.json:
        print(json.dumps(result))
        return result
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("code", "severity", "meaning", "what --fix CODE does")
    for name, code in CODES.items():
        table.add_row(name, Text(code.severity, style=_COLORS[code.severity]), code.meaning, code.repair or "")
    Console().print(table)
    return result
