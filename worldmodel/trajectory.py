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

from worldmodel.images import EncodedImages
from worldmodel.spaces import check_space, check_values, column_list, space_from_json, space_to_json, steps_of

if TYPE_CHECKING:
    import gymnasium


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One episode, or a cut piece of one, of `T` transitions `(o_t, a_t) -> (r_t, o_{t+1}, terminated_t)`.

    Attributes:
      observations: columns of `T+1` rows as `worldmodel.spaces` lays them out: an array `[T+1, ...]`, or a dict or a
        tuple of them; the last row is what the last action led to.
      actions: columns of `T` rows.
      rewards: float32 `[T]`, or None where the log has none.
      terminated: the last transition reached a terminal state of the task.
      truncated: the last transition was cut by a limit. Neither: the log was cut.
      action_log_prob: float32 `[T]`, natural log of the behaviour policy's probability (or density)
        of each action; None where unknown.
      context: what holds for the whole episode and the model may see (instruction, physics), or None.
      info: plain JSON: `id`, `source`, `policy`, `seed`, split keys; `synthetic`, true where a model imagined the
        episode; where the log has them, lists of `T` numbers `duration` (seconds of each step) and `cost`.
    """

    observations: Any
    actions: Any
    rewards: np.ndarray | None
    terminated: bool
    truncated: bool
    action_log_prob: np.ndarray | None = None
    context: Any = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Number of transitions `T`."""
        return len(column_list(self.actions)[0])

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of rewards; NaN where the log has none."""
        return float("nan") if self.rewards is None else float(np.sum(self.rewards, dtype=np.float64))

    @property
    def synthetic(self) -> bool:
        """Whether a model imagined it: such an episode is no evidence of what really happens."""
        return bool(self.info.get("synthetic", False))

    def validate(self, spec: Spec | None = None, *, where: str = "trajectory") -> Trajectory:
        """Returns itself, or raises `ValueError` naming the field, the value, the rule and `where`."""
        try:
            steps, rows = steps_of(self.actions), steps_of(self.observations)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if steps == 0:
            raise ValueError(f"{where}: holds no transition")
        if rows != steps + 1:
            raise ValueError(
                f"{where}: {rows} observations for {steps} actions; {steps + 1} are needed "
                "(the last is what the last action led to)"
            )
        for name in ("rewards", "action_log_prob"):
            column = getattr(self, name)
            if column is not None and np.shape(column) != (steps,):
                raise ValueError(f"{where}: {name} has shape {np.shape(column)}; ({steps},) is needed")
        if self.terminated and self.truncated:
            raise ValueError(f"{where}: is both terminated and truncated; the last step ended in one way")
        for name in ("observations", "actions", "rewards", "action_log_prob"):
            for column in column_list(getattr(self, name)):
                _check_finite(column, f"{where}, {name}")
        if spec is not None:
            spec.check(self.observations, "observation", where=where)
            spec.check(self.actions, "action", where=where)
        return self


def _check_finite(column: Any, where: str) -> None:
    if column is None or isinstance(column, EncodedImages) or not np.issubdtype(np.asarray(column).dtype, np.floating):
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
            check_space(data[name], name.removesuffix("_space"))
        return cls(**data)

    def check(self, values: Any, role: str, *, where: str = "value") -> None:
        """Raises `ValueError` unless `values` of `N` steps lie in the `role` ("observation" or "action") space."""
        space = self.observation_space if role == "observation" else self.action_space
        check_values(space, values, role, where=where)


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
