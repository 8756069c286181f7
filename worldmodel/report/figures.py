"""The figures on how wrong the simulator is: open-loop error, one-step error, ranking of policies, training.

Each takes the report (see `write.py`) and returns a Matplotlib figure, or None where its numbers are missing. The
functions named `draw_*` draw into given axes, so that other pictures can reuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from worldmodel.report import style
from worldmodel.report.labels import place_labels
from worldmodel.report.numbers import centre, get, interval, read, series, text
from worldmodel.report.verdict import horizon_interval, trust_step

MAX_BARS = 40


def draw_rollout(ax: Axes, report: Mapping[str, Any], *, fontsize: float | int = 9.5) -> None:
    """Open-loop error by step with its 95% band, two references, the threshold, and the divergence horizon."""
    rollout = report["rollout"]
    steps, error = np.asarray(rollout["horizons"], float), np.asarray(series(rollout["error"]))
    low, high = np.asarray(series(rollout.get("error_lo"))), np.asarray(series(rollout.get("error_hi")))
    tops = [np.nanmax(error, initial=0)]
    if len(low) == len(high) == len(steps):
        ax.fill_between(steps, low, high, color=style.SIM, alpha=0.22, linewidth=0)
        tops.append(np.nanmax(high, initial=0))
    ax.plot(steps, error, color=style.SIM, label="learned simulator (95% band)", zorder=4)
    references = (
        ("persistence", "nothing changes (persistence)", style.GREY, "--"),
        ("one_step_noise", "true dynamics + its one-step noise", style.NOISE, "-."),
    )
    caps = []
    for key, label, colour, dashes in references:
        values = np.asarray(series(rollout.get(key)))
        if len(values) == len(steps) and np.isfinite(values).any():
            ax.plot(steps, values, color=colour, linestyle=dashes, label=label, linewidth=1.5)
            caps.append(np.nanmax(values))
    threshold = centre(rollout.get("threshold"))
    if threshold is not None:
        ax.axhline(threshold, color=style.INK, linestyle=":", linewidth=1.3, label=f"threshold ({threshold:g} sd)")
        caps.append(2 * threshold)
    # An imagination that explodes would press every other line onto the axis.
    top = min(max([*tops, *caps]), 4 * max(caps)) if caps else max(tops)
    top = max(top, 1e-9) * 1.08
    ax.set_ylim(0, top)
    ax.set_xlim(0, steps.max())
    _mark_horizon(ax, report, top, fontsize)
    ax.set_xlabel("open-loop step")
    ax.set_ylabel("state error (standard deviations)")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _mark_horizon(ax: Axes, report: Mapping[str, Any], top: float, fontsize: float | int) -> None:
    step, longest = trust_step(report), max(report["rollout"]["horizons"])
    if step is None:
        return
    span = horizon_interval(report)
    censored = step >= longest
    if span and not censored:
        ax.axvspan(*span, color=style.REAL, alpha=0.16, linewidth=0)
    if not censored:
        ax.axvline(step, color=style.REAL, linewidth=1.5)
    words = f"under the threshold\nto step {step}, the longest" if censored else f"divergence\nhorizon {step}"
    right = step > 0.6 * longest
    pad = (-1 if right else 1) * 0.015 * longest
    edge = step if censored or not span else (span[0] if right else span[1])
    ax.annotate(
        words,
        (edge + pad, 0.985 * top),
        ha="right" if right else "left",
        va="top",
        fontsize=fontsize,
        color=style.REAL_TEXT,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
    )


def rollout_figure(report: Mapping[str, Any]) -> Figure | None:
    """Figure of `draw_rollout`."""
    if not get(report, "rollout.horizons") or not np.isfinite(series(get(report, "rollout.error"))).any():
        return None
    figure, ax = style.panel(height=3.9)
    draw_rollout(ax, report)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=1, handlelength=2.6)
    return figure


def ranking_figure(report: Mapping[str, Any]) -> Figure | None:
    """Return in simulation against return in reality, one cross of 95% intervals per policy, and the identity."""
    names, pairs = [], []
    for policy in report.get("policies") or ():
        pair = read(policy.get("sim_return")), read(policy.get("real_return"))
        if None not in pair:
            names.append(policy["name"])
            pairs.append(pair)
    if not names:
        return None
    figure, ax = style.panel(height=4.45)
    # [policies, 2 sides, (mean, lo, hi)]
    table = np.asarray(pairs, dtype=float)
    sim, real = table[:, 0, 0], table[:, 1, 0]
    sim_span, real_span = table[:, 0, 1:], table[:, 1, 1:]
    low, high = min(sim_span.min(), real_span.min()), max(sim_span.max(), real_span.max())
    pad = 0.07 * (high - low or 1.0)
    limits = (low - pad, high + pad)
    ax.plot(limits, limits, color=style.GREY, linestyle="--", linewidth=1.2, zorder=1)
    ax.errorbar(
        sim,
        real,
        xerr=np.abs(sim_span.T - sim),
        yerr=np.abs(real_span.T - real),
        fmt="o",
        markersize=5,
        color=style.SIM,
        ecolor=style.SIM,
        elinewidth=1.4,
        capsize=2.5,
    )
    ax.set_xlim(limits)
    ax.set_ylim(limits)
    ax.set_box_aspect(1)
    ax.set_xlabel("return in the simulator")
    ax.set_ylabel("return in reality")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5))
    identity = [(x, x) for x in np.linspace(limits[0], limits[1], 60)]
    across = [(x, r) for span, r in zip(sim_span, real, strict=True) for x in np.linspace(span[0], span[1], 9)]
    upright = [(s, y) for span, s in zip(real_span, sim, strict=True) for y in np.linspace(span[0], span[1], 9)]
    place_labels(ax, sim, real, names, keep_clear=[*identity, *across, *upright])
    return figure


def one_step_figure(report: Mapping[str, Any], names: tuple[str, ...]) -> Figure | None:
    """One-step error of each observation dimension, with a line at a tenth of the persistence floor."""
    values = get(report, "one_step.nrmse_per_dim")
    if not values:
        return None
    error = np.asarray(series(values))
    names = names if len(names) == len(error) else tuple(f"obs[{i}]" for i in range(len(error)))
    order = np.arange(len(error))
    if len(error) > MAX_BARS:
        order = np.sort(np.argsort(-np.nan_to_num(error))[:MAX_BARS])
    figure, ax = style.panel(height=max(3.7, 1.1 + 0.34 * len(order)))
    place = np.arange(len(order))
    ax.barh(place, error[order], color=style.SIM, height=0.55)
    spans = [(i, interval(values[k])) for i, k in enumerate(order)]
    for i, span in spans:
        if span:
            ax.plot(span, (i, i), color=style.INK, linewidth=1.6, solid_capstyle="butt")
    ends = [span[1] if span else float(error[order[i]]) for i, span in spans]
    top = max([end for end in ends if np.isfinite(end)], default=0.0)
    floor = centre(get(report, "one_step.persistence_nrmse"))
    if floor is not None:
        ax.axvline(0.1 * floor, color=style.INK, linestyle=":", linewidth=1.5, label="10% of the persistence floor")
        top = max(top, 0.1 * floor)
        figure.legend(loc="outside lower center")
    for i, end in enumerate(ends):
        if np.isfinite(end):
            ax.annotate(
                text(float(error[order[i]])),
                (end, i),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
    ax.set_xlim(0, (top or 1.0) * 1.2)
    ax.set_yticks(place, [_shorten(names[k]) for k in order])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel("one-step NRMSE")
    return figure


def training_figure(report: Mapping[str, Any]) -> Figure | None:
    """Loss of the world model by training step: every value, and a running median over a twentieth of the run."""
    curve = _curve(report, "training.loss", "training.loss_curve.loss")
    return None if curve is None else _training_panel(*curve, "training loss (nats)", "training step")


def policy_training_figure(report: Mapping[str, Any]) -> Figure | None:
    """Return inside the simulator while the policy trains there, and what the final policy earns in reality."""
    curve = _curve(report, "policy_training.sim_return")
    if curve is None:
        return None
    figure = _training_panel(*curve, "return", "simulated steps", log=False, label="inside the simulator")
    ax = figure.axes[0]
    real = read(get(report, "transfer.sim_trained_real_return"))
    if real is not None:
        ax.axhspan(real.lo, real.hi, color=style.REAL, alpha=0.2, linewidth=0)
        ax.axhline(real.mean, color=style.REAL, linestyle="--", label="final policy in reality (95% band)")
        bottom, top = ax.get_ylim()
        ax.set_ylim(min(bottom, real.lo), max(top, real.hi + 0.05 * (top - bottom)))
    figure.legend(loc="outside lower center")
    return figure


def _curve(report: Mapping[str, Any], *paths: str) -> tuple[np.ndarray, np.ndarray] | None:
    """`(steps, values)` of the first path that holds a curve, without nulls; its `steps` stand beside it."""
    for path in paths:
        values, steps = get(report, path), get(report, path.rpartition(".")[0] + ".steps")
        if isinstance(values, list | tuple) and steps and len(values) == len(steps):
            known = np.isfinite(series(values))
            if known.any():
                return np.asarray(steps, float)[known], np.asarray(series(values))[known]
    return None


def _training_panel(
    steps: np.ndarray, values: np.ndarray, y: str, x: str, *, log: bool = True, label: str = ""
) -> Figure:
    figure, ax = style.panel()
    width = max(1, len(values) // 20)
    smooth = [np.nanmedian(values[max(0, i - width) : i + width + 1]) for i in range(len(values))]
    ax.plot(steps, values, color=style.SIM, alpha=0.35, linewidth=1)
    ax.plot(steps, smooth, color=style.SIM, label=label)
    if log and np.nanmin(values) > 0 and np.nanmax(values) > 20 * np.nanmin(values):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0, steps.max())
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(lambda value, _: _compact(value))
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return figure


def _compact(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _shorten(name: str, length: int = 22) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
