"""What a log holds, in one pass, or of a corpus from its index alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import special

from worldmodel.corpus.index import Index
from worldmodel.corpus.read import Corpus
from worldmodel.trajectory import Trajectory

_ENDS = ("terminated", "truncated", "cut")


def summarise(log: Iterable[Trajectory]) -> dict[str, Any]:
    """What the episodes hold, as plain JSON.

    Args:
      log: episodes, read once; of a `Corpus` only the index is read.

    Returns:
      `episodes`, `transitions`; `lengths{min,median,max}` in steps; `returns` (an estimate over episodes; null and
      "why" where no rewards are); `policies[]`, each with `name, episodes, transitions, returns`;
      `ends{terminated,truncated,cut}` in episodes; and `synthetic`, episodes that a model imagined.

    Raises:
      ValueError: the log holds no episode.
    """
    if isinstance(log, Corpus):
        lengths, returns, ends, codes, policies, synthetic = _of_index(log.index)
    else:
        lengths, returns, ends, codes, policies, synthetic = _of_stream(log)
    if not len(lengths):
        raise ValueError("the log holds no episode; at least one is needed")
    first_seen = np.sort(np.unique(codes, return_index=True)[1])
    by_policy = []
    for code in codes[first_seen].tolist():
        own = codes == code
        by_policy.append(
            {
                "name": policies[code] if code >= 0 else "unknown",
                "episodes": int(own.sum()),
                "transitions": int(lengths[own].sum()),
                "returns": estimate(returns[own]),
            }
        )
    return {
        "episodes": len(lengths),
        "transitions": int(lengths.sum()),
        "lengths": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "returns": estimate(returns),
        "policies": by_policy,
        "ends": dict(zip(_ENDS, np.bincount(ends, minlength=len(_ENDS)).tolist(), strict=True)),
        "synthetic": synthetic,
    }


def _of_index(index: Index) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str], int]:
    ends = np.where(index.terminated, 0, np.where(index.truncated, 1, 2))
    synthetic = int(index.synthetic.sum())
    return index.lengths, index.returns, ends, index.policy_codes, list(index.policies), synthetic


def _of_stream(log: Iterable[Trajectory]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str], int]:
    lengths, returns, ends, codes = array("q"), array("d"), array("b"), array("i")
    policies: dict[str, int] = {}
    synthetic = 0
    for trajectory in log:
        name = trajectory.info.get("policy")
        lengths.append(len(trajectory))
        returns.append(trajectory.total_reward)
        synthetic += trajectory.synthetic
        ends.append(0 if trajectory.terminated else 1 if trajectory.truncated else 2)
        codes.append(policies.setdefault(str(name), len(policies)) if name else -1)
    columns = np.array(lengths, np.int64), np.array(returns), np.array(ends, np.int64), np.array(codes, np.int32)
    return *columns, list(policies), synthetic


def estimate(values: Any) -> dict[str, Any]:
    """Mean of episodes and its 95% interval by Student's t; what cannot be formed is null beside "why"."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    n = len(known)
    if n == 0:
        return {"mean": None, "lo": None, "hi": None, "n": 0, "why": "the log has no rewards"}
    mean = float(known.mean())
    if n == 1:
        return {"mean": mean, "lo": None, "hi": None, "n": 1, "why": "an interval needs two episodes"}
    half = float(special.stdtrit(n - 1, 0.975) * known.std(ddof=1) / np.sqrt(n))
    return {"mean": mean, "lo": mean - half, "hi": mean + half, "n": n}


def headline(corpus: Corpus) -> dict[str, Any]:
    """What a report says of its logs: `episodes, transitions, return_mean, behaviours, ends`, plain JSON."""
    found = summarise(corpus)
    behaviours = [
        {"name": row["name"], "episodes": row["episodes"], "return_mean": row["returns"]} for row in found["policies"]
    ]
    counts = {name: found[name] for name in ("episodes", "transitions", "ends")}
    return {**counts, "return_mean": found["returns"], "behaviours": behaviours}
