"""One look for every figure: colours, sizes, and how a figure becomes inline SVG.

Colours are of Okabe and Ito's set, told apart by colour-blind readers and in grey print; a line style or a marker
always repeats what a colour says.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIM = "#0072B2"
REAL = "#D55E00"
REAL_TEXT = "#9a4400"
NOISE = "#007A5A"
INK = "#1f2430"
GREY = "#6b7280"
PALE = "#e5e7eb"

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "path.simplify": True,
}


@contextmanager
def look() -> Iterator[None]:
    """Every figure is made and saved inside this context; the user's own settings stay as they are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def panel(width: float = 4.5, height: float = 3.3) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes, in inches; no global state, no window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as one `<svg>` element to put inside HTML: accessible, without XML names, ids its own."""
    buffer = io.StringIO()
    # A fixed salt and no date: the same numbers give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, count=1, flags=re.S)
    text = text.replace("xlink:href=", "href=")
    # Several figures share a page: without a prefix, one would draw with another's clips and markers.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    width, height = (round(72 * inches, 3) for inches in figure.get_size_inches())
    label = alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    head = (
        f'<svg class="figure" role="img" aria-label="{label}" viewBox="0 0 {width} {height}" '
        'style="stroke-linejoin:round;stroke-linecap:butt">'
    )
    text = re.sub(r"^<svg[^>]*>", lambda _: head, text)
    return re.sub(r"\n\s*", "\n", text).strip()
