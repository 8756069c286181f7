"""One-step errors where each policy really goes: those on the logs are about the logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.certificate import Certificate
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.certify import inside_certified, state_numbers, transition_errors
from worldmodel.fidelity.effort import QUICK, Effort
from worldmodel.fidelity.ends import ends_of, success_threshold
from worldmodel.fidelity.estimates import Estimate
from worldmodel.fidelity.invariants import Invariant, violations
from worldmodel.fidelity.replay import gather, teacher_forced
from worldmodel.fidelity.sampled_steps import sampled_steps
from worldmodel.fidelity.single_steps import INTERVAL, step_errors
from worldmodel.fidelity.steps import Steps
from worldmodel.fidelity.value_aware import value_error_estimates
from worldmodel.fidelity.value_function import ValueFunction, fit_value
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Trajectory

ENOUGH = 4
"""Episodes that a value function is fitted on, at least."""


def visits(
    world: WorldModel,
    run: Mapping[str, Sequence[Trajectory]],
    *,
    seed: int = 0,
    effort: Effort = QUICK,
    invariants: Mapping[str, Invariant] | None = None,
    batch: int | None = None,
    certificate: Certificate | None = None,
) -> dict[str, Any]:
    """Replays some real episodes of every policy through the model, with everything before each step real.

    Args:
      world: the model.
      run: real episodes by policy.
      seed: of what is drawn.
      effort: how many episodes of each, and how long.
      invariants: as in `single_steps.one_step`.
      batch: episodes that run at once; that of another replay saves a compilation.
      certificate: whose states are held against the policies' own steps.

    Returns:
      Plain JSON: `by_policy[{name, ...}]` in the given order with what `step_errors`, `sampled_steps` and `ends_of`
      return, `episodes`, `transitions`, and `value_aware`: `mean` and `squared` as `value_error_estimates`, by a value
      function fitted on the policy's other real episodes (`r2`); `certified` as `inside_certified`;
      `sample`: what was replayed; `interval`.
    """
    rng = np.random.default_rng([seed, 3])
    replayed: dict[str, list[int]] = {}
    for name, episodes in run.items():
        most = min(effort.visits, max(len(episodes) // 2, 1))
        replayed[name] = sorted(rng.choice(len(episodes), most, replace=False).tolist())
    chosen = [run[name][i] for name, picks in replayed.items() for i in picks]
    columns = Columns.from_trajectories(chosen)
    above = success_threshold(Columns.from_trajectories([t for episodes in run.values() for t in episodes]))
    steps = int(min(columns.lengths.max(), effort.visit_steps))
    replay = gather(columns, np.arange(columns.episodes), np.zeros(columns.episodes, np.int64), steps)
    forced = teacher_forced(
        world, replay, seed, success_above=math.inf if above is None else above, batch=batch or columns.episodes
    )
    everything = Steps.of(world.dynamics.codec.observation, replay, forced)
    owner = np.repeat(np.arange(len(run)), [len(picks) for picks in replayed.values()])[everything.place]
    out = []
    for index, (name, picks) in enumerate(replayed.items()):
        own = everything.take(owner == index)
        rest = [t for i, t in enumerate(run[name]) if i not in picks]
        found = {
            "name": name,
            **step_errors(world, own, has_rewards=columns.has_rewards, seed=seed),
            **sampled_steps(own, effort=effort, seed=seed, samples=effort.visit_samples),
            "termination": ends_of(own, above, seed),
            "value_aware": _value_aware(own, rest, world.spec.max_episode_steps, seed),
            "episodes": len(picks),
            "transitions": len(own),
        }
        if certificate is not None:
            judged = state_numbers(world, own), transition_errors(world, own), own.episode
            found["certified"] = inside_certified(certificate, *judged, seed)
        if invariants:
            found["invariants"] = violations(invariants, own, seed)
        out.append(found)
    sample = f"up to {effort.visits} real episodes of each policy, at most {effort.visit_steps} steps of each"
    return {"by_policy": out, "sample": sample, "interval": INTERVAL}


def _value_aware(steps: Steps, others: Sequence[Trajectory], limit: int | None, seed: int) -> dict[str, Any]:
    why = None
    if len(others) < ENOUGH:
        why = f"a value function needs {ENOUGH} real episodes that are not replayed; there are {len(others)}"
    elif steps.said.drawn is None:
        why = "sampled pictures are not kept"
    if why is not None:
        nothing = Estimate(None, None, None, len(np.unique(steps.episode)), why).to_json()
        return {"mean": nothing, "squared": nothing, "r2": None}
    value = _fitted(steps, others)
    rows, member = np.arange(len(steps)), steps.member(seed)
    reward, end = (x[rows, member, 0].astype(np.float64) for x in (steps.said.drawn_reward, steps.said.drawn_end))
    drawn = steps.flat(steps.drawn(seed))
    after = steps.time + 1
    goes_on = np.ones(len(steps)) if limit is None else 1.0 * (after < limit)
    promised = reward + goes_on * (1.0 - end) * value(drawn, after)
    kept = steps.reward + goes_on * ~steps.terminated * value(steps.after, after)
    if not np.isfinite(promised).all():
        nothing = Estimate(None, None, None, len(np.unique(steps.episode)), "a sample is not finite").to_json()
        return {"mean": nothing, "squared": nothing, "r2": value.r2}
    found = value_error_estimates(promised - kept, steps.given, steps.episode, seed)
    return {
        **{name: estimate.to_json() for name, estimate in found.items()},
        "r2": value.r2,
        "method": "units of return per step, no discount; squared: product with the nearest step of another episode",
    }


def _fitted(steps: Steps, episodes: Sequence[Trajectory]) -> ValueFunction:
    columns = Columns.from_trajectories(episodes)
    transitions = columns.transitions()
    time = np.arange(len(columns)) - columns.starts[columns.episode_of]
    paid = columns.rewards.astype(np.float64)
    earned = np.cumsum(paid) - paid
    to_come = columns.returns[columns.episode_of] - (earned - earned[columns.starts][columns.episode_of])
    return fit_value(steps.flat(transitions.obs), time, to_come)
