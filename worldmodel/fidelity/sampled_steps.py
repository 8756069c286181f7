"""What sampled next observations say about single steps: scores, distances, classifiers, calibration, uncertainty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from worldmodel.fidelity.calibration import pit_error_interval, pit_histogram
from worldmodel.fidelity.classifiers import paired_c2st
from worldmodel.fidelity.effort import Effort
from worldmodel.fidelity.estimates import Estimate, cluster_index, cluster_mean_interval, cluster_ratio_interval
from worldmodel.fidelity.fidelity_index import gaussian, halves_index
from worldmodel.fidelity.replay import SAMPLES
from worldmodel.fidelity.sliced import sliced_halves
from worldmodel.fidelity.steps import Steps
from worldmodel.fidelity.two_sample import energy_distance, median_gamma
from worldmodel.fidelity.uncertainty import largest_disagreement, rank_link

CATEGORIES = "no number of the observations changes: no distance between categories"


def sampled_steps(steps: Steps, *, effort: Effort, seed: int, samples: bool = True) -> dict[str, Any]:
    """Plain JSON of everything that is judged on samples; `samples=False` leaves distances and classifiers out.

    Returns:
      `crps`, `persistence_crps`: fair CRPS in standard deviations, mean over numbers that change and over members, and
      the same of predicting no change; `calibration`: `pit[]` (shares in ten equal bins), `pit_error` (mean departure
      from flat), `width_90` (sharpness: width of the central 90%, in standard deviations); `uncertainty_link`:
      Spearman of the members' largest disagreement and the error of their mean; `unchanged`: errors apart after actions
      that changed nothing; `distances` and `c2st`: see `_distances` and `_classifier`.
    """
    out = {
        **_scores(steps, seed),
        "uncertainty_link": _link(steps, seed).to_json(),
        "unchanged": _unchanged(steps, seed),
    }
    if samples:
        out |= {"distances": _distances(steps, effort.rows, seed), "c2st": _classifier(steps, effort.pairs, seed)}
    return out


def _nothing(steps: Steps, why: str) -> Estimate:
    return Estimate(None, None, None, cluster_index(steps.episode, len(steps))[1], why)


def _scaled(steps: Steps, *values: np.ndarray) -> list[np.ndarray]:
    """Numbers that change, in standard deviations of the training observations, float64."""
    codec: Any = steps.codec
    scale = np.array(codec.scale, np.float64)[steps.numbers[: len(codec.scale)]]
    return [value[..., steps.numbers].astype(np.float64) / scale for value in values]


def _scores(steps: Steps, seed: int) -> dict[str, Any]:
    if not steps.numbers.any():
        nothing = _nothing(steps, CATEGORIES).to_json()
        return {"crps": nothing, "persistence_crps": nothing, "calibration": None}
    ids, said = steps.episode, steps.said
    before, after = _scaled(steps, steps.before, steps.after)
    chance = np.random.default_rng([seed, 2]).uniform(size=said.below.shape)
    places = ((said.below + chance * (1 + said.equal)) / (SAMPLES + 1))[..., steps.numbers]
    return {
        "crps": cluster_mean_interval(said.crps.mean(axis=1), ids, seed).to_json(),
        "persistence_crps": cluster_mean_interval(np.abs(after - before).mean(axis=1), ids, seed).to_json(),
        "calibration": {
            "pit": pit_histogram(places),
            "pit_error": pit_error_interval(places, ids, seed).to_json(),
            "width_90": cluster_mean_interval(said.width.mean(axis=1), ids, seed).to_json(),
            "method": f"randomised rank among {SAMPLES} samples of each member",
        },
    }


def _link(steps: Steps, seed: int) -> Estimate:
    said = steps.said.prediction
    if said.shape[1] < 2:
        return _nothing(steps, "one member disagrees with nobody")
    if not steps.numbers.any():
        return _nothing(steps, CATEGORIES)
    prediction, after = _scaled(steps, said, steps.after)
    error = np.sqrt(np.mean((prediction.mean(axis=1) - after) ** 2, axis=1))
    if not np.isfinite(prediction).all():
        return _nothing(steps, "a prediction is not finite")
    return rank_link(largest_disagreement(prediction), error, steps.episode, seed)


def _unchanged(steps: Steps, seed: int) -> dict[str, Any]:
    """Steps after which the log shows the observation as it was: what an action does that is refused or fails.

    `share` of all steps; `wrong`, `otherwise`: among them and among the others, the share of steps that a member's
    central prediction gets wrong (a number by more than 1% of a standard deviation of observations, or any category).
    """
    same = np.all(steps.before == steps.after, axis=1)
    share = float(same.mean()) if len(steps) else None
    if not same.any():
        return {"share": share, "wrong": _nothing(steps, "every action changes the observation").to_json()}
    off = steps.said.prediction != steps.after[:, None]
    if steps.numbers.any():
        prediction, after = _scaled(steps, steps.said.prediction, steps.after)
        off[..., steps.numbers] = ~(np.abs(prediction - after[:, None]) <= 0.01)
        codec: Any = steps.codec
        off[..., : len(codec.scale)] &= steps.numbers[: len(codec.scale)]
    wrong = off.any(axis=2).mean(axis=1)
    rates = {
        name: cluster_ratio_interval(wrong * among, among, steps.episode, seed, why="no such step").to_json()
        for name, among in (("wrong", same), ("otherwise", ~same))
    }
    return {"share": share, **rates}


def _changes(steps: Steps, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Real and sampled change, and the mean prediction's, float64 `[N, K]`, in standard deviations of the real change.

    None where a sample is not finite.
    """
    own = steps.numbers
    drawn = steps.flat(steps.drawn(seed)).astype(np.float64)
    before, after, drawn = (side[:, own].astype(np.float64) for side in (steps.before, steps.after, drawn))
    central = steps.said.prediction.mean(axis=1)[:, own].astype(np.float64)
    spread = (after - before).std(axis=0)
    if not (np.isfinite(drawn).all() and np.isfinite(central).all()):
        return None
    real, sim, said = ((side - before)[:, spread > 0] / spread[spread > 0] for side in (after, drawn, central))
    return real, sim, said


def _why_not(steps: Steps) -> str | None:
    if steps.said.drawn is None:
        return "sampled pictures are not kept"
    return None if steps.numbers.any() else CATEGORIES


def _distances(steps: Steps, rows: int, seed: int) -> dict[str, Any]:
    """How far sampled transitions are from real ones of other episodes, beside real ones from each other.

    `energy`, `mmd2` and `sliced_w1`, each with `sim`, `floor` (real against real), `excess` and, for the first two,
    `null` (no change) and `phi`: the index from 0 (no better than no change) to 1 (as far as real episodes). Rows are
    state, action and change, each in standard deviations; `rows` of them are drawn.
    """
    why, used = _why_not(steps), steps.sample(rows, seed)
    found = _changes(used, seed) if why is None else None
    if why is None and found is None:
        why = "a sample of the simulator is not finite"
    if why is None and found is not None and found[0].shape[1] == 0:
        why = "nothing changes in these logs"
    if why is not None or found is None:
        return {"energy": None, "mmd2": None, "sliced_w1": None, "why": why}
    real, sim, null = (np.concatenate([used.given, side], axis=1) for side in (found[0], found[1], 0.0 * found[0]))
    ids = used.episode
    gamma = median_gamma(real, sim)
    return {
        "energy": halves_index(real, sim, null, ids, seed=seed).to_json(),
        "mmd2": {
            **halves_index(real, sim, null, ids, dissimilarity=gaussian(gamma), seed=seed).to_json(),
            "gamma": gamma,
        },
        "sliced_w1": sliced_halves(real, sim, ids, seed=seed),
        "rows": len(used),
        "convention": "energy: 2E|X-Y|-E|X-X'|-E|Y-Y'|, no root; mmd2: kernel exp(-gamma d^2), gamma = 1/median d^2; "
        "state, action and change in standard deviations; halves of the episodes against each other",
    }


def _classifier(steps: Steps, pairs: int, seed: int) -> dict[str, Any]:
    """Can trees tell a sampled change from the real one of the same step, trained on other episodes: `c2st`.

    `auc` (of pairs: .5 if not, 1 always), `accuracy`, `log_ratio` (mean log-ratio real over simulated of sampled
    transitions, sign turned: about KL(sim || real) in nats), and beside them the effect size `effect`: energy distance
    of the errors of real and sampled changes about the mean prediction, in standard deviations of the change, since
    trees find any difference, however small, where little is left to chance.
    """
    why, used = _why_not(steps), steps.sample(pairs, seed)
    found = _changes(used, seed) if why is None else None
    episodes = len(np.unique(used.episode))
    if why is None and found is None:
        why = "a sample of the simulator is not finite"
    elif why is None and episodes < 2:
        why = f"a classifier needs at least 2 episodes; there are {episodes}"
    if why is not None or found is None:
        nothing = _nothing(steps, why or CATEGORIES).to_json()
        return {"auc": nothing, "accuracy": nothing, "log_ratio": nothing, "effect": None}
    real, sim, said = found
    real_error, sim_error = real - said, sim - said
    test = paired_c2st(
        used.given,
        np.concatenate([real, real_error], axis=1),
        np.concatenate([sim, sim_error], axis=1),
        used.episode,
        seed=seed,
    )
    some = slice(None, None, math.ceil(len(used) / 1000))
    return {
        "auc": test.auc.to_json(),
        "accuracy": test.accuracy.to_json(),
        "log_ratio": cluster_mean_interval(-test.log_ratio[1], used.episode, seed).to_json(),
        "effect": energy_distance(real_error[some], sim_error[some]),
        "pairs": len(used),
        "method": "gradient-boosted trees, 5 folds of whole episodes, real and sampled next state of one step in pairs",
    }
