"""A conversion before it runs: which logs, which of their episodes, in parts of which size."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from worldmodel.corpus.differences import differences
from worldmodel.corpus.filters import Filters
from worldmodel.corpus.fingerprint import fingerprint
from worldmodel.trajectory import Spec, Trajectory


@runtime_checkable
class Log(Protocol):
    """What is converted: what `worldmodel.sources.read` gives, or anything with these three."""

    @property
    def spec(self) -> Spec:
        """Spaces and limits of the environment."""
        ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Plain JSON: where the log comes from, what is left out of it."""
        ...

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode, in the same order each time."""
        ...


@dataclasses.dataclass(frozen=True)
class Input:
    """One log to convert.

    Attributes:
      uri: how the user named it.
      log: the log, opened.
      place: its file or folder, by whose state it is known again; None for a log that is no file.
      options: of its reader.
    """

    uri: str
    log: Log
    place: pathlib.Path | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How logs are converted.

    Attributes:
      filters: which episodes of each log are kept.
      split_by: key of `info` whose value decides the split: all episodes of one value are on one side; None: the
        corpus's own when adding to one, else the id.
      prefix_ids: every id gets its log's name before it, not only those that are taken.
      fixes: codes of the lint's findings that are repaired; "all": every one that has a repair.
      drop_invalid: leave out (and count) an episode that is not valid, instead of refusing the log.
      part_episodes: most episodes of one part.
      part_bytes: a part is closed once its serialised episodes reach this size.
    """

    filters: Filters = Filters()
    split_by: str | None = None
    prefix_ids: bool = False
    fixes: tuple[str, ...] = ()
    drop_invalid: bool = False
    part_episodes: int = 10_000
    part_bytes: int = 64 * 2**20

    def __post_init__(self):
        for name in ("part_episodes", "part_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self) | {"filters": self.filters.to_json(), "fixes": list(self.fixes)}


AS_IT_IS = Recipe()
"""Every episode, as it is."""


def names_of(inputs: Sequence[Input]) -> list[str]:
    """A short name of each log, the shortest end of its place (or uri) that tells it from the others.

    Raises:
      ValueError: a log is given twice.
    """
    paths = [(item.place.absolute() if item.place else pathlib.PurePath(item.uri)).parts for item in inputs]
    for index, path in enumerate(paths):
        if path in paths[:index] and inputs[index].options == inputs[paths.index(path)].options:
            raise ValueError(f"{inputs[index].uri} is given twice; its episodes would be doubled")
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(path[-1:])}~{index}" for index, path in enumerate(paths)]


def common_spec(inputs: Sequence[Input]) -> Spec:
    """The one spec of all logs; `ValueError` names what differs."""
    if not inputs:
        raise ValueError("no log to convert; at least one is needed")
    names = names_of(inputs)
    first = inputs[0].log.spec.to_json()
    for name, item in zip(names[1:], inputs[1:], strict=True):
        require_same_spec(first, item.log.spec.to_json(), (f"in {names[0]}", f"in {name}"))
    return inputs[0].log.spec


def require_same_spec(one: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Raises `ValueError`, which shows the difference, unless two specs in JSON form are the same."""
    odd = differences(one, other, names=names)
    if odd:
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise ValueError(f"the specs differ: {'; '.join(odd[:3])}{more}; one spec is needed")


def known_episodes(item: Input, recipe: Recipe) -> int | None:
    """How many episodes of a log the filters look at; None where it does not say how many it holds."""
    held = getattr(item.log, "episodes", item.log.provenance.get("episodes"))
    ends = [end for end in (held, recipe.filters.last) if isinstance(end, int)]
    return max(0, min(ends) - recipe.filters.first) if ends else None


def describe(inputs: Sequence[Input], recipe: Recipe) -> dict[str, Any]:
    """The job as plain JSON: equal for equal logs in equal states, converted in the same way."""
    spec = common_spec(inputs)
    logs = []
    for name, item in zip(names_of(inputs), inputs, strict=True):
        state = None if item.place is None else fingerprint(item.place)
        kind = item.log.provenance.get("format")
        logs.append({"name": name, "format": kind, "options": dict(item.options), "state": state})
    return json.loads(json.dumps({"logs": logs, "recipe": recipe.to_json(), "spec": spec.to_json()}, allow_nan=False))


def digest(job: Mapping[str, Any]) -> str:
    """A short name of a job: 16 hex digits of its SHA-256."""
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]
