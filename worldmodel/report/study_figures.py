"""The figures of a study: return against fidelity, the threshold of every setting of the dials, and their interaction.

Each takes one value per world model and returns a Matplotlib figure. Intervals are of 95%, over world models.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from worldmodel.fidelity.estimates import Estimate, mean_interval
from worldmodel.report import style
from worldmodel.study.bracketing import bracket
from worldmodel.study.estimands import Estimand
from worldmodel.study.isotonic import isotonic_threshold
from worldmodel.study.means import WorldModelMeans, levels
from worldmodel.study.transfer import difference

MARKERS = "osD^vP"
_ANCHORS = (("reference", style.REAL, "//"), ("no_training", style.GREY, "\\\\"))


def response_figure(means: WorldModelMeans, estimand: Estimand) -> Figure:
    """Return against fidelity, a panel per complexity, with bands of the anchors and the bracket of the threshold.

    `means` hold one environment, diversity, corruption and deployment. A bracket's open end is drawn as an arrow.
    """
    found = levels(means.complexity)
    figure = Figure(figsize=(1.0 + 3.1 * len(found), 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(found), sharey=True))
    for ax, complexity in zip(panels, found, strict=True):
        own = means.select(complexity=float(complexity))
        _draw_anchors(ax, own)
        _draw_curve(ax, own)
        ax.set_title(f"complexity {complexity:g}")
        ax.set_xlabel("fidelity (the knob)")
        ax.xaxis.set_major_locator(MaxNLocator(5))
    panels[0].set_ylabel("return in reality")
    # Bars go under all curves, at one height: panels share their axis.
    low, high = panels[0].get_ylim()
    at = low - 0.08 * (high - low)
    for ax, complexity in zip(panels, found, strict=True):
        _draw_bracket(ax, means.select(complexity=float(complexity)), estimand, at)
    panels[0].set_ylim(at - 0.06 * (high - low), high)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _draw_anchors(ax: Axes, means: WorldModelMeans) -> None:
    for arm, colour, hatch in _ANCHORS:
        anchor = mean_interval(means.returns(arm))
        if anchor.mean is not None and anchor.lo is not None and anchor.hi is not None:
            ax.axhspan(anchor.lo, anchor.hi, facecolor=colour, alpha=0.14, hatch=hatch, edgecolor=colour, linewidth=0)
            ax.axhline(anchor.mean, color=colour, linewidth=1.3, label=f"{arm.replace('_', ' ')} (95% band)")


def _draw_curve(ax: Axes, means: WorldModelMeans) -> None:
    own = means.where(means.arm == "simulated")
    ax.plot(own.fidelity, own.real_return, ".", color=style.SIM, alpha=0.3, markersize=5, label="a world model")
    grid = [mean_interval(own.real_return[own.fidelity == f]) for f in levels(own.fidelity)]
    kept = [(f, e) for f, e in zip(levels(own.fidelity), grid, strict=True) if e.lo is not None and e.hi is not None]
    if kept:
        x, mean = np.array([f for f, _ in kept]), np.array([e.mean for _, e in kept])
        spans = np.array([[e.lo, e.hi] for _, e in kept], np.float64).T
        bars = np.abs(spans - mean)
        ax.errorbar(x, mean, yerr=bars, fmt="o-", markersize=4, capsize=2.5, color=style.SIM, label="mean [95%]")


def _draw_bracket(ax: Axes, means: WorldModelMeans, estimand: Estimand, at: float) -> None:
    if np.unique(means.fidelity[means.arm == "simulated"], return_counts=True)[1].min() < 2:
        ax.annotate("no bracket: no grid", (0.03, 0.03), xycoords="axes fraction", fontsize=8.5, color=style.GREY)
        return
    found = bracket(means, estimand)
    lower = float(found.levels[0]) if found.lower is None else found.lower
    upper = float(found.levels[-1]) if found.upper is None else found.upper
    ax.plot(
        [lower, upper], [at, at], color=style.INK, linewidth=5, solid_capstyle="butt", label="bracket of the threshold"
    )
    for end, shown, marker in ((found.lower, lower, "<"), (found.upper, upper, ">")):
        if end is None:
            ax.plot([shown], [at], marker=marker, color=style.INK, markersize=9, clip_on=False)


def threshold_map(means: WorldModelMeans, estimand: Estimand, *, seed: int = 0) -> Figure:
    """The isotonic threshold of every complexity and diversity, as colour and in numbers with its interval.

    A cell without a number says why in a word: "above" all fidelities, "below" them, or "refused".
    """
    rows, columns = levels(means.complexity), levels(means.diversity)
    values, words = np.full((len(rows), len(columns)), math.nan), []
    for i, complexity in enumerate(rows):
        for j, diversity in enumerate(columns):
            own = means.select(complexity=float(complexity), diversity=float(diversity))
            found = isotonic_threshold(own, estimand, seed=seed)
            values[i, j] = math.nan if found.mean is None else found.mean
            words.append((j, i, _in_words(found)))
    figure, ax = style.panel(1.6 + 1.25 * len(columns), 1.3 + 0.75 * len(rows))
    image = ax.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    ax.set_facecolor(style.PALE)
    middle = float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
    for j, i, said in words:
        dark = math.isfinite(values[i, j]) and values[i, j] <= middle
        ax.text(j, i, said, ha="center", va="center", fontsize=8.5, color="white" if dark else style.INK)
    ax.grid(False)
    ax.set_xticks(range(len(columns)), [f"{v:g}" for v in columns])
    ax.set_yticks(range(len(rows)), [f"{v:g}" for v in rows])
    ax.set_xlabel("diversity")
    ax.set_ylabel("complexity")
    if np.isfinite(values).any():
        figure.colorbar(image, ax=ax, label="fidelity that is needed")
    return figure


def _in_words(found: Estimate) -> str:
    if found.mean is None:
        why = found.why or ""
        return "above" if why.startswith("not reached") else "below" if why.startswith("already") else "refused"
    low, high = ("open" if end is None else f"{end:.2f}" for end in (found.lo, found.hi))
    return f"{found.mean:.2f}\n[{low}, {high}]"


def interaction_figure(means: WorldModelMeans, *, dial: str = "complexity") -> Figure:
    """Mean return against fidelity, a line per level of `dial`; beneath, each line minus the first, with its interval.

    Where the lower lines are level the dial does not change what fidelity is worth.
    """
    own = means.where(means.arm == "simulated")
    found, phi = levels(getattr(own, dial)), levels(own.fidelity)
    figure = Figure(figsize=(5.2, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    colours = [style.SIM, style.REAL, style.NOISE, style.INK, style.GREY]
    first: list[np.ndarray] = []
    for k, value in enumerate(found):
        groups = [own.real_return[(getattr(own, dial) == value) & (own.fidelity == f)] for f in phi]
        look = {
            "color": colours[k % len(colours)],
            "marker": MARKERS[k % len(MARKERS)],
            "markersize": 4,
            "capsize": 2.5,
        }
        upper.errorbar(phi, *_bars([mean_interval(g) for g in groups]), label=f"{dial} {value:g}", **look)
        if k == 0:
            first = groups
        else:
            moved = phi + 0.012 * k * float(np.ptp(phi) or 1.0)
            lower.errorbar(moved, *_bars([_difference(g, f) for g, f in zip(groups, first, strict=True)]), **look)
    lower.axhline(0.0, color=style.GREY, linewidth=1.0)
    upper.set_ylabel("return in reality")
    lower.set_ylabel(f"minus {dial} {found[0]:g}")
    lower.set_xlabel("fidelity (the knob)")
    upper.legend()
    return figure


def _bars(estimates: list[Estimate]) -> tuple[np.ndarray, np.ndarray]:
    parts = [[math.nan if v is None else v for v in (e.mean, e.lo, e.hi)] for e in estimates]
    mean, low, high = np.array(parts, np.float64).T
    return mean, np.stack([mean - low, high - mean])


def _difference(first: np.ndarray, second: np.ndarray) -> Estimate:
    if min(len(first), len(second)) < 2:
        return Estimate(None, None, None, 0, "it needs two world models on each side")
    return difference(first, second)
