"""What a page shows of an imagined episode beside a real one."""

from __future__ import annotations

from worldmodel.envs.names import observation_names
from worldmodel.envs.rendering import frames
from worldmodel.fidelity import PairedRollout
from worldmodel.report.evidence import Evidence
from worldmodel.trajectory import Spec

SHOWN_STEPS, SHOWN_FRAMES = 200, 100
"""How much of an episode."""


def evidence_of(spec: Spec, pair: PairedRollout) -> Evidence:
    """The pair with pictures, where the environment's family can be drawn from its observations."""
    steps = min(len(pair.imagined_obs), len(pair.real_obs), SHOWN_STEPS + 1)
    every = max(1, (steps - 1) // SHOWN_FRAMES)
    steps = 1 + (steps - 1) // every * every
    shown = {
        "imagined_obs": pair.imagined_obs[:steps],
        "real_obs": pair.real_obs[:steps],
        "imagined_rewards": pair.imagined_rewards[: steps - 1],
        "real_rewards": None if pair.real_rewards is None else pair.real_rewards[: steps - 1],
        "imagined_end": pair.imagined_end if steps == len(pair.imagined_obs) else None,
        "real_end": pair.real_end if steps == len(pair.real_obs) else None,
    }
    env_id = spec.env_id
    imagined, real = (
        frames(env_id, obs, env_kwargs=dict(spec.env_kwargs), every=every) if env_id else None
        for obs in (shown["imagined_obs"], shown["real_obs"])
    )
    names = observation_names(env_id, pair.real_obs.shape[1])
    return Evidence(**shown, obs_names=names, imagined_frames=imagined, real_frames=real, frame_every=every)
