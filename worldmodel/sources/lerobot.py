"""`lerobot:DIR`: a LeRobotDataset of version 2.0, 2.1 (a parquet file per episode) or 3.0 (episodes share files).

Row `t` of an episode holds `observation.*` before `action` `t`, and what that action led to: `next.reward`,
`next.success`, `next.done`. What the last action led to is not recorded, so `N` rows give `N-1` transitions: the last
row's observation is kept; its action, reward and end are not. An episode whose last transition is marked
`next.success` is terminated; without that column `next.done` marks it. `next.done` without success is a limit. An end
that only the last row marks belongs to the transition that is not there: the log counts as cut.

Several observations are a `Dict` by what follows `observation.` (`state`, `images.wrist`), one alone is its own space;
so are actions. Images in the parquet files stay encoded. The text of the task is the context, and `task` in `info`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from worldmodel.sources.lerobot_meta import Episode, Feature, Meta, episodes, read_meta, tasks
from worldmodel.trajectory import Spec, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa


def open_source(place: str) -> LeRobotSource:
    """Opens the dataset in the folder `place`; reads its `meta/info.json` alone.

    Raises:
      FileNotFoundError: there is no such folder, or no `meta/info.json` in it.
      ValueError: that file is damaged, of another version, or names no observation or action that is read.
    """
    folder = pathlib.Path(place)
    if not folder.is_dir():
        raise FileNotFoundError(f"{place}: no such folder")
    return LeRobotSource(place, read_meta(folder))


def recognise(path: pathlib.Path) -> bool:
    """A folder with `meta/info.json` and `data`."""
    try:
        return (path / "meta" / "info.json").is_file() and (path / "data").is_dir()
    except OSError:
        return False


@dataclasses.dataclass(frozen=True)
class LeRobotSource:
    """A dataset; iterating reads one batch of rows at a time and holds one episode."""

    place: str
    meta: Meta

    @functools.cached_property
    def spec(self) -> Spec:
        """Spaces as the features say; numbers have no bounds but those of their dtype."""
        return Spec(_space(self.meta.observations), _space(self.meta.actions))

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Format, place, version, robot, frames per second, number of episodes, licence, and what is left out."""
        info = self.meta.info
        last = "the last action of each episode, with its reward and end: what it led to is not recorded"
        found = {
            "format": "lerobot",
            "place": self.place,
            "version": self.meta.version,
            "robot": info.get("robot_type"),
            "fps": info.get("fps"),
            "episodes": info.get("total_episodes"),
            "licence": _licence(self.meta.folder),
        }
        return {k: v for k, v in found.items() if isinstance(v, (str, int, float))} | {
            "left_out": [*self.meta.left_out, last]
        }

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode in the order of the dataset's list; `ValueError` where rows are not those that it names."""
        from worldmodel.sources.lerobot_parquet import tables

        texts = tasks(self.meta)
        features = (*self.meta.observations.values(), *self.meta.actions.values(), *self.meta.ends.values())
        columns = [*(feature.key for feature in features), "episode_index", *(["task_index"] if texts else [])]
        for file, group in itertools.groupby(episodes(self.meta), lambda episode: episode.file):
            named = list(group)
            rows = tables(file, columns, [episode.length for episode in named])
            for episode, table in zip(named, rows, strict=True):
                yield self._trajectory(episode, table, texts)

    def _trajectory(self, episode: Episode, table: pa.Table, texts: Mapping[int, str]) -> Trajectory:
        from worldmodel.sources.lerobot_parquet import column_of, integers

        where = f"{episode.file}: episode {episode.index}"
        numbers = np.unique(integers(table, "episode_index", where))
        if len(table) and numbers.tolist() != [episode.index]:
            raise ValueError(f"{where}: its rows are marked as of episode {', '.join(map(str, numbers[:4]))}")
        text = _task(integers(table, "task_index", where), texts, where) if texts else None
        ends = {key: column_of(feature, table, where)[:-1, 0] for key, feature in self.meta.ends.items()}
        terminated, truncated = _ends(ends)
        info = {"id": f"episode_{episode.index:06d}", "source": self.meta.folder.name}
        return Trajectory(
            observations=_values(self.meta.observations, lambda feature: column_of(feature, table, where)),
            actions=_values(self.meta.actions, lambda feature: column_of(feature, table, where)[:-1]),
            rewards=_floats(ends.get("next.reward")),
            terminated=terminated,
            truncated=truncated,
            context=text,
            info=info | ({"task": text} if text else {}),
        )


def _floats(values: np.ndarray | None) -> np.ndarray | None:
    if values is None:
        return None
    with np.errstate(over="ignore"):  # infinite it is: the lint finds it
        return values.astype(np.float32)


def _values(features: Mapping[str, Feature], read: Callable[[Feature], Any]) -> Any:
    """`read` of every feature, as a dict by name; of one alone by itself."""
    values = {name: read(feature) for name, feature in features.items()}
    return values if len(values) > 1 else next(iter(values.values()))


def _space(features: Mapping[str, Feature]) -> Mapping[str, Any]:
    spaces = _values(features, lambda feature: feature.space)
    return {"type": "Dict", "spaces": spaces} if len(features) > 1 else spaces


def _ends(columns: Mapping[str, np.ndarray]) -> tuple[bool, bool]:
    """Whether the last transition is marked as the end of the task, and as cut by a limit."""
    marked = {key: bool(column[-1:].any()) for key, column in columns.items()}
    done = marked.get("next.done", False)
    terminated = marked.get("next.success", done)
    return terminated, done and not terminated


def _task(indices: np.ndarray, texts: Mapping[int, str], where: str) -> str | None:
    """The text of the task, of several one a line in the order met; None where it is empty."""
    found = list(dict.fromkeys(indices.tolist()))
    for index in found:
        if index not in texts:
            raise ValueError(f"{where}: task_index {index} is not among the {len(texts)} tasks in meta")
    return "\n".join(texts[index] for index in found) or None


def _licence(folder: pathlib.Path) -> str | None:
    """`license:` at the head of the dataset's README.md, if there."""
    try:
        with open(folder / "README.md", "rb") as file:
            head = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.search(r"^license:\s*(\S+)", head, re.MULTILINE) if head.startswith("---") else None
    return found[1] if found else None
