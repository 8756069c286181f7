"""Gates: what a report must show for a check to pass, such as `spearman_lo>=0.8` or `trust_horizon>=50`."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worldmodel.report.numbers import centre, why
from worldmodel.report.verdict import horizon_interval, trust_step
from worldmodel.trajectory import suggest

OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_GATE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_SIDES = ("mean", "lo", "hi")
_HORIZON = "trust_horizon"


@dataclasses.dataclass(frozen=True)
class Gate:
    """A number of a report, and the limit that it must keep.

    Attributes:
      name: a key of the report or its dotted path; with `_lo` or `_hi`, that end of its 95% interval.
      sign: one of `OPERATORS`.
      limit: in the unit of the number.
    """

    name: str
    sign: str
    limit: float

    @classmethod
    def of(cls, written: str) -> Gate:
        """A gate as one writes it; `ValueError` where it cannot be read."""
        found = _GATE.fullmatch(written)
        if found is None:
            raise ValueError(f"require {written!r} cannot be read; write a name, {', '.join(OPERATORS)}, and a number")
        return cls(found[1], found[2], float(found[3]))

    def __str__(self) -> str:
        """As one writes it."""
        return f"{self.name}{self.sign}{self.limit:g}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a gate: the `value` it was held against, or None and the reason in `why`."""

    gate: Gate
    value: float | None
    why: str | None = None

    @property
    def passed(self) -> bool:
        """A number that was not formed passes nothing."""
        return self.value is not None and OPERATORS[self.gate.sign](self.value, self.gate.limit)

    def __str__(self) -> str:
        """One line."""
        found = f"it could not be formed ({self.why})" if self.value is None else f"it is {self.value:.6g}"
        return f"{'passed' if self.passed else 'FAILED'}: {self.gate}: {found}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        out = {"require": str(self.gate), "passed": self.passed, "value": self.value}
        return out if self.why is None else {**out, "why": self.why}


def check_gates(report: Mapping[str, Any], gates: Sequence[Gate]) -> list[Verdict]:
    """Holds every gate against a report.

    A short name stands for the shallowest place of the report that has it; `trust_horizon` is the step of the verdict.

    Raises:
      ValueError: a name that the report does not have, or that it has in several places equally deep.
    """
    return [Verdict(gate, *_value(report, gate.name)) for gate in gates]


def _value(report: Mapping[str, Any], name: str) -> tuple[float | None, str | None]:
    """The number, or None and why it is missing."""
    base, _, side = name.rpartition("_")
    if _HORIZON in (name, base if side in _SIDES else name):
        return _horizon(report, "mean" if name == _HORIZON else side)
    paths = _places(report, name)
    if not paths and side in _SIDES and (paths := _places(report, base)):
        return _side(report, *_one(base, paths), side)
    if paths:
        return _side(report, *_one(name, paths), "mean")
    if missing := _unformed(report):
        return None, "not measured: " + "; ".join(f"{section}, {reason}" for section, reason in missing.items())
    known = {path.rpartition(".")[2] for path, _ in _numbers(report)} | {_HORIZON}
    raise ValueError(
        f"require: the report has no number called {name!r}{suggest(name, known)}; "
        "`worldmodel probe RUN --json` shows those it has"
    )


def _horizon(report: Mapping[str, Any], side: str) -> tuple[float | None, str | None]:
    step, span = trust_step(report), horizon_interval(report)
    if step is None:
        return None, _reason(report, "rollout.divergence_horizon") or "no rollout was measured"
    if side == "mean":
        return float(step), None
    return (None, "the horizon has no interval") if span is None else (span[_SIDES.index(side) - 1], None)


def _side(report: Mapping[str, Any], path: str, value: Any, side: str) -> tuple[float | None, str | None]:
    number = centre(value.get(side)) if isinstance(value, Mapping) else centre(value) if side == "mean" else None
    if number is not None:
        return number, None
    if value is not None and why(value) is None and side != "mean":
        return None, "it has no interval"
    return None, why(value) or _reason(report, path) or "the report says no reason"


def _places(report: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    """`(path, value)` of the shallowest numbers called `name`, a key or a dotted path."""
    found = [(path, value) for path, value in _numbers(report) if path == name or path.endswith(f".{name}")]
    depth = min((path.count(".") for path, _ in found), default=0)
    return [(path, value) for path, value in found if path.count(".") == depth]


def _one(name: str, places: list[tuple[str, Any]]) -> tuple[str, Any]:
    if len(places) > 1:
        raise ValueError(f"require {name!r} may mean {' or '.join(path for path, _ in places)}; write the path")
    return places[0]


def _numbers(report: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every estimate, number and null of the report with its path."""
    for key, value in report.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and "mean" not in value:
            yield from _numbers(value, here)
        elif value is None or isinstance(value, Mapping) or centre(value) is not None:
            yield here, value


def _reason(report: Mapping[str, Any], path: str) -> str | None:
    """The nearest `why`: beside the number, of the part it belongs to, or the report's own for that section."""
    parts = path.split(".")
    holders = [report]
    for part in parts[:-1]:
        if not isinstance(inner := holders[-1].get(part), Mapping):
            break
        holders.append(inner)
    for holder, part in reversed(list(zip(holders, parts, strict=False))):
        if reason := holder.get(f"{part}_why") or why(holder):
            return reason
    return _unformed(report).get(parts[0])


def _unformed(report: Mapping[str, Any]) -> dict[str, str]:
    """Sections that could not be formed, and why."""
    reasons = report.get("why")
    return dict(reasons) if isinstance(reasons, Mapping) else {}
