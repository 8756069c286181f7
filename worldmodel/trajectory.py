"""The one record of the project: a `Trajectory` and the `Spec` of the environment it came from.

Every reader converts to these two and nothing else travels further in.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium

SUPPORTED_SPACES = ("Box", "Discrete")


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One episode, or a cut piece of one, of `T` transitions `(o_t, a_t) -> (r_t, o_{t+1}, terminated_t)`.

    Attributes:
      observations: array `[T+1, ...]`; the last row is what the last action led to.
      actions: array `[T, ...]`.
      rewards: float32 `[T]`, or None where the log has none.
      terminated: the last transition reached a terminal state of the task.
      truncated: the last transition was cut by a limit. Neither: the log was cut.
      action_log_prob: float32 `[T]`, natural log of the behaviour policy's probability (or density)
        of each action; None where unknown.
      context: what holds for the whole episode and the model may see (instruction, physics), or None.
      info: plain JSON: `id`, `source`, `policy`, `seed`, split keys.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray | None
    terminated: bool
    truncated: bool
    action_log_prob: np.ndarray | None = None
    context: Any = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Number of transitions `T`."""
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of rewards; NaN where the log has none."""
        return float("nan") if self.rewards is None else float(np.sum(self.rewards, dtype=np.float64))

    def validate(self, spec: Spec | None = None, *, where: str = "trajectory") -> Trajectory:
        """Returns itself, or raises `ValueError` naming the field, the value, the rule and `where`."""
        steps = len(self.actions)
        if steps == 0:
            raise ValueError(f"{where}: holds no transition")
        if len(self.observations) != steps + 1:
            raise ValueError(
                f"{where}: {len(self.observations)} observations for {steps} actions; {steps + 1} are needed "
                "(the last is what the last action led to)"
            )
        for name in ("rewards", "action_log_prob"):
            column = getattr(self, name)
            if column is not None and np.shape(column) != (steps,):
                raise ValueError(f"{where}: {name} has shape {np.shape(column)}; ({steps},) is needed")
        if self.terminated and self.truncated:
            raise ValueError(f"{where}: is both terminated and truncated; the last step ended in one way")
        for name in ("observations", "actions", "rewards", "action_log_prob"):
            _check_finite(getattr(self, name), f"{where}, {name}")
        if spec is not None:
            spec.check(self.observations, "observation", where=where)
            spec.check(self.actions, "action", where=where)
        return self


def _check_finite(column: np.ndarray | None, where: str) -> None:
    if column is None or not np.issubdtype(np.asarray(column).dtype, np.floating):
        return
    finite = np.isfinite(column)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{where}: step {first[0]} holds {column[first]}; every value must be finite")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Spaces and limits of an environment as plain JSON.

    Attributes:
      observation_space: JSON of a space, e.g. `{"type": "Discrete", "n": 3, "start": 0}`.
      action_space: the same for actions.
      env_id: Gymnasium id, or None for logs of unknown origin.
      env_kwargs: keyword arguments of `gymnasium.make`, plain JSON.
      max_episode_steps: the time limit, or None.
    """

    observation_space: Mapping[str, Any]
    action_space: Mapping[str, Any]
    env_id: str | None = None
    env_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_episode_steps: int | None = None

    @classmethod
    def from_gymnasium(cls, env: gymnasium.Env) -> Spec:
        """Reads spaces, id and limit off an environment; `ValueError` for a space that is not supported."""
        spec = env.spec
        return cls(
            observation_space=space_to_json(env.observation_space, "observation"),
            action_space=space_to_json(env.action_space, "action"),
            env_id=spec.id if spec else None,
            env_kwargs=_plain_kwargs(spec.kwargs) if spec else {},
            max_episode_steps=spec.max_episode_steps if spec else None,
        )

    def to_gymnasium(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        """The observation and the action space as Gymnasium spaces (imports gymnasium)."""
        return space_from_json(self.observation_space), space_from_json(self.action_space)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; the inverse of `from_json`."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`; `ValueError` for an unknown field or a missing space."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in data:
            if name not in known:
                raise ValueError(f"spec has an unknown field {name!r}{suggest(name, known)}")
        for name in ("observation_space", "action_space"):
            if name not in data:
                raise ValueError(f"spec lacks {name!r}")
            check_supported(data[name].get("type"), name.removesuffix("_space"))
        return cls(**data)

    def check(self, values: np.ndarray, role: str, *, where: str = "value") -> None:
        """Raises `ValueError` unless `values` `[N, ...]` lie in the `role` ("observation" or "action") space.

        Bounds are compared with the tolerance of float32.
        """
        space = self.observation_space if role == "observation" else self.action_space
        values = np.asarray(values)
        shape = tuple(space["shape"]) if space["type"] == "Box" else ()
        if values.shape[1:] != shape:
            raise ValueError(f"{where}: {role} has shape {values.shape[1:]}; the space has {shape}")
        if space["type"] == "Discrete":
            if not np.issubdtype(values.dtype, np.integer):
                raise ValueError(f"{where}: {role} has dtype {values.dtype}; a Discrete space takes integers")
            low, high = space["start"], space["start"] + space["n"] - 1
            bad = (values < low) | (values > high)
            bounds = f"{low}..{high}"
        else:
            if not np.issubdtype(values.dtype, np.number):
                raise ValueError(f"{where}: {role} has dtype {values.dtype}; a Box takes numbers")
            low, high = box_bounds(space)
            slack = 1e-5 * np.maximum(1.0, np.nan_to_num(np.abs(values), nan=0.0, posinf=0.0))
            bad = ~((values >= low - slack) & (values <= high + slack))  # NaN is outside, too
            bounds = "its Box"
        if bad.any():
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(f"{where}: {role} at step {first[0]} is {values[first]}, outside {bounds}")


def box_bounds(space: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of a Box in JSON form, float64 in its shape; +-inf where unbounded."""
    low = np.array([-np.inf if v is None else v for v in space["low"]], np.float64)
    high = np.array([np.inf if v is None else v for v in space["high"]], np.float64)
    return low.reshape(space["shape"]), high.reshape(space["shape"])


def check_supported(kind: str | None, role: str) -> None:
    """Raises `ValueError` unless `kind` names a supported space type."""
    if kind not in SUPPORTED_SPACES:
        raise ValueError(f"{role} space {kind} is not supported; supported are {' and '.join(SUPPORTED_SPACES)}")


def space_to_json(space: Any, role: str) -> dict[str, Any]:
    """A `gymnasium.Space` as plain JSON; unbounded sides of a Box are null."""
    kind = type(space).__name__
    check_supported(kind, role)
    if kind == "Discrete":
        return {"type": kind, "n": int(space.n), "start": int(space.start)}

    def finite(bound):
        return [float(v) if np.isfinite(v) else None for v in np.ravel(bound)]

    return {
        "type": kind,
        "shape": [int(n) for n in space.shape],
        "dtype": str(space.dtype),
        "low": finite(space.low),
        "high": finite(space.high),
    }


def space_from_json(data: Mapping[str, Any]) -> gymnasium.Space:
    """The inverse of `space_to_json` (imports gymnasium)."""
    from gymnasium import spaces

    if data["type"] == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    dtype = np.dtype(data["dtype"])
    low, high = box_bounds(data)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def suggest(name: str, known) -> str:
    """` (did you mean 'x'?)` for the nearest of `known`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _plain_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An environment's keyword arguments as JSON, without how it is drawn; `ValueError` for one that is no JSON."""
    plain = {}
    for name, value in kwargs.items():
        if name == "render_mode":
            continue
        try:
            plain[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            raise ValueError(
                f"argument {name!r} of the environment is a {type(value).__name__}; a Spec keeps JSON only"
            ) from None
    return plain
