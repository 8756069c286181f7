"""A yardstick for open-loop error: the true dynamics, disturbed at each step by a model's own one-step error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from worldmodel.agents.counting import CountSteps, StepLedger
from worldmodel.agents.record import rebuild_env
from worldmodel.envs.rendering import STATE_OF
from worldmodel.fidelity.replay import Replay
from worldmodel.trajectory import Spec

PHASE = "noise_reference"
TOLERANCE = 1e-3


def noise_reference(
    spec: Spec, after: Replay, noise: np.ndarray, scale: np.ndarray, *, seed: int, ledger: StepLedger
) -> tuple[np.ndarray | None, str | None]:
    """Real rollouts with the logged actions and independent normal noise on every observation.

    Needs an environment whose state follows from its observation, and checks that it is so: set to a logged
    observation it must give the logged next one. Its steps are no policy's; the ledger books them on "noise_reference".

    Args:
      spec: names the environment.
      after: `H` transitions of `E` starts; observations `[H+1, E, D]`.
      noise: standard deviation per dimension `[D]`, in units of the observation.
      scale: standard deviation of observations `[D]`, which the check is relative to.
      seed: of the noise.
      ledger: where the steps are counted.

    Returns:
      `(observations float64 [H, E, D], None)`, or `(None, why)` where the reference cannot be formed.
    """
    state_of, why = _state_of(spec, after.obs)
    if state_of is None:
        return None, why
    if not np.isfinite(noise).all():
        return None, "the model's one-step error is not finite"
    env = CountSteps(rebuild_env(spec, disable_env_checker=True).unwrapped, ledger, PHASE)
    rng = np.random.default_rng(seed)
    steps, starts = after.action.shape[:2]
    try:
        env.reset(seed=seed)
        first = np.stack([_step(env, state_of, after.obs[0, e], after.action[0, e], seed) for e in range(starts)])
        off = np.abs(first - after.obs[1]) / scale
        if np.mean(off.max(axis=1) > TOLERANCE) > 0.05:
            return None, "set to a logged observation, the real environment does not give the logged next one"
        out = np.empty((steps, starts, after.obs.shape[2]))
        disturbance = rng.normal(size=out.shape) * noise
        for e in range(starts):
            obs = after.obs[0, e]
            for t in range(steps):
                obs = _step(env, state_of, obs, after.action[t, e], seed) + disturbance[t, e]
                out[t, e] = obs
    finally:
        env.close()
    return out, None


def _state_of(spec: Spec, obs: np.ndarray) -> tuple[Callable[[np.ndarray], np.ndarray] | None, str | None]:
    if spec.env_id is None:
        return None, "the logs name no environment"
    family = spec.env_id.rsplit("/", 1)[-1].rsplit(":", 1)[-1].rsplit("-v", 1)[0]
    dims, state_of = STATE_OF.get(family, (0, None))
    if state_of is None or obs.shape[2:] != (dims,):
        return None, f"the state of {spec.env_id} cannot be set from an observation"
    return state_of, None


def _step(env: CountSteps, state_of: Callable, obs: np.ndarray, action: Any, seed: int) -> np.ndarray:
    inner = env.unwrapped
    inner.state = state_of(np.asarray(obs, np.float64))  # type: ignore[attr-defined]
    after, _, terminated, _, _ = env.step(action)
    if terminated:
        # An environment may remember that it ended; the state itself is set anew before the next step.
        env.reset(seed=seed)
    return np.asarray(after, np.float64)
