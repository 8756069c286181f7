"""Recording logs: a real Gymnasium environment under a mixture of behaviours."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from worldmodel.agents.behaviour import Behaviour, Policy, parse_behaviours
from worldmodel.agents.counting import CountSteps, StepLedger
from worldmodel.agents.past import Past
from worldmodel.codec import check_kinds
from worldmodel.sources.gymnasium import MAX_STEPS, make_env
from worldmodel.trajectory import Spec, Trajectory


def rebuild_env(spec: Spec, **kwargs: Any) -> gymnasium.Env:
    """The environment that `spec` was read from, with its arguments and its time limit; `ValueError` as `make_env`."""
    if spec.env_id is None:
        raise ValueError("these logs name no environment, so there is no real one to step")
    limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
    return make_env(spec.env_id, {**spec.env_kwargs, **limit, **kwargs})


def record(
    env_id: str,
    *,
    behaviours: Sequence[str],
    episodes: int,
    seed: int,
    env_kwargs: Mapping[str, Any] | None = None,
    max_steps: int = MAX_STEPS,
    ledger: StepLedger | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Spec, Iterator[Trajectory]]:
    """Runs real episodes, shared evenly among `behaviours`; the same arguments give the same episodes.

    Random and sticky behaviours come first, because the others learn from what was recorded before them.
    An episode that reaches `max_steps` without an end is cut: neither terminated nor truncated.

    Args:
      env_id: Gymnasium id.
      behaviours: as `parse_behaviour` reads them; one named twice gets two shares.
      episodes: number of episodes in all.
      seed: of episodes and behaviours alike.
      env_kwargs: of `gymnasium.make`.
      max_steps: for environments without a limit of their own.
      ledger: where the steps are counted, on phase "logs".
      progress: called with (episodes done, steps done) after each.

    Returns:
      The spec, and an iterator of trajectories that takes the steps as it is consumed.

    Raises:
      ValueError: unknown id or behaviour, a space that is not supported, or fewer than one episode.
    """
    mixture = sorted(parse_behaviours(behaviours), key=lambda behaviour: behaviour.uses_past)
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 is needed")
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}; at least 1 is needed")
    env = make_env(env_id, env_kwargs)
    try:
        # The id as it was given: with "module:" in front, another process finds it, too.
        spec = dataclasses.replace(Spec.from_gymnasium(env), env_id=env_id)
        check_kinds(spec)
        mixture[0].begin(spec, Past(spec), np.random.default_rng(0))  # refuses action spaces early
    except ValueError as error:
        env.close()
        raise ValueError(f"environment {env_id!r}: {error}") from None
    if ledger is not None:
        env = CountSteps(env, ledger, "logs")
    shares = [episodes // len(mixture) + (i < episodes % len(mixture)) for i in range(len(mixture))]
    plan = [behaviour for behaviour, share in zip(mixture, shares, strict=True) for _ in range(share)]
    return spec, _episodes(env, spec, plan, seed, max_steps, progress)


def _episodes(
    env: gymnasium.Env,
    spec: Spec,
    plan: list[Behaviour],
    seed: int,
    max_steps: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Trajectory]:
    past = Past(spec)
    steps = 0
    try:
        for index, behaviour in enumerate(plan):
            name = f"{spec.env_id}/{seed}/{index:06d}"
            episode_seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") // 2
            policy = behaviour.begin(spec, past, np.random.default_rng([seed % 2**63, index]))
            info = {"id": name, "source": "recorded", "policy": behaviour.name, "seed": episode_seed}
            trajectory = run_episode(env, policy, episode_seed, max_steps, info)
            past.absorb(trajectory, policy.rule)
            steps += len(trajectory)
            if progress is not None:
                progress(index + 1, steps)
            yield trajectory
    finally:
        env.close()


def run_episode(
    env: gymnasium.Env,
    policy: Policy,
    seed: int,
    max_steps: int,
    info: Mapping[str, Any],
) -> Trajectory:
    """One real episode under `policy`, of at most `max_steps` steps."""
    obs, _ = env.reset(seed=seed)
    # Copies: an environment may hand out one buffer again and again.
    observations, actions, rewards = [np.array(obs)], [], []
    terminated = truncated = False
    while not (terminated or truncated) and len(actions) < max_steps:
        action = policy.act(obs)
        actions.append(np.array(action))
        obs, reward, terminated, truncated, _ = env.step(action)
        observations.append(np.array(obs))
        rewards.append(reward)
    observed, acted = np.array(observations), np.array(actions)
    return Trajectory(
        observations=observed,
        actions=acted,
        rewards=np.array(rewards, np.float32),
        terminated=bool(terminated),
        # A step can be both; what the task said outweighs the clock.
        truncated=bool(truncated and not terminated),
        action_log_prob=policy.log_probs(observed, acted).astype(np.float32),
        info=info,
    )
