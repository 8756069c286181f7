"""In which states a simulator's steps may be trusted: regions, each with a bound on its error and a controlled risk.

The episode is the unit. Regions are found on half of the episodes, where there are enough, and judged on the other,
each by itself (Mondrian): an average over all states says nothing about the bad ones. The error is that of the
ensemble's average against what really happened, so that a bias which all members share counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.certificate import Certificate, Node, Region
from worldmodel.codec import BoxCodec, DiscreteCodec, SpaceCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.envs.names import observation_names
from worldmodel.fidelity.estimates import Estimate, cluster_mean_interval
from worldmodel.fidelity.partition import MAX_FEATURES, find_regions, named_features, signed_numbers
from worldmodel.fidelity.replay import flat_observations, gather, teacher_forced
from worldmodel.fidelity.steps import Steps
from worldmodel.training.checkpoint import WorldModel

MAX_STEPS = 1000
BATCH = 64
"""Episodes that are replayed at once."""
ENOUGH = 3
"""Times as many episodes as certify a faultless region: fewer judge a single region, which is everywhere."""
UNIT = "standard deviations of a step's change, root mean square over the numbers that change"


def certify(
    world: WorldModel,
    columns: Columns,
    *,
    tolerance: float = 0.25,
    risk: float = 0.1,
    confidence: float = 0.9,
    rules: Certificate | None = None,
    max_episodes: int = 512,
    batch: int = BATCH,
    seed: int = 0,
) -> Certificate:
    """Certifies the states in which a step errs by more than `tolerance` with a probability of at most `risk`.

    Args:
      world: the simulator.
      columns: real episodes that no member was trained on. What is certified holds for the behaviour that made them:
        for another policy, call it again with episodes of that policy, and with `rules`.
      tolerance: error of a step, see `transition_errors`.
      risk: probability, of a step drawn from an episode that visits the region, to exceed it.
      confidence: with this probability over the episodes, all certified regions keep the risk.
      rules: a certificate whose regions are judged anew, by all episodes; None: regions are found on half of them.
      max_episodes: at most so many episodes, drawn at random, and `MAX_STEPS` steps of each.
      batch: episodes that are replayed at once; that of another replay saves a compilation.
      seed: of the halves and of the episodes drawn.

    Raises:
      ValueError: a number outside its range, or fewer than two episodes to find regions with.
    """
    chosen = np.arange(columns.episodes)
    if len(chosen) > max_episodes:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, max_episodes, replace=False))
    steps = replayed(world, columns, chosen, batch=batch, seed=seed)
    flat = state_numbers(world, steps)
    return judge_regions(
        transition_errors(world, steps),
        steps.episode,
        flat,
        observation_names(world.spec.env_id, flat.shape[1]),
        tolerance=tolerance,
        risk=risk,
        confidence=confidence,
        rules=rules,
        step=world.step,
        seed=seed,
    )


def replayed(world: WorldModel, columns: Columns, episodes: np.ndarray, *, batch: int = BATCH, seed: int = 0) -> Steps:
    """The first `MAX_STEPS` steps of episodes int64 `[E]`, with what the model says of each."""
    longest = int(min(columns.lengths[episodes].max(), MAX_STEPS))
    replay = gather(columns, episodes, np.zeros(len(episodes), np.int64), longest)
    return Steps.of(world.dynamics.codec.observation, replay, teacher_forced(world, replay, seed, batch=batch))


def judge_regions(
    errors: np.ndarray,
    episode: np.ndarray,
    flat: np.ndarray,
    names: Sequence[str],
    *,
    tolerance: float,
    risk: float,
    confidence: float,
    rules: Certificate | None = None,
    step: int = 0,
    seed: int = 0,
) -> Certificate:
    """The same from errors of `N` transitions, float `[N]`, of episodes int `[N]`, by numbers `[N, D]` of the state.

    The other arguments and the errors are those of `certify`.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1")
    if not 0.0 < tolerance < math.inf:
        raise ValueError(f"tolerance is {tolerance}; a finite number above 0 is needed")
    over = errors > tolerance
    if rules is None and len(np.unique(episode)) < ENOUGH * math.log(1.0 - confidence) / math.log(1.0 - risk):
        flat = flat[:, :0]
    if rules is None:
        root, words, signed, judges = _find(np.minimum(errors, 4 * tolerance), episode, flat, names, seed)
    else:
        root, words, signed = rules.root, [region.rule for region in rules.regions], rules.signed
        judges = np.ones(len(flat), bool)
    label = root.label(_features(flat, signed))
    if rules is None:
        promise = [risk_p_value(_shares(over, episode, ~judges & (label == k)), risk) for k in range(len(words))]
    else:
        promise = [1.0 if region.exceeding is None else region.exceeding for region in rules.regions]
    judged = [_shares(over, episode, judges & (label == k)) for k in range(len(words))]
    kept = _fixed_sequence(judged, promise, risk, 1.0 - confidence)
    regions = []
    for number, (rule, shares) in enumerate(zip(words, judged, strict=True)):
        own = judges & (label == number)
        regions.append(
            Region(
                rule,
                share=float(own.sum() / max(judges.sum(), 1)),
                episodes=len(shares),
                bound=hierarchical_bound(errors[own], episode[own], risk),
                exceeding=float(shares.mean()) if len(shares) else None,
                certified=number in kept,
            )
        )
    return Certificate(root, tuple(signed), tuple(regions), float(tolerance), float(risk), float(confidence), step)


def trust_region_json(certificate: Certificate) -> dict[str, Any]:
    """The certificate for a report, as plain JSON.

    Returns:
      `regions[{rule, share, episodes, bound, exceeding, certified}]`, `certified_share` of the judging steps,
      `tolerance, risk, confidence`, `unit` of errors and bounds, `method`.
    """
    regions = [dataclasses.asdict(region) for region in certificate.regions]
    return {
        "certified_share": sum(region.share for region in certificate.regions if region.certified),
        "regions": regions,
        **{name: getattr(certificate, name) for name in ("tolerance", "risk", "confidence")},
        "unit": UNIT,
        "method": "regions found on half of the episodes and judged on the other; bound: hierarchical split-conformal, "
        "of a step of a new episode at 1 - risk; certified: betting test of the risk, in fixed sequence",
    }


def inside_certified(
    certificate: Certificate, flat: np.ndarray, errors: np.ndarray, episode: np.ndarray, seed: int
) -> dict[str, Any]:
    """What a certificate is worth on other transitions: plain JSON.

    Returns:
      `share` of the `N` transitions, from states `[N, D]`, that it covers; `exceeding`: share of those whose error
      exceeds the tolerance, with an interval over episodes.
    """
    own = certificate.label(flat)
    inside = np.array([region.certified for region in certificate.regions])[own]
    if inside.any():
        over = cluster_mean_interval((errors[inside] > certificate.tolerance).astype(float), episode[inside], seed)
    else:
        over = Estimate(None, None, None, 0, "no transition begins in a certified state")
    return {"share": float(inside.mean()), "exceeding": over.to_json()}


def transition_errors(world: WorldModel, steps: Steps) -> np.ndarray:
    """How wrong the ensemble's average prediction of each transition is: float64 `[N]`.

    The largest of: the root mean square over the numbers that change, each as a share of the standard deviation of its
    change in one step of the training logs; 1 if a category is predicted wrongly, or the end (by .5); the reward's
    error in standard deviations of the logs' rewards. Infinite where the prediction broke.
    """
    mean, after = steps.said.prediction.mean(axis=1, dtype=np.float64), steps.after
    numbers = np.flatnonzero(steps.numbers)
    error = np.zeros(len(steps))
    if len(numbers):
        scale = _change_scale(steps.codec)[numbers]
        error = np.sqrt(np.mean(((mean[:, numbers] - after[:, numbers]) / scale) ** 2, axis=1))
    own = _categories(steps.codec)
    error = np.maximum(error, (np.rint(mean[:, own]) != after[:, own]).any(axis=1).astype(float))
    error = np.maximum(error, ((steps.said.end.mean(axis=1) > 0.5) != steps.terminated).astype(float))
    reward = world.dynamics.codec.reward
    if not reward.constant:
        error = np.maximum(
            error, np.abs(steps.said.reward.mean(axis=1, dtype=np.float64) - steps.reward) / reward.scale
        )
    return np.where(np.isfinite(error), error, np.inf)


def hierarchical_bound(errors: np.ndarray, episode: np.ndarray, risk: float) -> float | None:
    """What a step drawn from a new episode stays within with a probability of at least `1 - risk`.

    Split-conformal with the episode as the unit (Lee, Barber and Willett 2023, "Distribution-free inference with
    hierarchical data", arXiv 2306.06342): each of the `K` episodes weighs `1 / (K + 1)`, shared by its steps. None with
    fewer than `ceil(1 / risk) - 1` episodes.

    Args:
      errors: float `[N]`.
      episode: int `[N]`.
      risk: between 0 and 1.
    """
    if not len(errors):
        return None
    _, group, count = np.unique(episode, return_inverse=True, return_counts=True)
    order = np.argsort(errors, kind="stable")
    mass = np.cumsum(1.0 / count[group][order]) / (len(count) + 1)
    place = int(np.searchsorted(mass, 1.0 - risk - 1e-9))
    if place == len(mass) or not math.isfinite(errors[order][place]):
        return None
    return float(errors[order][place])


def risk_p_value(shares: np.ndarray, risk: float) -> float:
    """P-value of "the mean of these independent shares, each in [0, 1], is above `risk`", at any number of them.

    The capital of a bet that wins where shares are below the risk, and never goes broke (Waudby-Smith and Ramdas 2024,
    "Estimating means of bounded random variables by betting", arXiv 2010.09686): stakes are set by the variance so far,
    so that shares which vary little need few episodes.
    """
    count = np.arange(1, len(shares) + 1)
    mean = (0.5 + np.cumsum(shares)) / (count + 1)
    variance = (0.25 + np.cumsum((shares - mean) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], variance[:-1]])
    stake = np.minimum(np.sqrt(2 * math.log(10) / (before * max(len(shares), 1))), 0.9 / (1.0 - risk))
    capital = np.cumsum(np.log1p(stake * (risk - shares)))
    return math.exp(-float(capital.max(initial=0.0)))


def _fixed_sequence(judged: Sequence[np.ndarray], promise: Sequence[float], risk: float, level: float) -> set[int]:
    """Regions that keep the risk: tested from the most promising on until one fails, so that no correction is needed.

    `judged`: see `_shares`, by region; `promise`: the smaller the more promising, from other episodes.
    """
    kept: set[int] = set()
    for number in np.argsort(promise, kind="stable").tolist():
        if risk_p_value(judged[number], risk) > level:
            break
        kept.add(number)
    return kept


def _shares(over: np.ndarray, episode: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Share of the steps `own` that are over the tolerance, float `[K]`, of every episode that has any."""
    if not own.any():
        return np.zeros(0)
    _, group, count = np.unique(episode[own], return_inverse=True, return_counts=True)
    return np.bincount(group, over[own]) / count


def state_numbers(world: WorldModel, steps: Steps) -> np.ndarray:
    """What rules may go by: float64 `[N, D]`, with no columns for pictures and for more than `MAX_FEATURES`."""
    codec = world.dynamics.codec.observation
    if isinstance(codec, TreeCodec) and codec.pictures:
        return np.zeros((len(steps), 0))
    flat = flat_observations(world, steps.obs)
    return flat if flat.shape[1] <= MAX_FEATURES else flat[:, :0]


def _features(flat: np.ndarray, signed: Sequence[int]) -> np.ndarray:
    """What rules go by, `[N, F]`: the numbers of the state, and the sizes of those that take both signs."""
    return np.concatenate([flat, np.abs(flat[:, list(signed)])], axis=1)


def _find(
    errors: np.ndarray, episode: np.ndarray, flat: np.ndarray, names: Sequence[str], seed: int
) -> tuple[Node, Sequence[str], Sequence[int], np.ndarray]:
    """Rules, their words, which numbers take both signs, and which steps judge: those of the other half of episodes."""
    if not flat.shape[1]:
        return Node(region=0), ("everywhere",), [], np.ones(len(flat), bool)
    numbers, words = named_features(flat, names)
    found = find_regions(numbers, errors, np.ones(len(errors)), episode, words, seed=seed)
    return found.root, found.rules, signed_numbers(flat), ~np.isin(episode, found.held_in)


def _change_scale(codec: SpaceCodec) -> np.ndarray:
    """Standard deviation of the change of every number `[C]`, of the training logs."""
    if isinstance(codec, TreeCodec):
        return np.concatenate([np.array(leaf.delta_scale) for _, leaf in codec.boxes])
    return np.array(codec.delta_scale if isinstance(codec, BoxCodec) else [1.0])


def _categories(codec: SpaceCodec) -> slice:
    """Which dimensions are categories."""
    if isinstance(codec, DiscreteCodec):
        return np.s_[:1]
    if isinstance(codec, TreeCodec):
        return np.s_[codec.numbers : codec.numbers + codec.sites]
    return np.s_[:0]
