"""The figure of a log: returns, lengths, what the observations cover, and what was done."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from worldmodel.report import style
from worldmodel.report.log_sample import LogSample, sample_log
from worldmodel.spaces import leaves

SUFFIXES = (".png", ".svg", ".pdf")
_MOST_BARS = 30
_MOST_LINES = 5
_MOST_LEAVES = 3
_MOST_POLICIES = 5
_COLOURS = (style.SIM, style.REAL, style.NOISE, style.INK, "#CC79A7")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_HATCHES = ("", "///", "...", "", "xxx")


def check_suffix(path: pathlib.Path) -> None:
    """`ValueError` unless a figure can be written to such a file."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{path}: a figure is written as {', '.join(SUFFIXES)}, not {path.suffix or 'without a suffix'}"
        )


def plot_log(log: Any, path: str | os.PathLike[str], *, title: str, seed: int = 0) -> None:
    """Reads a log once and draws it into a file of one of `SUFFIXES`; `ValueError` where it holds no episode."""
    path = pathlib.Path(path)
    check_suffix(path)
    sample = sample_log(log, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with style.look():
        log_figure(sample, title=title).savefig(path, dpi=150)


def log_figure(sample: LogSample, *, title: str) -> Figure:
    """The four panels; called inside `style.look`."""
    figure = Figure(figsize=(9.6, 7.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    cells: Any = figure.subfigures(2, 2, wspace=0.04, hspace=0.04)
    _draw_episodes(cells[0, 0].subplots(), sample.returns, sample.policies, "return (sum of rewards)", legend=True)
    _draw_episodes(cells[0, 1].subplots(), sample.lengths.astype(np.float64), sample.policies, "length (steps)")
    _draw_coverage(cells[1, 0].subplots(), sample)
    _draw_actions(cells[1, 1], sample)
    return figure


def _draw_episodes(ax: Axes, values: np.ndarray, policies: Sequence[str], label: str, *, legend: bool = False) -> None:
    """Episodes by value, stacked by policy where there are few of them."""
    known = np.isfinite(values)
    ax.set_xlabel(label)
    ax.set_ylabel("episodes")
    if not known.any():
        _say(ax, "the log has no rewards")
        return
    edges = _edges(values[known])
    names = sorted(set(policies), key=policies.index)
    if len(names) == 1 or len(names) > _MOST_POLICIES:
        names = ["all policies"]
    of = np.array(policies)
    bottom = np.zeros(len(edges) - 1)
    for name, colour, hatch in zip(names, _COLOURS, _HATCHES, strict=False):
        chosen = known if len(names) == 1 else known & (of == name)
        counts, _ = np.histogram(values[chosen], edges)
        _bars(ax, counts, edges, bottom=bottom, color=colour, hatch=hatch, label=name)
        bottom += counts
    if legend and len(names) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, handlelength=1.4, columnspacing=1.2)
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    missing = int((~known).sum())
    if missing:
        ax.set_xlabel(f"{label}; {missing:,} episodes without rewards are left out")


def _draw_coverage(ax: Axes, sample: LogSample) -> None:
    """Observations along their first two principal components, each feature in its standard deviations."""
    rows = sample.observations[np.isfinite(sample.observations).all(axis=1)]
    rows = rows[:, rows.std(axis=0) > 0] if len(rows) else rows
    ax.set_xlabel("observation")
    if not rows.size:
        _say(ax, "every observation is the same" if len(rows) else "no observation is finite")
        return
    if rows.shape[1] == 1:
        texts = any(leaf["type"] == "Text" for _, leaf in leaves(sample.spec.observation_space))
        _draw_values(ax, rows[:, 0], "observation length (characters)" if texts else "observation", lengths=texts)
        ax.set_ylabel("share of observations")
        return
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    _, singular, axes = np.linalg.svd(scaled, full_matrices=False)
    share = singular**2 / np.sum(singular**2)
    places = scaled @ axes[:2].T
    drawn = ax.hexbin(places[:, 0], places[:, 1], gridsize=42, mincnt=1, norm=LogNorm(), cmap="viridis", linewidths=0.1)
    bar = ax.figure.colorbar(drawn, ax=ax, label=f"observations, of {len(rows):,} drawn at random", pad=0.02)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"first principal component (standardised, {share[0]:.0%} of variance)")
    ax.set_ylabel(f"second ({share[1]:.0%} of variance)")


def _draw_actions(cell: SubFigure, sample: LogSample) -> None:
    """One small panel for each leaf of the action, at most `_MOST_LEAVES`."""
    parts = list(zip(leaves(sample.spec.action_space), sample.actions, strict=True))
    shown = parts[:_MOST_LEAVES]
    axes: list[Axes] = np.atleast_1d(np.asarray(cell.subplots(len(shown), 1))).tolist()
    for ax, ((path, leaf), values) in zip(axes, shown, strict=True):
        ax.set_ylabel("share of steps" if len(shown) == 1 else "share")
        _draw_leaf(ax, leaf, values, f"action {path}".strip())
    if len(parts) > len(shown):
        axes[0].set_title(f"the first {len(shown)} of {len(parts)} parts of the action", color=style.GREY)


def _draw_leaf(ax: Axes, leaf: Mapping[str, Any], values: np.ndarray, name: str) -> None:
    if leaf["type"] == "Text":
        _draw_values(ax, values.astype(np.float64), f"{name} length (characters)", lengths=True)
        return
    numbers = values.reshape(len(values), -1).astype(np.float64)
    numbers = numbers[np.isfinite(numbers).all(axis=1)]
    ax.set_xlabel(name)
    if not numbers.size:
        _say(ax, "no action is finite")
    elif leaf["type"] == "MultiBinary":
        _bars(ax, numbers.mean(axis=0), np.arange(numbers.shape[1] + 1) - 0.5)
        ax.set_xlabel(f"{name}: dimensions that are 1")
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    elif numbers.shape[1] == 1:
        _draw_values(ax, numbers[:, 0], name, leaf=leaf)
    elif numbers.shape[1] <= _MOST_LINES:
        edges = _edges(numbers.ravel(), leaf)
        for index, (colour, dashes) in enumerate(zip(_COLOURS[: numbers.shape[1]], _DASHES, strict=False)):
            counts, _ = np.histogram(numbers[:, index], edges)
            ax.stairs(counts / len(numbers), edges, color=colour, linestyle=dashes, label=f"dimension {index}")
        ax.set_ylim(0, None)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.legend(handlelength=2.6, fontsize=8.5, ncols=2)
    else:
        _draw_grid(ax, numbers, _edges(numbers.ravel(), leaf))


def _draw_grid(ax: Axes, numbers: np.ndarray, edges: np.ndarray) -> None:
    """Many dimensions: one row for each, the darker the more often the value was taken."""
    shares = np.array([np.histogram(column, edges)[0] / len(numbers) for column in numbers.T])
    drawn = ax.pcolormesh(edges, np.arange(numbers.shape[1] + 1) - 0.5, shares, cmap="Blues", vmin=0)
    ax.figure.colorbar(drawn, ax=ax, label="share of steps", pad=0.02, format=PercentFormatter(1.0))
    ax.grid(visible=False)
    ax.set_ylabel("dimension")
    ax.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    _whole_ticks(ax, edges)


def _draw_values(
    ax: Axes, values: np.ndarray, name: str, *, leaf: Mapping[str, Any] | None = None, lengths: bool = False
) -> None:
    """Shares of one number's values; of lengths with a long tail, on a logarithmic axis."""
    edges = _edges(values, leaf)
    if lengths and values.max() > 10 * max(1.0, float(np.median(values))):
        values = np.maximum(values, 1.0)
        edges = np.unique(np.round(np.geomspace(values.min(), values.max() + 1, _MOST_BARS + 1)))
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    counts, _ = np.histogram(values, edges)
    _bars(ax, counts / len(values), edges)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel(name)


def _bars(ax: Axes, heights: np.ndarray, edges: np.ndarray, **kwargs: Any) -> None:
    apart = 0.8 if _whole(edges) else 1.0
    look = {"color": style.SIM, "edgecolor": "white", "linewidth": 0.4, **kwargs}
    ax.bar((edges[:-1] + edges[1:]) / 2, heights, np.diff(edges) * apart, **look)
    _whole_ticks(ax, edges)


def _whole_ticks(ax: Axes, edges: np.ndarray) -> None:
    if _whole(edges):
        if len(edges) < 5:  # a bar or two would fill the panel
            ax.set_xlim(edges[0] - 1.5, edges[-1] + 1.5)
            ax.set_xticks(edges[:-1] + 0.5)
            return
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _whole(edges: np.ndarray) -> bool:
    """Bars for single whole numbers."""
    return bool(np.all(np.diff(edges) == 1) and edges[0] % 1 == 0.5)


def _edges(values: np.ndarray, leaf: Mapping[str, Any] | None = None) -> np.ndarray:
    """Borders of the bars: one bar for each whole number where there are few, else equal widths, 10 to `_MOST_BARS`."""
    low, high = float(values.min()), float(values.max())
    if leaf is not None and leaf["type"] == "Discrete" and leaf["n"] <= _MOST_BARS:
        low, high = float(leaf["start"]), float(leaf["start"] + leaf["n"] - 1)
    whole = bool(np.all(values == np.round(values)))
    if whole and high - low < _MOST_BARS:
        return np.arange(low - 0.5, high + 1)
    if low == high:
        half = max(abs(low) / 2, 0.5)
        return np.array([low - half, low + half])
    bars = int(np.clip(2 * len(values) ** (1 / 3), 10, _MOST_BARS))  # Rice's rule
    if whole:
        step = np.ceil((high - low + 1) / bars)
        return np.arange(low - 0.5, high + step, step)
    return np.linspace(low, high, bars + 1)


def _say(ax: Axes, words: str) -> None:
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=style.GREY, style="italic")
    ax.set_xticks([])
    ax.set_yticks([])
