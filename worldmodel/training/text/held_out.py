"""How well a language model predicts held-out episodes: nats a token, and turns that it gets exactly right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel._types import PyTree
from worldmodel.codec.text.codec import Kind
from worldmodel.codec.text.markers import Markers
from worldmodel.codec.text.matches import matches_of
from worldmodel.training.text.step import TokenBatch

PARTS = {"observation": (Kind.OBSERVATION, Kind.END), "reward": (Kind.REWARD,), "terminated": (Kind.CLOSER,)}


class HeldOutTexts:
    """Measured at every checkpoint on the same rows, each token counting alike.

    Args:
      scores: `(trained, batch) -> (log_prob, best)`.
      batches: what `TokenBatches` gives, beside the same as the devices take it.
      markers: between texts.
    """

    def __init__(
        self,
        scores: Callable[[PyTree, TokenBatch], tuple[Any, Any]],
        batches: Sequence[tuple[Mapping[str, np.ndarray], TokenBatch]],
        markers: Markers,
    ):
        self._scores, self._batches, self._markers = scores, batches, markers

    def measure(self, trained: PyTree) -> dict[str, float]:
        """`held_out_nll` in nats per token learned from, the same of its parts, and shares of turns that match.

        A turn's observation, reward and end match where greedy decoding from the logged past says just them; whoever
        begins an episode is not counted.
        """
        nats: list[tuple[np.ndarray, np.ndarray]] = []
        turns: list[list[np.ndarray]] = []
        for batch, placed in self._batches:
            log_prob, best = (np.asarray(x) for x in self._scores(trained, placed))
            kinds = np.where(best >= 0, batch["kinds"], Kind.GIVEN)  # nothing predicts what a sample begins with
            nats.append((kinds[kinds > 0], -log_prob[kinds > 0]))
            rows = zip(batch["tokens"], batch["kinds"], best, strict=True)
            turns += [[*matches_of(*row, self._markers)] for row in rows]
        kinds, nll = (np.concatenate(column) for column in zip(*nats, strict=True))
        measured = {"held_out_nll": float(nll.mean())}
        for name, own in PARTS.items():
            chosen = np.isin(kinds, own)
            if chosen.any():
                measured[f"held_out_{name}"] = float(nll[chosen].mean())
        columns = [np.concatenate(column) for column in zip(*turns, strict=True)]
        for name, right in zip(PARTS, columns, strict=False):
            if len(right):
                measured[f"held_out_{name}_match"] = float(right.mean())
        return measured
