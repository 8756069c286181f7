"""`npz:FILE` or `npz:DIR`: arrays of NumPy, one file or all `*.npz` of a folder.

Episodes lie end to end along the leading axis; `NAMES` lists the keys under which each array is looked for, and
an option of the same name gives another key (`read("npz:log.npz", observations="x")`). Row `t` of `actions` is a step.
What the last action of an episode led to is, in the file:

  `next_observations`: a row a step. Where the next row's observation is another one, the log has a gap and is cut.
  `final_observations`: a row an episode.
  neither, and one more row of `observations` for each episode: the layout of the library `imitation`.
  neither, and as many rows of `observations` as of `actions`: nowhere; such an episode has as many observations as
    actions, which the lint reports.

Whole numbers are a `Discrete` (a single one a step) or, as actions, a `MultiDiscrete`; their range is that of the log.
Nothing is unpickled: pickled arrays (`infos`) are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.sources.npz_layout import SCALARS, Cut, Layout, cut, parts, read_layout
from worldmodel.sources.npz_members import Rows, archive
from worldmodel.sources.npz_spaces import spaces_of
from worldmodel.spaces import column_list, dtype_of, map_columns
from worldmodel.trajectory import Spec, Trajectory


def open_source(
    place: str,
    *,
    observations: str | None = None,
    actions: str | None = None,
    rewards: str | None = None,
    next_observations: str | None = None,
    final_observations: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    indices: str | None = None,
    lengths: str | None = None,
    episode: str | None = None,
    starts: str | None = None,
    log_prob: str | None = None,
    cost: str | None = None,
    duration: str | None = None,
) -> NpzSource:
    """Opens a file or the files of a folder; reads headers, and arrays of whole numbers whose range is their space.

    Args:
      place: an npz file, or a folder that holds some.
      observations: key of the array, as are the others.
      actions: a row a step.
      rewards: one number a step.
      next_observations: a row a step.
      final_observations: a row an episode.
      terminated: flags, one a step or one an episode.
      truncated: the same.
      indices: steps at which all episodes but the first begin.
      lengths: number of steps of each episode.
      episode: name or number of each step's episode.
      starts: steps at which episodes begin, or a flag a step.
      log_prob: one number a step.
      cost: one number a step.
      duration: one number a step, in seconds.

    Raises:
      FileNotFoundError: there is no such file, or the folder has no npz file.
      ValueError: a file is damaged, lacks observations or actions, or differs from the first one.
    """
    options = {name: value for name, value in locals().items() if name != "place" and value is not None}
    path = pathlib.Path(place)
    if not path.exists():
        raise FileNotFoundError(f"{place}: no such file or folder")
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{place}: holds no npz file")
    layouts = [read_layout(file, options) for file in files]
    source = NpzSource(place, tuple(layouts))
    _ = source.spec
    return source


def recognise(path: pathlib.Path) -> bool:
    """A zip file named `.npz`, or a folder with such a name in it."""
    try:
        if path.is_dir():
            return any(file.suffix == ".npz" for file in path.iterdir())
        if path.suffix != ".npz" or not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


@dataclasses.dataclass(frozen=True)
class NpzSource:
    """Files of one layout; iterating holds one episode (with `next_observations`: what lies between marked ends)."""

    place: str
    layouts: tuple[Layout, ...]

    @functools.cached_property
    def _spaces(self) -> dict[str, Any]:
        """Of observations and actions: the space of the array, or of each array by its name."""
        return {role: spaces_of(role, self.layouts) for role in ("observations", "actions")}

    @functools.cached_property
    def spec(self) -> Spec:
        """Spaces as dtypes, shapes and ranges of whole numbers say; reals have no bounds."""
        spaces = dict(self._spaces)
        for role in spaces:
            if isinstance(self.layouts[0].roles[role], dict):
                spaces[role] = {"type": "Dict", "spaces": spaces[role]}
        return Spec(spaces["observations"], spaces["actions"])

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Format, place, names of the files, and what is left out."""
        left_out = dict.fromkeys(line for layout in self.layouts for line in layout.left_out)
        files = [layout.path.name for layout in self.layouts]
        return {"format": "npz", "place": self.place, "files": files, "left_out": list(left_out)}

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode of every file, files by name; `ValueError` where a file is damaged or its rows do not fit."""
        for layout in self.layouts:
            yield from _read(layout, cut(layout), self._spaces)


def _read(layout: Layout, marks: Cut, spaces: Mapping[str, Any]) -> Iterator[Trajectory]:
    after = _where_after(layout, len(marks.ends))
    with archive(layout.path) as file:
        streams = {
            role: map_columns(lambda member: Rows(file, layout.path, member), layout.roles[role])
            for role in ("observations", "actions", *SCALARS, "next_observations", "final_observations")
            if role in layout.roles
        }

        def take(role: str, count: int) -> Any:
            tree = spaces["actions" if role == "actions" else "observations"]
            return map_columns(lambda rows, space: _column(rows.take(count), space), streams[role], tree)

        start = 0
        for name, end, terminated, truncated in zip(
            marks.names, marks.ends.tolist(), marks.terminated, marks.truncated, strict=True
        ):
            count, start = end - start, end
            obs = take("observations", count + (after == "observations"))
            actions = take("actions", count)
            scalars = {role: streams[role].take(count).reshape(count) for role in SCALARS if role in streams}
            gaps: list[int] = []
            if after == "next_observations":
                following = take(after, count)
                gaps = _gaps(obs, following)
                obs = [_joined(obs, following, a, b, b - 1) for a, b in itertools.pairwise([0, *gaps, count])]
            elif after == "final_observations":
                obs = [_joined(obs, take(after, 1), 0, count, 0)]
            else:
                obs = [obs]
            for k, (a, b) in enumerate(itertools.pairwise([0, *gaps, count])):
                piece = {role: column[a:b] for role, column in scalars.items()}
                yield Trajectory(
                    observations=obs[k],
                    actions=_rows(actions, a, b),
                    rewards=_floats(piece.get("rewards")),
                    terminated=bool(terminated) and b == count,
                    truncated=bool(truncated) and b == count,
                    action_log_prob=_floats(piece.get("log_prob")),
                    info={
                        "id": f"{layout.path.stem}-{name}" + (f".{k}" if gaps else ""),
                        "source": layout.path.name,
                        **{role: piece[role].tolist() for role in ("cost", "duration") if role in piece},
                    },
                )


def _where_after(layout: Layout, episodes: int) -> str | None:
    """The role that holds what the last action of each episode led to."""
    rows, steps = parts(layout.roles["observations"])[0].rows, layout.steps
    if "next_observations" in layout.roles and rows == steps:
        return "next_observations"
    if "final_observations" in layout.roles and rows == steps:
        found = parts(layout.roles["final_observations"])[0].rows
        if found != episodes:
            raise ValueError(f"{layout.path}: final_observations holds {found} rows for {episodes} episodes; one each")
        return "final_observations"
    if rows not in (steps, steps + episodes):
        raise ValueError(
            f"{layout.path}: observations has {rows} rows for {steps} actions in {episodes} episodes; "
            f"{steps} (a step) or {steps + episodes} (one more an episode) are needed"
        )
    return "observations" if rows == steps + episodes and episodes else None


def _gaps(obs: Any, following: Any) -> list[int]:
    """Rows of `obs` that are not what the row of `following` before them says; NaN is equal to NaN."""
    same = np.ones(max(len(column_list(obs)[0]) - 1, 0), np.bool_)
    for column, after in zip(column_list(obs), column_list(following), strict=True):
        equal = column[1:] == after[:-1]
        if column.dtype.kind == "f":
            equal |= np.isnan(column[1:]) & np.isnan(after[:-1])
        same &= equal.all(axis=tuple(range(1, equal.ndim)))
    return (np.flatnonzero(~same) + 1).tolist()


def _joined(obs: Any, after: Any, start: int, stop: int, last: int) -> Any:
    """Rows `start..stop` of `obs` and then row `last` of `after`."""
    return map_columns(lambda x, y: np.concatenate([x[start:stop], y[last:][:1]]), obs, after)


def _rows(values: Any, start: int, stop: int) -> Any:
    return map_columns(lambda column: column[start:stop], values)


def _floats(values: np.ndarray | None) -> np.ndarray | None:
    if values is None:
        return None
    with np.errstate(over="ignore"):  # infinite it is: the lint finds it
        return values.astype(np.float32)


def _column(values: np.ndarray, space: Mapping[str, Any]) -> np.ndarray:
    return values.astype(dtype_of(space), copy=False)
