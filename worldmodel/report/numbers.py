"""Reading and printing the numbers of a report: estimates, plain numbers, and nulls beside a `why`."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MISSING = "–"


def get(report: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path (`transfer.behaviour_return`), or None where any part of the path is missing."""
    value: Any = report
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def centre(value: Any) -> float | None:
    """The number of an estimate (`mean`) or of a plain number; None for null, text or a non-finite number."""
    if isinstance(value, Mapping):
        value = value.get("mean")
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        return None
    return float(value)


def interval(value: Any) -> tuple[float, float] | None:
    """`(lo, hi)` of an estimate, or None where it has none."""
    if not isinstance(value, Mapping):
        return None
    lo, hi = centre(value.get("lo")), centre(value.get("hi"))
    return None if lo is None or hi is None else (lo, hi)


class Number(NamedTuple):
    """An estimate or a plain number: `mean`, and the ends of its interval (the mean itself where it has none)."""

    mean: float
    lo: float
    hi: float


def read(value: Any) -> Number | None:
    """The number with its interval, or None where there is no number."""
    mean = centre(value)
    return None if mean is None else Number(mean, *(interval(value) or (mean, mean)))


def why(value: Any) -> str | None:
    """The reason beside a null, where one is given."""
    return value.get("why") if isinstance(value, Mapping) and isinstance(value.get("why"), str) else None


def text(value: float | int | None) -> str:
    """Three significant digits, thousands apart by a narrow space that does not break, a true minus sign."""
    if value is None:
        return MISSING
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "\u2212")
    if size >= 100 or value == int(value):
        printed = f"{value:,.0f}".replace(",", "\u202f")
    else:
        digits = 2 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
        printed = f"{value:.{digits}f}"
    return printed.replace("-", "\u2212")


def text_estimate(value: Any, *, unit: str = "") -> str:
    """`492 [488, 496]` (no line break inside the brackets), `0.93`, or a dash with the reason."""
    middle = centre(value)
    if middle is None:
        reason = why(value)
        return f"{MISSING} ({reason})" if reason else MISSING
    span = interval(value)
    return text(middle) + unit + (f" [{text(span[0])},\u00a0{text(span[1])}]" if span else "")


def series(values: Sequence[Any] | None) -> list[float]:
    """A curve with its nulls as NaN, to be drawn as gaps."""
    found = [centre(v) for v in values or ()]
    return [math.nan if v is None else v for v in found]


def strict_json(report: Mapping[str, Any]) -> str:
    """The report as JSON text; `ValueError` names the path of the first value that JSON cannot hold."""
    _check(report, "report")
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _check(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path} has the key {key!r}; text is needed")
            _check(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}; a finite number is needed, or null beside a 'why'")
    elif value is not None and not isinstance(value, str | int | bool):
        raise ValueError(f"{path} is a {type(value).__name__}; text, number, bool, list, dict or null is needed")
