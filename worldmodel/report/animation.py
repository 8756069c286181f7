"""The imagined beside the real rollout, as data for the page's player: one sprite sheet a side, or traces."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.report.evidence import Evidence
from worldmodel.report.returns import shown_dims

MAX_FRAMES = 180
MAX_PIXELS = 8_000_000
MAX_BYTES = 1_200_000
MAX_TRACES = 6


def player_data(evidence: Evidence) -> dict[str, Any]:
    """What the page's script plays: plain JSON.

    Returns:
      `kind` ("frames" or "traces"), `names`, `dims`, `range` (`[D][2]`, shared by both sides), `fps`, `every` (steps a
      frame stands for), `frames` (number of them), and for each side `imagined`, `real`: `steps`, `end`, `total`
      (cumulative reward at each frame) or null, and either `sheet` (data URI), `columns`, `width`, `height` or `traces`
      (`[D][frames]`).
    """
    steps = max(len(evidence.imagined_obs), len(evidence.real_obs)) - 1
    kind = "traces" if evidence.frames is None else "frames"
    source = evidence.frame_every if kind == "frames" else 1
    skip = math.ceil((steps // source + 1) / MAX_FRAMES)
    every = source * skip
    count = math.ceil(steps / every) + 1
    dims = shown_dims(evidence, MAX_TRACES)
    sides = {}
    for side in ("imagined", "real"):
        obs = getattr(evidence, f"{side}_obs")
        sides[side] = {
            "steps": len(obs) - 1,
            "end": getattr(evidence, f"{side}_end"),
            "total": _totals(getattr(evidence, f"{side}_rewards"), every, len(obs) - 1),
        }
        if kind == "frames":
            sides[side] |= sprite(_strided(getattr(evidence, f"{side}_frames"), skip))
        else:
            sides[side]["traces"] = [[_round(row[d]) for row in _strided(obs, every)] for d in dims]
    both = np.concatenate([evidence.imagined_obs, evidence.real_obs])
    low, high = both.min(axis=0), both.max(axis=0)
    # Real time where the environment tells it, but no shorter than 6 s and no longer than 12.
    wanted = count / (steps * evidence.step_seconds) if evidence.step_seconds else count / 10
    return {
        "kind": kind,
        "names": [evidence.names[d] for d in dims],
        "range": [[_round(low[d]), _round(high[d])] for d in dims],
        "fps": float(np.clip(wanted, max(2.0, count / 12), max(2.0, count / 6))),
        "every": every,
        "frames": count,
        **sides,
    }


def sprite(frames: Sequence[np.ndarray]) -> dict[str, Any]:
    """Frames uint8 `[H, W, 3]` in one sheet, as near to square as may be, coded to at most `MAX_BYTES`.

    Returns:
      `sheet` (data URI of a WebP, or of a PNG where Pillow has no WebP), `columns`, `width`, `height`, `count`.
    """
    from PIL import Image, features

    height, width = frames[0].shape[:2]
    scale = min(1.0, math.sqrt(MAX_PIXELS / (len(frames) * height * width)), 320 / width)
    coded, mime = b"", ""
    for quality, factor in ((85, 1.0), (70, 1.0), (60, 0.8), (45, 0.6), (30, 0.4)):
        w, h = max(1, round(width * scale * factor)), max(1, round(height * scale * factor))
        columns = max(1, min(len(frames), round(math.sqrt(len(frames) * h / w))))
        rows = math.ceil(len(frames) / columns)
        sheet = Image.new("RGB", (columns * w, rows * h), "white")
        for index, frame in enumerate(frames):
            picture = Image.fromarray(np.ascontiguousarray(frame))
            if picture.size != (w, h):
                picture = picture.resize((w, h), Image.Resampling.BICUBIC)
            sheet.paste(picture, (index % columns * w, index // columns * h))
        buffer = io.BytesIO()
        if features.check("webp") and max(sheet.size) <= 16_383:
            sheet.save(buffer, "WEBP", quality=quality, method=3)
            mime = "image/webp"
        else:
            sheet.quantize(max(16, quality)).save(buffer, "PNG", optimize=True)
            mime = "image/png"
        coded = buffer.getvalue()
        if len(coded) <= MAX_BYTES:
            break
    uri = f"data:{mime};base64,{base64.b64encode(coded).decode('ascii')}"
    return {"sheet": uri, "columns": columns, "width": w, "height": h, "count": len(frames)}


def _strided(values: Sequence[Any] | np.ndarray, skip: int) -> list[Any]:
    """Each `skip`-th value, and the last one, so that a rollout's end is always shown."""
    picked = list(values[::skip])
    return picked if (len(values) - 1) % skip == 0 else [*picked, values[-1]]


def _totals(rewards: np.ndarray | None, every: int, steps: int) -> list[float] | None:
    if rewards is None:
        return None
    total = np.concatenate([[0.0], np.cumsum(np.asarray(rewards, np.float64))])
    return [_round(total[min(step, steps)]) for step in range(0, steps + every, every)]


def _round(value: float) -> float:
    """Five significant digits are more than a pixel can show."""
    return float(f"{float(value):.5g}")
