"""How often a language world model's next turn is exactly the logged one, beside two floors, on held-out episodes.

Teacher-forced: every turn is predicted from the logged past. A turn counts as right where greedy decoding says just the
logged text (`worldmodel.codec.text.matches`), so that one pass over the logs measures it. Nothing is dropped: what was
cut to fit the model, or fits in no row, counts as wrong for the model and is counted.

Turns are split by labels that look at no prediction: whether the observation differs from the one before (`changed`),
and where its words come from (`derivable`: all are in the context, the observations so far or the action; else `seen`:
the training split holds just this observation; else `never_observed`, which no amount of training could tell it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.codec.text.codec import Kind
from worldmodel.codec.text.episode import json_text, prepare
from worldmodel.codec.text.matches import matches_of
from worldmodel.codec.text.samples import Sample, samples_of
from worldmodel.corpus import Corpus
from worldmodel.corpus.packing import best_fit
from worldmodel.fidelity.estimates import cluster_rate_interval, cluster_ratio_interval
from worldmodel.fidelity.text_floors import Answer, NearestLogged, turns_of
from worldmodel.model.text_dynamics import TextDynamics
from worldmodel.training.text.step import TokenBatch, Weights, make_text_scores, with_member_axis
from worldmodel.trajectory import Trajectory

SOURCES = ("derivable", "seen", "never_observed")
PARTS = ("observation", "reward", "terminated", "all")
ROWS = 8
"""Rows of tokens that the model reads at once."""
STEPS = 10
"""Steps shown one by one; later ones are together, in the last place."""

_WORD = re.compile(r"\w+")


def text_open_loop(
    dynamics: TextDynamics, corpus: Corpus, *, episodes: int | None = 200, seed: int = 0
) -> dict[str, Any]:
    """Measures a language world model on the real held-out episodes of a corpus.

    Args:
      dynamics: the model (`worldmodel.load(run).dynamics`).
      corpus: that it learned from; the nearest logged turn and what was seen are of its training split.
      episodes: how many held-out episodes at most, chosen by `seed`; None: all.
      seed: of that and of the intervals.

    Returns:
      Plain JSON: `episodes`, `turns`, `cut_or_unfit`; `nll`, nats a token by part; `exact_match` of each of `PARTS`
      for the `model` and both floors; `ends`, those found and those invented; `by_step`, `changed`, `source`: the
      observation's exact match in strata. Estimates are `{"mean", "lo", "hi", "n"}`, `n` episodes; intervals resample
      episodes.

    Raises:
      ValueError: no real episode is held out.
    """
    held_out = corpus.split("held_out") & ~corpus.index.synthetic
    if not held_out.any():
        raise ValueError(f"corpus {corpus.path}: no real episode is held out")
    places = np.flatnonzero(held_out)
    if episodes is not None and len(places) > episodes:
        places = np.sort(np.random.default_rng(seed).choice(places, episodes, replace=False))
    chosen = np.zeros(corpus.episodes, np.bool_)
    chosen[places] = True
    logged = list(corpus.stored(keep=chosen))
    training = corpus.stored("train")
    turns = [turn for trajectory in logged for turn in turns_of(trajectory)]
    episode = np.repeat(np.arange(len(logged)), [len(trajectory) for trajectory in logged])
    truth = [answer for _, _, answer in turns]
    nearest = NearestLogged(training).answer([(before, action) for before, action, _ in turns])
    right, unfit, nll = _model(dynamics, logged)
    matched = {
        "model": right,
        "repeat_last": _matches(truth, [answer for t in logged for answer in _repeated(t)]),
        "nearest_logged": _matches(truth, nearest),
    }
    known = np.array([answer.reward is not None for answer in truth])
    every = np.ones(len(turns), np.bool_)

    def rate(events: np.ndarray, among: np.ndarray) -> dict[str, Any]:
        return cluster_rate_interval(events, among, episode, seed).to_json()

    def strata(masks: dict[Any, np.ndarray]) -> dict[Any, Any]:
        return {
            name: {"turns": int(mask.sum()), **{who: rate(own[:, 0], mask) for who, own in matched.items()}}
            for name, mask in masks.items()
        }

    among = (every, known, every, every)
    over = np.array([answer.over for answer in truth])
    ended = {who: np.where(own[:, 2], over, ~over) for who, own in matched.items()}  # what each says of the end
    changed = np.array([before != answer.observation for before, _, answer in turns])
    step = np.concatenate([np.arange(len(trajectory)) for trajectory in logged])
    source = _sources(logged, training)
    return {
        "episodes": len(logged),
        "turns": len(turns),
        "cut_or_unfit": int(unfit.sum()),
        "nll": {
            name: cluster_ratio_interval(nats, counts, np.arange(len(logged)), seed).to_json()
            for name, (nats, counts) in nll.items()
        },
        "exact_match": {
            part: {who: rate(own[:, place], among[place]) for who, own in matched.items()}
            for place, part in enumerate(PARTS)
        },
        "ends": {who: {"found": rate(says, over), "false": rate(says, ~over)} for who, says in ended.items()},
        "changed": strata({"changed": changed, "unchanged": ~changed}),
        "source": strata({name: source == place for place, name in enumerate(SOURCES)}),
        "by_step": _by_step(matched, step, rate),
    }


def _by_step(matched: dict[str, np.ndarray], step: np.ndarray, rate: Any) -> dict[str, Any]:
    """Exact match of observations by step as parallel arrays, of the model and the floors; `x` counts from 1."""
    steps = [(step == t) if t + 1 < STEPS else (step >= t) for t in range(min(STEPS, int(step.max()) + 1))]
    curves: dict[str, Any] = {"x": [t + 1 for t in range(len(steps))]}
    for who, own in matched.items():
        rows = [rate(own[:, 0], mask) for mask in steps]
        curves[who] = {name: [row[name] for row in rows] for name in ("mean", "lo", "hi", "n")}
    if int(step.max()) + 1 > STEPS:
        curves["note"] = f"the last place holds step {STEPS} and all later ones"
    return curves


def _repeated(trajectory: Trajectory) -> list[Answer]:
    """The floor that nothing changes: the last observation, the last reward, and the episode goes on."""
    paid = 0.0
    found = []
    for before, _, answer in turns_of(trajectory):
        found.append(Answer(before, paid, False))
        paid = paid if answer.reward is None else answer.reward
    return found


def _matches(truth: Sequence[Answer], said: Sequence[Answer]) -> np.ndarray:
    """Bool `[turns, parts]`; rewards are compared as float32."""
    rows = []
    for true, own in zip(truth, said, strict=True):
        reward = true.reward is None or (own.reward is not None and np.float32(true.reward) == np.float32(own.reward))
        parts = [true.observation == own.observation, bool(reward), true.over == own.over]
        rows.append([*parts, all(parts)])
    return np.array(rows, np.bool_)


def _sources(logged: Iterable[Trajectory], training: Iterable[Trajectory]) -> np.ndarray:
    """Of every turn the place in `SOURCES` of its observation, from texts alone."""
    seen = {str(text) for trajectory in training for text in trajectory.observations[1:]}
    labels = []
    for trajectory in logged:
        known = set(_WORD.findall(json_text(trajectory.context)))
        for before, action, answer in turns_of(trajectory):
            known.update(_WORD.findall(before), _WORD.findall(action))
            if known.issuperset(_WORD.findall(answer.observation)):
                labels.append(0)
            else:
                labels.append(1 if answer.observation in seen else 2)
    return np.array(labels, np.int64)


def _model(dynamics: TextDynamics, logged: Sequence[Trajectory]) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Matches bool `[turns, parts]`, turns that were cut or fit nowhere, and by part each episode's nats and tokens."""
    codec, length = dynamics.codec, dynamics.length
    begin = np.concatenate([[0], np.cumsum([len(trajectory) for trajectory in logged])])
    right, unfit = np.zeros((begin[-1], len(PARTS)), np.bool_), np.ones(begin[-1], np.bool_)
    samples: list[tuple[int, Sample]] = []
    for number, trajectory in enumerate(logged):
        samples += [(number, sample) for sample in samples_of(trajectory, codec, length)[0]]
    nats = {name: np.zeros((2, len(logged))) for name in ("token", *PARTS[:3])}
    kinds_of = {"observation": (Kind.OBSERVATION, Kind.END), "reward": (Kind.REWARD,), "terminated": (Kind.CLOSER,)}
    kinds_of["token"] = tuple(kind for own in kinds_of.values() for kind in own)
    for number, sample, log_prob, best in _scored(dynamics, samples):
        kinds = sample.tokens.kinds
        found = matches_of(sample.tokens.ids, kinds, best, codec.markers)
        here = slice(begin[number] + sample.first, begin[number] + sample.last)
        parts = np.stack(found[:3], axis=1)
        right[here] = np.concatenate([parts, parts.all(axis=1, keepdims=True)], axis=1)
        unfit[here] = False
        for name, own in kinds_of.items():
            learned = np.isin(kinds, own) & (best >= 0)
            nats[name][:, number] += -log_prob[learned].sum(), learned.sum()
    for number, trajectory in enumerate(logged):
        episode, _ = prepare(trajectory, codec.rules)
        for t, text in enumerate(episode.observations[1:]):
            unfit[begin[number] + t] |= text != str(trajectory.observations[t + 1])
    right[unfit] = False
    return right, unfit, {name: tuple(own) for name, own in nats.items()}


def _scored(
    dynamics: TextDynamics, samples: Sequence[tuple[int, Sample]]
) -> Iterable[tuple[int, Sample, np.ndarray, np.ndarray]]:
    """Every sample with the log-probability of its tokens and the likeliest ones."""
    length = dynamics.length
    score = make_text_scores(dynamics.config, Weights())
    params = with_member_axis(dynamics.params)
    row = best_fit(np.array([len(sample.tokens) for _, sample in samples], np.int64), length)
    order = np.argsort(row, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
    for start in range(0, len(rows), ROWS):
        tokens, segments = np.zeros((ROWS, length), np.int32), np.zeros((ROWS, length), np.int32)
        places = []
        for number, packed in enumerate(rows[start : start + ROWS]):
            end = 0
            for segment, place in enumerate(packed.tolist(), 1):
                ids = samples[place][1].tokens.ids
                here = slice(end, end + len(ids))
                tokens[number, here], segments[number, here] = ids, segment
                places.append((place, number, here))
                end += len(ids)
        batch = TokenBatch(jnp.asarray(tokens), jnp.zeros(tokens.shape, jnp.float32), jnp.asarray(segments))
        log_prob, best = jax.device_get(score(params, batch))
        for place, number, here in places:
            yield (*samples[place], log_prob[number, here], best[number, here])
