"""Which array of an npz file is what, and where its episodes begin and end.

One row of `actions` is a step. Ends of episodes come from the first of `indices`, `lengths`, `episode`, `starts` that
the file has; a row marked `terminated` or `truncated` ends an episode, too. Without any, the file is one episode.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodel.sources.npz_members import Member, members, whole
from worldmodel.trajectory import suggest

NAMES: Mapping[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states"),
    "actions": ("actions", "action", "acts"),
    "rewards": ("rewards", "reward", "rews"),
    "next_observations": ("next_observations", "next_obs", "next_states"),
    "final_observations": ("final_observations", "final_obs"),
    "terminated": ("terminated", "terminals", "terminal", "terminations", "dones", "done"),
    "truncated": ("truncated", "timeouts", "truncations"),
    "indices": ("indices",),
    "lengths": ("lengths", "episode_lengths"),
    "episode": ("episode", "episodes", "episode_ids", "episode_index"),
    "starts": ("episode_starts", "is_first"),
    "log_prob": ("action_log_prob", "log_prob", "log_probs"),
    "cost": ("costs", "cost"),
    "duration": ("durations", "duration"),
}
"""Keys under which each role is looked for, in this order; an option named as the role names another one."""

NESTED = ("observations", "actions", "next_observations", "final_observations")
"""Roles that keys `KEY/NAME` can make up, as a `Dict` by `NAME`."""
SCALARS = ("rewards", "log_prob", "cost", "duration")
"""Roles of one number a step."""
_BOTH = ("dones", "done")
"""Keys that mark an end of either kind."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """One file: the array, or the dict of arrays, of each role that it has, and a line for each that has none."""

    path: pathlib.Path
    roles: Mapping[str, Any]
    left_out: tuple[str, ...]

    def member(self, role: str) -> Member | None:
        """The array of a role that is never a dict."""
        return self.roles.get(role)

    @property
    def steps(self) -> int:
        """Rows of `actions`."""
        return parts(self.roles["actions"])[0].rows


@dataclasses.dataclass(frozen=True)
class Cut:
    """Episodes of a file.

    Attributes:
      ends: int64 `[E]`, the step after each episode's last.
      names: of each episode within the file.
      terminated, truncated: bool `[E]`.
    """

    ends: np.ndarray
    names: tuple[str, ...]
    terminated: np.ndarray
    truncated: np.ndarray


def parts(member: Any) -> list[Member]:
    """The arrays of a role."""
    return list(member.values()) if isinstance(member, dict) else [member]


def read_layout(path: pathlib.Path, chosen: Mapping[str, str]) -> Layout:
    """Finds the roles of a file's arrays; reads headers alone.

    Args:
      path: the file.
      chosen: keys of roles that are not as in `NAMES`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or lacks observations, actions or a key that was chosen.
    """
    found, left_out = members(path)
    roles: dict[str, Any] = {}
    for role, names in NAMES.items():
        for name in (chosen[role],) if role in chosen else names:
            nested = {key.removeprefix(f"{name}/"): m for key, m in found.items() if key.startswith(f"{name}/")}
            if name in found:
                roles[role] = found[name]
            elif nested and role in NESTED:
                roles[role] = nested
            else:
                continue
            break
        else:
            if role in chosen:
                raise ValueError(
                    f"{path}: has no {chosen[role]!r} for {role}{suggest(chosen[role], found)}; it has {_list(found)}"
                )
    for role in ("observations", "actions"):
        if role not in roles:
            pickled = f" ({'; '.join(left_out)})" if left_out else ""
            raise ValueError(
                f"{path}: has none of {', '.join(NAMES[role])}; name its {role} by the option {role}=KEY, "
                f"it has {_list(found)}{pickled}"
            )
    taken = {member.name for role in roles.values() for member in parts(role)}
    left_out += [f"{name}: has no place in a trajectory" for name in found if name not in taken]
    ends = roles.get("terminated")
    if ends is not None and ends.name in _BOTH and "truncated" not in roles:
        left_out.append(f"{ends.name}: does not tell a terminal state from a limit; it is read as terminated")
    layout = Layout(path, roles, tuple(left_out))
    _check_rows(layout)
    return layout


def _check_rows(layout: Layout) -> None:
    steps = layout.steps
    for role in ("actions", "observations", "next_observations", "final_observations", *SCALARS):
        for member in parts(layout.roles[role]) if role in layout.roles else ():
            own = parts(layout.roles[role])[0].rows
            needed = steps if role in ("actions", "next_observations", *SCALARS) else own
            if not member.shape or member.rows != needed:
                raise ValueError(
                    f"{layout.path}: {member.name!r} ({role}) holds {list(member.shape)}; {needed} rows are needed"
                )
            if role in SCALARS and (member.shape[1:] not in ((), (1,)) or member.dtype.kind not in "biuf"):
                raise _wrong(layout, role, f"{member.dtype} {list(member.shape)}; one number a step is needed")


def _list(found: Mapping[str, Any]) -> str:
    return ", ".join(found) or "no array"


def cut(layout: Layout) -> Cut:
    """Where the episodes of a file end, and how; reads the small arrays that say so.

    Raises:
      ValueError: such an array is of another length than it should, or its values are no ends.
    """
    steps = layout.steps
    marked, labels = _marked(layout, steps)
    flags = {}
    for role in ("terminated", "truncated"):
        flags[role] = _column(layout, role) != 0 if role in layout.roles else np.zeros(len(marked), np.bool_)
        if len(flags[role]) not in (len(marked), steps):
            raise _wrong(
                layout, role, f"{len(flags[role])} rows; {len(marked)} (an episode) or {steps} (a step) are needed"
            )
    by_step = [np.flatnonzero(flag) + 1 for flag in flags.values() if len(flag) != len(marked)]
    ends = np.sort(np.concatenate([marked, np.setdiff1d(np.concatenate([marked[:0], *by_step]), marked)]))
    is_marked = np.isin(ends, marked)
    found = []
    for column in flags.values():
        flag = np.zeros(len(ends), np.bool_)
        if len(column) == len(marked):
            flag[is_marked] = column
        elif steps:
            flag = column[np.maximum(ends, 1) - 1]
        found.append(flag)
    terminated, truncated = found
    if "terminated" in layout.roles and layout.roles["terminated"].name in _BOTH:
        terminated = terminated & ~truncated
    return Cut(ends, _names(labels, marked, ends), terminated, truncated)


def _marked(layout: Layout, steps: int) -> tuple[np.ndarray, list[str] | None]:
    """Ends of episodes that are marked as such, and the log's own names of them."""
    role = next((role for role in ("indices", "lengths", "episode", "starts") if role in layout.roles), None)
    if role is None:
        return np.array([steps], np.int64), None
    values, labels = _column(layout, role), None
    if role == "episode":
        if len(values) != steps:
            raise _wrong(layout, role, f"{len(values)} rows; {steps} (a step) are needed")
        ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, steps)
        labels = [f"{v:06d}" if isinstance(v, int) else str(v) for v in values[ends - 1].tolist()] if steps else [""]
        seen: set[str] = set()
        for label, start in zip(labels, [0, *ends[:-1].tolist()], strict=True):
            if label in seen:
                raise _wrong(layout, role, f"begins {label} again at step {start}; an episode's rows follow each other")
            seen.add(label)
    elif role == "lengths":
        ends = np.cumsum(values, dtype=np.int64)
    else:
        if role == "starts" and (values.dtype == np.bool_ or (len(values) == steps and np.isin(values, (0, 1)).all())):
            values = np.flatnonzero(values)
        if role == "starts":
            values = values[values > 0]  # the first episode begins at 0, said or not
        ends = np.append(values.astype(np.int64), steps)
    ends = ends.astype(np.int64)
    if (np.diff(ends, prepend=0) < 0).any() or int(ends[-1:].sum()) != steps:
        raise _wrong(layout, role, f"no places in order that lie in 0..{steps}, the steps of actions")
    return ends, labels


def _names(labels: list[str] | None, marked: np.ndarray, ends: np.ndarray) -> tuple[str, ...]:
    """Names of the episodes: their numbers, or the log's own, with a number where one of them ends more than once."""
    if labels is None:
        return tuple(f"{i:06d}" for i in range(len(ends)))
    owners = np.searchsorted(marked, ends)
    first = np.searchsorted(owners, owners)
    several = np.bincount(owners, minlength=len(marked))[owners] > 1
    return tuple(
        f"{labels[owner]}.{i - f}" if more else labels[owner]
        for i, (owner, f, more) in enumerate(zip(owners, first, several, strict=True))
    )


def _column(layout: Layout, role: str) -> np.ndarray:
    """A small array of one number (or name) a row, `[N]`."""
    values = whole(layout.path, layout.roles[role])
    if values.ndim == 0 or (values.ndim == 2 and values.shape[1] == 1):
        values = values.reshape(-1)
    kinds = {"episode": "biuU", "terminated": "biuf", "truncated": "biuf"}.get(role, "biu")
    if values.ndim != 1 or (values.dtype.kind not in kinds and values.size):
        raise _wrong(
            layout, role, f"{values.dtype} {list(values.shape)}; one a row of dtype kind {', '.join(kinds)} is needed"
        )
    return values


def _wrong(layout: Layout, role: str, what: str) -> ValueError:
    return ValueError(f"{layout.path}: {layout.roles[role].name!r} ({role}) holds {what}")
