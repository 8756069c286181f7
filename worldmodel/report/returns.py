"""The figures on what it was all for: returns in reality, and the traces of one rollout beside another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from worldmodel.report import style
from worldmodel.report.evidence import Evidence
from worldmodel.report.numbers import get, read, text, why

MAX_TRACES = 12

# Key of `transfer`, label, colour, hatch: where a policy was trained and where it was measured.
ROWS = (
    ("behaviour_return", "the logs' behaviour, in reality", style.GREY, ""),
    ("real_trained_same_budget_return", "trained in reality on as many steps as the logs", style.REAL, "//"),
    ("sim_trained_sim_return", "trained in the simulator, seen inside it", "#7fb8da", ".."),
    ("sim_trained_real_return", "trained in the simulator, in reality", style.SIM, ""),
    ("real_trained_full_return", "trained in reality, full budget", style.REAL, ""),
)


def draw_transfer(ax: Axes, report: Mapping[str, Any], *, fontsize: float | int = 9.5) -> None:
    """Mean returns with 95% intervals: bars from zero, or dots where a return is negative (zero is no floor then)."""
    transfer = report["transfer"]
    known = [read(transfer.get(key)) for key, *_ in ROWS]
    low = min((number.lo for number in known if number), default=0.0)
    high = max((number.hi for number in known if number), default=1.0)
    dots = low < 0
    span = (high - low) or abs(high) or 1.0
    left, right = (low - 0.06 * span, high + 0.3 * span) if dots else (0.0, high * 1.2 or 1.0)
    for row, ((key, label, colour, hatch), number) in enumerate(zip(ROWS, known, strict=True)):
        ax.annotate(label, (left, row - 0.3), xytext=(3, 0), textcoords="offset points", va="bottom", fontsize=fontsize)
        if number is None:
            reason = why(transfer.get(key)) or transfer.get("why") or "no reason given"
            ax.annotate(
                f"not measured: {reason}",
                (left, row),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=fontsize,
                color=style.GREY,
                style="italic",
            )
            continue
        if dots:
            ax.plot((left, number.mean), (row, row), color=style.PALE, linewidth=2.5, zorder=2, solid_capstyle="butt")
            ax.plot(
                number.mean, row, "D" if hatch else "o", markersize=8, color=colour, markeredgecolor=style.INK, zorder=4
            )
        else:
            ax.barh(row, number.mean, height=0.46, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5)
        ax.errorbar(
            number.mean,
            row,
            xerr=[[number.mean - number.lo], [number.hi - number.mean]],
            color=style.INK,
            capsize=3.5,
            elinewidth=1.6,
            zorder=3,
        )
        offset = 8 if dots else 5
        ax.annotate(
            text(number.mean),
            (number.hi, row),
            xytext=(offset, 0),
            textcoords="offset points",
            va="center",
            fontsize=fontsize + 1,
            weight="bold",
        )
    ax.set_xlim(left, right)
    ax.set_ylim(len(ROWS) - 0.55, -0.75)
    ax.set_yticks([])
    ax.spines["left"].set_visible(not dots)
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_xlabel("return per episode (higher is better)")


def transfer_figure(report: Mapping[str, Any]) -> Figure | None:
    """Figure of `draw_transfer`."""
    if not any(read(get(report, f"transfer.{key}")) for key, *_ in ROWS):
        return None
    figure, ax = style.panel(height=3.9)
    draw_transfer(ax, report)
    return figure


def shown_dims(evidence: Evidence, most: int = MAX_TRACES) -> list[int]:
    """Dimensions to draw: all, or the `most` in which the two are furthest apart, in standard deviations of each."""
    dims = evidence.real_obs.shape[1]
    if dims <= most:
        return list(range(dims))
    steps = min(len(evidence.real_obs), len(evidence.imagined_obs))
    gap = np.abs(evidence.real_obs[:steps] - evidence.imagined_obs[:steps]).mean(axis=0)
    spread = evidence.real_obs.std(axis=0)
    worst = np.argsort(-gap / np.where(spread > 0, spread, 1.0), kind="stable")[:most]
    return sorted(int(d) for d in worst)


def draw_trace(ax: Axes, evidence: Evidence, dim: int) -> None:
    """One observation dimension by step: imagined dashed over real."""
    real, imagined = evidence.real_obs[:, dim], evidence.imagined_obs[:, dim]
    ax.plot(np.arange(len(real)), real, color=style.REAL, linewidth=2.2, label="real")
    ax.plot(np.arange(len(imagined)), imagined, color=style.SIM, linestyle=(0, (4, 1.6)), label="imagined")
    for values, colour, marker in ((real, style.REAL, "s"), (imagined, style.SIM, "o")):
        if len(values) < max(len(real), len(imagined)):
            ax.plot(len(values) - 1, values[-1], marker, color=colour, markersize=5, clip_on=False)
    ax.set_xlim(0, max(len(real), len(imagined)) - 1)
    ax.set_title(evidence.names[dim], loc="left")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(4))


def trace_figure(evidence: Evidence, dim: int) -> Figure:
    """Figure of `draw_trace`."""
    figure, ax = style.panel(4.5, 1.95)
    draw_trace(ax, evidence, dim)
    ax.set_xlabel("step")
    return figure
