"""One picture of the whole: what the simulator imagines, how far it holds, and what a policy trained in it earns."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from worldmodel.report import figures, returns, style
from worldmodel.report.evidence import Evidence
from worldmodel.report.numbers import centre, get, read, text

WIDTH, HEIGHT, DPI = 16.0, 7.0, 100


def hero_png(report: Mapping[str, Any], evidence: Evidence, moments: int) -> bytes:
    """PNG of 1600 x 700 pixels; see `write.write_hero`."""
    with style.look():
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI)
        episodes = text(centre(get(report, "corpus.episodes")))
        title = f"{report['env_id']}: a simulator learned from {episodes} logged episodes"
        figure.text(0.0125, 0.948, title, fontsize=20, weight="bold", va="center")
        if evidence.frames is None:
            _traces(figure, evidence, top=0.84, rows=4)
        else:
            bottom = _frames(figure, *evidence.frames, every=evidence.frame_every, moments=moments)
            _traces(figure, evidence, top=bottom - 0.085, rows=1)
        if any(read(get(report, f"transfer.{key}")) for key, *_ in returns.ROWS):
            _transfer(_axes(figure, 0.665, 0.535, 0.32, 0.33), report)
        if get(report, "rollout.horizons"):
            _rollout(_axes(figure, 0.665, 0.17, 0.32, 0.24), report)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    return figure.add_axes((left, bottom, width, height))


def _transfer(ax: Axes, report: Mapping[str, Any]) -> None:
    returns.draw_transfer(ax, report, fontsize=11)
    ax.set_title("What a policy earns (95% intervals)", fontsize=14, weight="bold", loc="left")
    ax.set_xlabel("return per episode", fontsize=11)


def _rollout(ax: Axes, report: Mapping[str, Any]) -> None:
    figures.draw_rollout(ax, report, fontsize=11)
    ax.set_title("How far it can be rolled out", fontsize=14, weight="bold", loc="left")
    ax.set_ylabel("state error (sd)", fontsize=11)
    ax.set_xlabel("open-loop step", fontsize=11)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.45, -0.27),
        ncols=2,
        fontsize=10,
        columnspacing=1.0,
        handlelength=1.8,
        borderpad=0,
    )


def _frames(
    figure: Figure, imagined: Sequence[np.ndarray], real: Sequence[np.ndarray], *, every: int, moments: int
) -> float:
    """Rows imagined and real, columns moments of the part that both lived through; returns the lower edge."""
    both = min(len(imagined), len(real))
    picks = np.unique(np.linspace(0, both - 1, moments).round().astype(int))
    gap, left, right, top = 0.007, 0.032, 0.61, 0.855
    aspect = real[0].shape[0] / real[0].shape[1] * WIDTH / HEIGHT
    height = min(((right - left + gap) / len(picks) - gap) * aspect, 0.3)
    width = height / aspect
    gap = (right - left - len(picks) * width) / max(1, len(picks) - 1)
    rows = (("imagined", imagined, style.SIM), ("real", real, style.REAL))
    for row, (name, frames, colour) in enumerate(rows):
        for column, pick in enumerate(picks):
            ax = _axes(figure, left + column * (width + gap), top - height - row * (height + 0.02), width, height)
            ax.imshow(frames[pick], interpolation="antialiased", aspect="auto")
            ax.set(xticks=[], yticks=[])
            for spine in ax.spines.values():
                spine.set(visible=True, color=colour, linewidth=2)
            if row == 0:
                ax.set_title(f"step {pick * every}", fontsize=12.5)
            if column == 0:
                ax.set_ylabel(name, fontsize=14, weight="bold", color=colour)
    return top - 2 * height - 0.02


def _traces(figure: Figure, evidence: Evidence, *, top: float, rows: int) -> None:
    """Traces of the dimensions in which the two are furthest apart: `rows` rows of two, down to the lower edge."""
    dims = returns.shown_dims(evidence, 2 * rows)
    rows = min(rows, -(-len(dims) // 2))
    left, width, bottom, gap = 0.045, 0.262, 0.085, 0.075
    height = (top - bottom - (rows - 1) * gap) / rows
    for index, dim in enumerate(dims):
        row, column = divmod(index, 2)
        ax = _axes(figure, left + column * (width + 0.043), top - height - row * (height + gap), width, height)
        returns.draw_trace(ax, evidence, dim)
        ax.set_title(evidence.names[dim], fontsize=12, loc="left")
        if row == rows - 1 or index >= len(dims) - 2:
            ax.set_xlabel("step", fontsize=11)
        if index == 0:
            ax.legend(loc="lower right", bbox_to_anchor=(1.02, 0.97), ncols=2, fontsize=11, borderpad=0)
