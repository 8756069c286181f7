"""What a user may pass to an environment, checked once, at the border: each error is one line."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from worldmodel.envs.rendering import STATE_OF, can_draw
from worldmodel.perturbations import Perturbations
from worldmodel.spaces import map_columns, steps_of
from worldmodel.training.checkpoint import WorldModel, load
from worldmodel.trajectory import Spec, Trajectory, suggest

BOUND_SLACK = 1e-5
"""How far an action may lie outside its bounds, relative to its size or 1: the rounding of float32."""


def open_world_model(checkpoint: Any) -> WorldModel:
    """The model that `checkpoint`, a run folder or a `WorldModel`, stands for; `ValueError` for anything else."""
    if isinstance(checkpoint, WorldModel):
        return checkpoint
    if isinstance(checkpoint, (str, os.PathLike)):
        return load(checkpoint)
    raise ValueError(f"checkpoint is {checkpoint!r}; a run folder or a WorldModel is needed")


def step_limit(max_episode_steps: int | None, spec: Spec) -> int | None:
    """The time limit: None asks for the real environment's, -1 for none."""
    if max_episode_steps is None:
        return spec.max_episode_steps
    if max_episode_steps == -1:
        return None
    if max_episode_steps < 1:
        raise ValueError(f"max_episode_steps is {max_episode_steps}; at least 1 is needed, or -1 for no limit")
    return int(max_episode_steps)


def check_render_mode(render_mode: str | None, spec: Spec) -> str | None:
    """`render_mode` itself; `ValueError` for an unknown one, or for an environment that cannot be drawn."""
    if render_mode is None:
        return None
    if render_mode != "rgb_array":
        raise ValueError(f"render_mode is {render_mode!r}; None and 'rgb_array' are supported")
    if not can_draw(spec):
        raise ValueError(
            f"observations of {spec.env_id or 'logs without an environment id'} cannot be drawn; "
            f"render_mode='rgb_array' is supported for images, and for {', '.join(STATE_OF)}"
        )
    return render_mode


def check_options(options: Mapping[str, Any] | None, allowed: Sequence[str]) -> None:
    """`ValueError` for a reset option that would be ignored."""
    for name in options or ():
        if name not in allowed:
            known = f"known are {', '.join(allowed)}" if allowed else "the simulator has none"
            raise ValueError(f"reset option {name!r} is not known; {known}{suggest(name, allowed)}")


STARTS = ("start", "prefix", "context")
"""Reset options that `check_start` reads."""


class Start(NamedTuple):
    """How `B` episodes are to begin; None: drawn.

    first: observations, columns `[B, ...]`; context: encoded, float32 `[B, C]`; prefix: what every one lives through.
    """

    first: Any
    context: np.ndarray | None
    prefix: Trajectory | None


def check_start(
    options: Mapping[str, Any] | None, model: WorldModel, limit: int | None, num_envs: int | None = None
) -> Start:
    """What the options of `STARTS` ask for: of `num_envs` environments, or, where it is None, of a single one.

    Raises:
      ValueError: an option is not of the spaces, unknown to the model, or leaves no step to take.
    """
    options = options or {}
    rows = num_envs or 1
    first, prefix, given = None, options.get("prefix"), "context" in options
    contexts = options.get("context")
    if prefix is not None:
        _check_prefix(prefix, options, model.spec, limit)
        first = map_columns(lambda column: np.repeat(np.asarray(column[:1]), rows, axis=0), prefix.observations)
        given, contexts = True, prefix.context
    elif "start" in options:
        first = options["start"]
        if num_envs is None:
            first = map_columns(lambda part: np.asarray(part)[None], first)
        model.spec.check(first, "observation", where="reset option 'start'")
        if steps_of(first) != rows:
            raise ValueError(f"reset option 'start' has {steps_of(first)} rows; one for each of {rows} is needed")
    if not given:
        return Start(first, None, prefix)
    if not isinstance(contexts, list) or num_envs is None:
        contexts = [contexts] * rows
    if len(contexts) != rows:
        raise ValueError(f"reset option 'context' has {len(contexts)} items; one for each of {rows} is needed")
    codec = model.dynamics.codec.context
    for context in contexts:
        codec.check(context)
    return Start(first, codec.encode(contexts), prefix)


def _check_prefix(prefix: Any, options: Mapping[str, Any], spec: Spec, limit: int | None) -> None:
    for other in ("start", "context"):
        if other in options:
            raise ValueError(f"reset options '{other}' and 'prefix' exclude each other")
    if not isinstance(prefix, Trajectory):
        raise ValueError(f"reset option 'prefix' is of type {type(prefix).__name__}; a Trajectory is needed")
    prefix.validate(spec, where="reset option 'prefix'")
    if prefix.terminated or (limit is not None and len(prefix) >= limit):
        raise ValueError(f"reset option 'prefix' ends the episode after {len(prefix)} steps; none is left")


def check_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """One seed per environment: `seed + i` of a number, the items of a list."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"{len(seed)} seeds for {num_envs} environments; one number, or one seed for each, is needed")
    return [None if s is None else int(s) for s in seed]


def check_reset_mask(mask: Any, num_envs: int) -> np.ndarray:
    """Bool `[num_envs]`, at least one true."""
    mask = np.asarray(mask)
    if mask.dtype != np.bool_ or mask.shape != (num_envs,):
        raise ValueError(f"reset_mask has dtype {mask.dtype} and shape {mask.shape}; bool and ({num_envs},) are needed")
    if not mask.any():
        raise ValueError("reset_mask selects no environment; at least one is needed")
    return mask


def check_action(space: gym.Space, action: Any, name: str = "action") -> Any:
    """One action as an array `[1, ...]` of the space's dtype; of a Dict or Tuple as a dict or tuple of them.

    Raises:
      ValueError: it has another shape or kind of dtype than the space, is not finite, or lies out of bounds by more
        than `BOUND_SLACK`; within the slack it is moved to the bound.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = _parts(space, action, name)
        return _built(space, [check_action(part, value, f"{name} {key!r}") for key, part, value in parts])
    values = _as_numbers(space, action, name)
    if values.shape != space.shape:
        raise ValueError(f"{name} has shape {values.shape}; {space.shape} is needed")
    return _within(space, values[None], np.ones(1, np.bool_), name)


def check_actions(space: gym.Space, actions: Any, acting: np.ndarray, part: str = "") -> Any:
    """Actions of a batch as an array `[B, ...]` of the single space's dtype; see `check_action`.

    Where `acting` (bool `[B]`) is false the row is not looked at, and replaced by an action of the space.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = _parts(space, actions, f"actions{part}")
        return _built(space, [check_actions(leaf, value, acting, f"{part} {key!r}") for key, leaf, value in parts])
    values = _as_numbers(space, actions, f"actions{part}")
    shape = (len(acting), *(space.shape or ()))
    if values.shape != shape:
        raise ValueError(f"actions{part} have shape {values.shape}; {shape} is needed")
    return _within(space, values, acting, f"action{part} of environment {{row}}")


def _parts(space: Any, value: Any, name: str) -> list[tuple[Any, gym.Space, Any]]:
    """Key, space and value of every part; `ValueError` where the value is not built as the space is."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{name} is {found}; a dict with the keys {sorted(space.spaces)} is needed")
        return [(key, part, value[key]) for key, part in space.spaces.items()]
    if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
        found = f"{len(value)} parts" if isinstance(value, (tuple, list)) else type(value).__name__
        raise ValueError(f"{name} is {found}; a tuple of {len(space.spaces)} is needed")
    return [(place, part, value[place]) for place, part in enumerate(space.spaces)]


def _built(space: Any, values: list[Any]) -> Any:
    return dict(zip(space.spaces, values, strict=True)) if isinstance(space, spaces.Dict) else tuple(values)


def _as_numbers(space: gym.Space, action: Any, name: str) -> np.ndarray:
    try:
        values = np.asarray(action)
    except ValueError:
        raise ValueError(f"{name} cannot be read as one array: its parts differ in shape") from None
    integers = isinstance(space, spaces.Discrete) or np.issubdtype(space.dtype, np.integer)
    if isinstance(space, spaces.MultiBinary) and values.dtype == np.bool_:
        values = values.astype(space.dtype)
    if not np.issubdtype(values.dtype, np.integer if integers else np.number) or values.dtype.kind == "c":
        needed = "integers are" if integers else "real numbers are"
        raise ValueError(f"{name} has dtype {values.dtype}; {needed} needed for {space}")
    return values


def _within(space: gym.Space, values: np.ndarray, acting: np.ndarray, name: str) -> np.ndarray:
    rows = acting.reshape(-1, *[1] * (values.ndim - 1))
    if isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
        slack = 0
    elif isinstance(space, spaces.MultiDiscrete):
        low, high, slack = space.start, space.start + space.nvec - 1, 0
    elif isinstance(space, spaces.MultiBinary):
        low, high, slack = np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype), 0
    elif isinstance(space, spaces.Box):
        low, high = space.low, space.high
        _refuse(rows & ~np.isfinite(values), values, name, "every value must be finite")
        slack = BOUND_SLACK * np.maximum(1.0, np.abs(np.where(rows, values, 0)))
    else:
        raise ValueError(f"action space {space} is not supported")
    outside = (values < low - slack) | (values > high + slack)
    _refuse(rows & outside, values, name, f"it must lie in {_short(low)}..{_short(high)}")
    rest = np.clip(np.zeros_like(low), low, high)
    return np.clip(np.where(rows, values, rest), low, high).astype(space.dtype)


def _short(bound: np.ndarray) -> str:
    """A bound as text: one number where every element has the same."""
    same = bound.size > 0 and (bound == bound.flat[0]).all()
    return str(bound.flat[0]) if same else " ".join(np.array2string(bound, threshold=8, separator=", ").split())


def _refuse(bad: np.ndarray, values: np.ndarray, name: str, rule: str) -> None:
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        text = " ".join(np.array2string(values[row], threshold=8, separator=", ").split())
        raise ValueError(f"{name.format(row=row)} is {text}; {rule}")


def recorded_spec(spec: EnvSpec | None, limit: int | None, model: WorldModel) -> EnvSpec | None:
    """The `EnvSpec` that an environment keeps: with its time limit, and with arguments that JSON can hold.

    A loaded model is named by its run folder where it has one.
    """
    if spec is None:
        return None
    kwargs = dict(spec.kwargs)
    checkpoint = kwargs.get("checkpoint")
    if isinstance(checkpoint, os.PathLike):
        kwargs["checkpoint"] = os.fspath(checkpoint)
    elif checkpoint is model and (Path(model.run) / "config.json").is_file():
        kwargs["checkpoint"] = os.fspath(model.run)
    for name in ("autoreset_mode", "trust"):
        if isinstance(kwargs.get(name), enum.Enum):
            kwargs[name] = kwargs[name].value
    if kwargs.get("perturb") is not None:
        kwargs["perturb"] = Perturbations.of(kwargs["perturb"]).to_json()
    return dataclasses.replace(spec, kwargs=kwargs, max_episode_steps=limit)
