"""`worldmodel report check|diff`: what a report must show, and what moved between two."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import tyro

Require = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME>=NUMBER"), tyro.conf.UseAppendAction]
"""`--require A --require B`."""


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """Holds a report against what is required of it; exit code 1, and the lines that fail, where it does not.

    Example: worldmodel report check runs/quickstart --require "spearman_lo>=0.8" --require "trust_horizon>=50"
    """

    report: tyro.conf.Positional[pathlib.Path]
    """A report.json, or the run folder that holds one."""
    require: Require
    """A number of the report (`_lo`, `_hi`: the ends of its 95% interval), a sign and a limit; repeat it for more."""
    json: bool = False
    """Print one JSON object."""


@dataclasses.dataclass(frozen=True)
class DiffOptions:
    """What moved between two reports of one environment, and whether further than luck: 95% intervals apart, or not.

    Example: worldmodel report diff runs/before runs/after
    """

    before: tyro.conf.Positional[pathlib.Path]
    """A report.json, or the run folder that holds one."""
    after: tyro.conf.Positional[pathlib.Path]
    """The other."""
    json: bool = False
    """Print one JSON object."""


def check(options: CheckOptions) -> None:
    """Prints what came of each gate; `SystemExit(1)` where one failed."""
    from worldmodel.report import load_report

    gates = read_gates(options.require)
    if not gates:
        raise ValueError('nothing is required; name it: --require "spearman_lo>=0.8"')
    out, passed = hold(load_report(options.report), gates, quiet=options.json)
    if options.json:
        print(json.dumps({"passed": passed, "gates": out}, allow_nan=False))
    if not passed:
        raise SystemExit(1)


def diff(options: DiffOptions) -> None:
    """Prints every number that moved."""
    from worldmodel.report import differences, load_report

    found = differences(load_report(options.before), load_report(options.after))
    if options.json:
        print(json.dumps({"differences": [each.to_json() for each in found]}, allow_nan=False))
        return
    for each in found:
        print(each)
    apart = sum(each.apart is True for each in found)
    print(f"{len(found)} numbers differ, {apart} of them with 95% intervals apart")


def read_gates(require: Sequence[str]) -> list[Any]:
    """The gates as written; `ValueError` for one that cannot be read."""
    from worldmodel.report import Gate

    return [Gate.of(written) for written in require]


def hold(report: Mapping[str, Any], gates: Sequence[Any], *, quiet: bool) -> tuple[list[dict[str, Any]], bool]:
    """What came of every gate as plain JSON, and whether all passed.

    Prints a line for each, or, if `quiet`, those that failed, to the error stream.
    """
    from worldmodel.report import check_gates

    found = check_gates(report, gates)
    for each in found:
        if not quiet:
            print(each)
        elif not each.passed:
            print(each, file=sys.stderr)
    return [each.to_json() for each in found], all(each.passed for each in found)
