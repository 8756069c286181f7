"""Which episodes are held out: decided by the episode's id alone, or by the value of one key of its `info`."""

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
    return "held_out" if hash_of(episode_id) / 2.0**64 < HELD_OUT_SHARE else "train"


def held_out_mask(ids: Sequence[str]) -> np.ndarray:
    """Bool `[E]`: the episodes held out among `ids` (see `held_out_of_hashes`)."""
    return held_out_of_hashes(np.array([hash_of(episode_id) for episode_id in ids], np.uint64))


def held_out_of_hashes(hashes: np.ndarray) -> np.ndarray:
    """Bool `[E]`: the episodes held out, from `hash_of` what decides each one's split, uint64 `[E]`.

    It is `split_of`, but for one repair: of two deciding values or more, at least one is on each side, because a corpus
    of a few episodes must still be able to tell fit from memory. The value nearest to the border is moved.
    """
    mask = hashes.astype(np.float64) / 2.0**64 < HELD_OUT_SHARE
    if len(hashes) and hashes.min() != hashes.max():
        if not mask.any():
            mask[hashes == hashes.min()] = True
        elif mask.all():
            mask[hashes == hashes.max()] = False
    return mask


def sample_of_hashes(hashes: np.ndarray, lengths: np.ndarray, transitions: int) -> np.ndarray:
    """Places of the episodes, `hash_of` whose ids is smallest, that hold at most `transitions`; at least of one.

    Args:
      hashes: uint64 `[E]`.
      lengths: int64 `[E]`, transitions of each.
      transitions: how many are wanted.

    Returns:
      int64 `[K]`, ascending.
    """
    order = np.argsort(hashes, kind="stable")
    count = np.searchsorted(np.cumsum(lengths[order]), transitions, side="right")
    return np.sort(order[: max(int(count), 1)])


def hash_of(text: str) -> int:
    """The first 8 bytes of the SHA-256 of a text, big-endian: uniform over texts."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
