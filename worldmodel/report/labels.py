"""Names beside the points of a scatter, none over another and none over a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes

from worldmodel.report import style

Box = tuple[float, float, float, float]
CHAR_WIDTH, LINE_HEIGHT = 0.62, 1.15
LONGEST = 22


def place_labels(
    ax: Axes,
    x: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    *,
    keep_clear: Sequence[tuple[float, float]] = (),
    fontsize: float | int = 9.5,
) -> None:
    """Writes each name near its point `(x, y)`, with a thin line to it where it stands away from it.

    Greedy: the points most crowded choose first, each the nearest free place around it; where none is free, the one
    with the least overlap. `keep_clear` are points in data units that a name should avoid (a line of the plot).
    """
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes are in no figure: labels cannot be placed")
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    points = ax.transData.transform(np.column_stack([x, y])) * scale
    lines = ax.transData.transform(np.asarray(keep_clear)) * scale if len(keep_clear) else np.empty((0, 2))
    frame = ax.get_window_extent()
    area = (frame.x0 * scale, frame.y0 * scale, frame.x1 * scale, frame.y1 * scale)
    taken: list[Box] = [(px - 4, py - 4, px + 4, py + 4) for px, py in points]
    taken += [(px - 1.5, py - 1.5, px + 1.5, py + 1.5) for px, py in lines]
    crowd = [np.sum(np.hypot(*(points - point).T) < 40) for point in points]
    for index in sorted(range(len(points)), key=lambda i: -crowd[i]):
        name = names[index] if len(names[index]) <= LONGEST else names[index][: LONGEST - 1] + "…"
        width, height = CHAR_WIDTH * fontsize * len(name), LINE_HEIGHT * fontsize
        places = list(_around(points[index], width, height))
        # A name far from its point costs as much as a small overlap.
        costs = [_overlap(box, taken, area) + 0.3 * distance for box, distance in places]
        box, distance = places[int(np.argmin(costs))]
        taken.append(box)
        middle = ((box[0] + box[2]) / 2 - points[index][0], (box[1] + box[3]) / 2 - points[index][1])
        leader = {"arrowstyle": "-", "color": style.GREY, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
        label = ax.annotate(
            name,
            (x[index], y[index]),
            xytext=middle,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=fontsize,
            zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.3},
            arrowprops=leader if distance > 9 else None,
        )
        # A name must not move the axes that it was placed in.
        label.set_in_layout(False)


def _around(point: np.ndarray, width: float, height: float) -> Iterator[tuple[Box, float]]:
    """Boxes `(x0, y0, x1, y1)` around a point, nearest first, with their distance in typographic points."""
    for distance in (7, 16, 28, 42, 58, 76, 96, 120):
        for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False):
            dx, dy = np.cos(angle), np.sin(angle)
            cx = point[0] + dx * distance + np.sign(round(dx, 6)) * width / 2
            cy = point[1] + dy * distance + np.sign(round(dy, 6)) * height / 2 * abs(dy)
            yield (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2), distance


def _overlap(box: Box, taken: Sequence[Box], area: Box) -> float:
    """Area shared with what is taken, and a heavy price for leaving the plot."""
    total = sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in taken
    )
    outside = max(0, area[0] - box[0]) + max(0, box[2] - area[2]) + max(0, area[1] - box[1]) + max(0, box[3] - area[3])
    return total + 100.0 * outside
