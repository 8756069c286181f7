"""Can a classifier tell simulated transitions from real ones (C2ST), and how much likelier is each in reality (DARC)?

Simulated and real next states at the *same* state and action stand in pairs, and pairs of one episode stay on one side
of every split: a classifier that has seen the partner of a test row answers the opposite of it (an AUC near .1 for two
equal samples).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from worldmodel.fidelity.estimates import Estimate, Values, cluster_index, cluster_mean_interval

FOLDS = 5
CLIP = 1e-4
"""Probabilities are held this far from 0 and 1: no log-ratio is larger than 9.2 nats."""


@dataclasses.dataclass(frozen=True)
class PairedC2ST:
    """A classifier two-sample test (Lopez-Paz and Oquab 2017) on pairs.

    Attributes:
      auc: probability that the real one of a pair is scored higher (ties half): .5 if alike, without bias.
      accuracy: share of rows on the right side of one half; at most `(1 + TV) / 2`.
      log_ratio: float64 `[2, N]`, nats: `log p_real(s' | s, a) / p_sim(s' | s, a)` of every real (row 0) and simulated
        (row 1) next state; the term of `(s, a)` alone is zero, since both sides have every `(s, a)` once.
    """

    auc: Estimate
    accuracy: Estimate
    log_ratio: np.ndarray


def paired_c2st(
    given: Values, real: Values, sim: Values, episode_ids: Values, *, seed: int = 0, folds: int = FOLDS
) -> PairedC2ST:
    """Trains gradient-boosted trees out of fold to tell `real` from `sim` next states.

    Args:
      given: state and action `[N, G]`.
      real: next state, or what is computed from it, `[N, F]`.
      sim: one sample of the simulator at the same rows, `[N, F]`.
      episode_ids: `[N]`: the unit of folds and intervals.
      seed: of folds and trees.
      folds: how many, or the number of episodes where that is smaller.

    Raises:
      ValueError: shapes that differ, a value that is not finite, fewer than two episodes.
    """
    given, real, sim = (np.asarray(x, np.float64) for x in (given, real, sim))
    if given.ndim != 2 or real.ndim != 2 or real.shape != sim.shape or len(given) != len(real):
        shapes = ", ".join(str(list(x.shape)) for x in (given, real, sim))
        raise ValueError(f"given [N, G], real and sim [N, F] must have the same rows; got {shapes}")
    index, clusters = cluster_index(episode_ids, len(real))
    rows = np.concatenate([np.concatenate([given, side], axis=1) for side in (real, sim)])
    label = np.repeat([1, 0], len(real))
    said = out_of_fold(rows, label, np.tile(index, 2), seed=seed, folds=min(folds, clusters))
    real_score, sim_score = said.reshape(2, -1)
    auc = cluster_mean_interval((real_score > sim_score) + 0.5 * (real_score == sim_score), episode_ids, seed)
    # A half for each row of a pair that is on its side of one half, a quarter for one that is on the line.
    right = 0.5 + 0.25 * (np.sign(real_score - 0.5) - np.sign(sim_score - 0.5))
    log_odds = special.logit(np.clip(said, CLIP, 1 - CLIP)).reshape(2, -1)
    return PairedC2ST(auc, cluster_mean_interval(right, episode_ids, seed), log_odds)


def out_of_fold(rows: np.ndarray, label: np.ndarray, groups: np.ndarray, *, seed: int, folds: int) -> np.ndarray:
    """P(label = 1) of every row `[N]` by a classifier that saw no row of its group. Needs two groups."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    if not np.isfinite(rows).all():
        raise ValueError(f"row {int(np.argwhere(~np.isfinite(rows))[0, 0])} has a value that is not finite")
    names, index = np.unique(groups, return_inverse=True)
    if min(folds, len(names)) < 2:
        raise ValueError(
            f"a classifier needs at least 2 episodes, one to learn from and one to be tested on; got {len(names)}"
        )
    fold = np.random.default_rng(seed).permutation(len(names))[index.reshape(-1)] % folds
    said = np.empty(len(rows))
    make: Any = HistGradientBoostingClassifier
    for k in range(folds):
        held = fold == k
        trees = make(max_iter=40, max_leaf_nodes=8, learning_rate=0.15, early_stopping=False, random_state=seed)
        with threadpool_limits(1, user_api="openmp"):  # on tables this small, threads wait for each other
            said[held] = trees.fit(rows[~held], label[~held]).predict_proba(rows[held])[:, 1]
    return said


def log_ratio(with_next: Values, without_next: Values) -> np.ndarray:
    """Transition log-ratio of DARC (Eysenbach et al. 2021): `logit c(real | s, a, s') - logit c(real | s, a)` in nats.

    `with_next`, `without_next` `[N]`: probability of "real" by classifiers that do and do not see the next state. About
    `log p_real(s' | s, a) / p_sim(s' | s, a)`, 0 where faithful. Without the second term it would also measure that the
    two sides visit other states and actions.
    """
    sides = [np.asarray(side, np.float64) for side in (with_next, without_next)]
    if sides[0].shape != sides[1].shape or not all(((side > 0) & (side < 1)).all() for side in sides):
        raise ValueError("both must be probabilities strictly between 0 and 1, of one shape")
    return special.logit(sides[0]) - special.logit(sides[1])


def transition_log_ratio(
    *, real: Values, sim: Values, states: int, groups_real: Values, groups_sim: Values, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """`log_ratio` of real `[N, F]` and simulated `[M, F]` transitions that need not share states and actions.

    The first `states` columns are state and action, the others the next state; `groups_*` `[N]`, `[M]` name the
    episodes, whose names the two sides must not share unless they belong together. Returns `([N], [M])`.
    """
    sides = [np.asarray(side, np.float64) for side in (real, sim)]
    if any(side.ndim != 2 for side in sides) or not 0 < states < sides[0].shape[1] == sides[1].shape[1]:
        raise ValueError(
            f"real and sim must be [N, F] with 0 < states < F; got {[list(s.shape) for s in sides]}, {states}"
        )
    rows, label = np.concatenate(sides), np.repeat([1, 0], [len(side) for side in sides])
    groups = np.concatenate([np.asarray(groups_real).astype(str), np.asarray(groups_sim).astype(str)])
    folds = min(FOLDS, len(np.unique(groups)))
    said = (out_of_fold(part, label, groups, seed=seed, folds=folds) for part in (rows, rows[:, :states]))
    ratio = log_ratio(*(np.clip(side, CLIP, 1 - CLIP) for side in said))
    return ratio[: len(sides[0])], ratio[len(sides[0]) :]


def accuracy_z(accuracy: float | int, n: int) -> float:
    """Standard errors by which an accuracy on `n` independent test rows exceeds one half: `(a - 1/2) sqrt(4 n)`."""
    if n < 1 or not 0 <= accuracy <= 1:
        raise ValueError(f"accuracy {accuracy} of {n} rows: a share of at least one row is needed")
    return float((accuracy - 0.5) * np.sqrt(4 * n))


def accuracy_bound(total_variation: float | int) -> float:
    """Accuracy of the best possible classifier of two equally frequent classes: `(1 + TV) / 2`."""
    if not 0 <= total_variation <= 1:
        raise ValueError(f"a total variation lies between 0 and 1, not {total_variation}")
    return 0.5 * (1.0 + total_variation)
