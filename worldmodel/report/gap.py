"""Where a gap in return comes from, as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from worldmodel.report import style
from worldmodel.report.numbers import centre, interval, read

MAX_REGIONS = 4


def gap_figure(report: Mapping[str, Any]) -> Figure | None:
    """Left: from the real to the simulated return, by stretches of an episode. Right: by cause and by region."""
    found = report.get("attribution") or {}
    if centre(found.get("gap")) is None:
        return None
    bars = [(f"of {name}", cause["net"]) for name, cause in found["causes"].items()]
    bars += [(region["rule"], region["net"]) for region in (found.get("regions") or ())[:MAX_REGIONS]]
    figure = Figure(figsize=(9.2, 1.6 + 0.34 * max(len(bars), 8)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _waterfall(left, found)
    _bars(right, bars)
    return figure


def _waterfall(ax: Axes, found: Mapping[str, Any]) -> None:
    real, sim = read(found["real_return"]), read(found["sim_return"])
    if real is None or sim is None:
        return
    steps = [(f"steps {own['from']}–{own['to']}", read(own["net"])) for own in found["horizon"]]
    steps = [("beginnings", read(found["initial"])), *steps]
    names, level = ["reality", *(name for name, _ in steps), "simulator"], real.mean
    ax.bar(0, real.mean, color=style.REAL, width=0.7)
    for place, (_, own) in enumerate(steps, start=1):
        if own is None:
            continue
        ax.bar(place, own.mean, bottom=level, color=style.NOISE if own.mean < 0 else style.SIM, alpha=0.8, width=0.7)
        ax.plot([place, place], [level + own.lo, level + own.hi], color=style.INK, linewidth=1.3)
        level += own.mean
    ax.bar(len(names) - 1, sim.mean, color=style.SIM, width=0.7)
    for place, own in ((0, real), (len(names) - 1, sim)):
        ax.plot([place, place], [own.lo, own.hi], color=style.INK, linewidth=1.3)
    ax.axhline(0, color=style.GREY, linewidth=0.8)
    ax.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=8.5)
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("return")


def _bars(ax: Axes, bars: list[tuple[str, Any]]) -> None:
    place = np.arange(len(bars))
    means = np.array([centre(net) or 0.0 for _, net in bars])
    ax.barh(place, means, color=[style.NOISE if mean < 0 else style.SIM for mean in means], alpha=0.8, height=0.55)
    for at, (_, net) in enumerate(bars):
        span = interval(net)
        if span:
            ax.plot(span, (at, at), color=style.INK, linewidth=1.3)
    ax.axvline(0, color=style.GREY, linewidth=0.8)
    ax.set_yticks(place, [name if len(name) < 44 else name[:43] + "…" for name, _ in bars], fontsize=8.5)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("promised beyond what is earned, return per episode")
