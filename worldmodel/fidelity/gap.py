"""Why a policy's simulated return differs from its real one: from real episodes to the waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.codec import TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.corpus.windows import rows_of
from worldmodel.envs.names import observation_names
from worldmodel.fidelity.attribution import attribute
from worldmodel.fidelity.partition import MAX_FEATURES, find_regions, named_features
from worldmodel.fidelity.policy_panel import simulated_returns
from worldmodel.fidelity.replay import flat_observations
from worldmodel.fidelity.value_residuals import Visits, draw_visits, value_residuals
from worldmodel.simulator import Policy
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Trajectory


def explain_gap(
    world: WorldModel,
    policy: Policy,
    episodes: Sequence[Trajectory],
    *,
    per_episode: int = 8,
    rollouts: int = 1,
    sim_episodes: int = 300,
    seed: int = 0,
) -> dict[str, Any]:
    """Attributes the gap between simulated and real return of a policy; plain JSON, see `attribution.attribute`.

    Regions are rules over named numbers of the observation, their sizes, and the action; they are found on half of the
    episodes and judged on the other.

    Args:
      world: the simulator.
      policy: the one that ran the episodes.
      episodes: real ones, each to its end or to the time limit, at least two.
      per_episode: visits whose value is estimated, of every episode; they stand for all of its steps.
      rollouts: pairs of imagined episodes per visit and member.
      sim_episodes: simulated episodes from the simulator's own beginnings.
      seed: of visits, halves and imagined episodes.

    Raises:
      ValueError: fewer than two episodes, one that was cut, or one without rewards.
    """
    if len(episodes) < 2:
        raise ValueError(f"{len(episodes)} real episode: a gap is attributed from at least 2")
    columns = Columns.from_trajectories(episodes)
    visits = draw_visits(columns.lengths, per_episode, seed)
    residuals = value_residuals(world, policy, columns, visits, rollouts=rollouts, seed=seed)
    features, names, why = _features(world, columns, visits)
    regions = None
    total = residuals.parts.sum(axis=1)
    if features is not None and np.isfinite(total).all():
        hint = residuals.distance
        hint = None if hint is None or not np.isfinite(hint).all() else hint
        regions = find_regions(features, total, visits.weight, visits.episode, names, hint=hint, seed=seed)
    out = attribute(
        residuals,
        simulated_returns(world, policy, episodes=sim_episodes, seed=seed),
        features=features,
        regions=regions,
    )
    return out if why is None else {**out, "regions_why": why}


def _features(
    world: WorldModel, columns: Columns, visits: Visits
) -> tuple[np.ndarray | None, tuple[str, ...], str | None]:
    """Features of the visits `[N, F]` and their names, or the reason why there are none."""
    codec = world.dynamics.codec
    if isinstance(codec.observation, TreeCodec) and codec.observation.pictures:
        return None, (), "observations are pictures: no numbers that a rule could name"
    obs = rows_of(columns.observations, columns.observation_starts[visits.episode] + visits.step)
    flat = flat_observations(world, obs)
    if flat.shape[1] > MAX_FEATURES:
        return None, (), f"observations have {flat.shape[1]} numbers; rules are made of at most {MAX_FEATURES}"
    numbers, names = named_features(flat, observation_names(world.spec.env_id, flat.shape[1]))
    action = np.asarray(codec.action.features(rows_of(columns.actions, columns.starts[visits.episode] + visits.step)))
    action = action.reshape(len(flat), -1).astype(np.float64)
    acts = [f"action[{i}]" for i in range(action.shape[1])]
    if world.spec.action_space["type"] == "Discrete":
        acts = [f"action is {i + world.spec.action_space['start']}" for i in range(action.shape[1])]
    return np.concatenate([numbers, action], axis=1), (*names, *acts), None
