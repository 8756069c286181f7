"""Which episodes are held out: decided by the episode's id alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

SPLITS = ("train", "held_out")
HELD_OUT_SHARE = 0.1


def split_of(episode_id: str) -> str:
    """`"held_out"` for a tenth of all ids, `"train"` for the rest.

    Depends on the id only, so that appending, reordering or merging corpora moves no episode across.
    """
    return "held_out" if _position(episode_id) < HELD_OUT_SHARE else "train"


def held_out_mask(ids: Sequence[str]) -> np.ndarray:
    """Bool `[E]`: the episodes held out among `ids`.

    It is `split_of`, but for one repair: of two episodes or more, at least one is on each side, because a corpus of a
    few episodes must still be able to tell fit from memory. The episode nearest to the border is moved.
    """
    positions = np.array([_position(episode_id) for episode_id in ids], np.float64)
    mask = positions < HELD_OUT_SHARE
    if len(ids) >= 2:
        if not mask.any():
            mask[np.argmin(positions)] = True
        elif mask.all():
            mask[np.argmax(positions)] = False
    return mask


def _position(episode_id: str) -> float:
    """The id's place in [0, 1), uniform over ids."""
    return int.from_bytes(hashlib.sha256(episode_id.encode("utf-8")).digest()[:8], "big") / 2.0**64
