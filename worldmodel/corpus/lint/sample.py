"""One streaming pass over a log: a record of every episode, and a bounded sample of them as plain numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.images import EncodedImages
from worldmodel.spaces import column_list, columns_of, is_image, leaves, shape_of
from worldmodel.trajectory import Spec, Trajectory

MAX_TRANSITIONS = 200_000
MAX_BYTES = 512 * 2**20
MAX_ONE_HOT = 64
_MAX_BOX = 512
_PROJECTED = 64
_IMAGE_GRID = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of every episode of the log, valid or not.

    Attributes:
      id: `info["id"]`, or `episode N` where it has none.
      index: its place in the log, from 0.
      steps: number of actions; `rows`: number of observations. -1: columns of one role differ in length.
      terminated, truncated: as logged.
      total_reward: sum of the rewards; NaN without them.
      fault: the line with which `Trajectory.validate` refuses it, or None: it is valid.
      digest: hash of its observations, actions and rewards, 16 bytes: equal for a copy under another id.
      keys: the strings, numbers and booleans of `info` (`task`, `policy`, `seed`, ..).
    """

    id: str
    index: int
    steps: int
    rows: int
    terminated: bool
    truncated: bool
    total_reward: float
    fault: str | None
    digest: bytes
    keys: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column of the flattened observations or actions.

    Attributes:
      name: path of its leaf and place in it (`state[2]`); `=value` for a column of a one-hot.
      kind: "number" (Box), "category" (one-hot, counts, bits) or "projection" (of an image or a very wide Box).
    """

    name: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Episode:
    """A usable episode of the sample as numbers.

    Attributes:
      record: its record.
      trajectory: as it was read (texts are found here).
      observations: float64 `[T+1, D]`; `D` is 0 where all leaves are texts.
      actions: float64 `[T, A]`.
      rewards: float64 `[T]`, or None.
    """

    record: Record
    trajectory: Trajectory
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray | None

    def __len__(self) -> int:
        return len(self.actions)


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """A log as the checks see it.

    Attributes:
      spec: its spaces and limits.
      records: one of every episode, in the order of the log.
      episodes: usable episodes (finite, `T+1` observations; values may lie outside the space) in the order of the
        log, chosen by a hash of their ids; all while they hold at most `MAX_TRANSITIONS` transitions and `MAX_BYTES`.
      invalid: the first of the other episodes, as read, within the same limits.
      observation_features, action_features: what the columns of `Episode.observations` and `.actions` are.
    """

    spec: Spec
    records: tuple[Record, ...]
    episodes: tuple[Episode, ...]
    invalid: tuple[tuple[Record, Trajectory], ...]
    observation_features: tuple[Feature, ...]
    action_features: tuple[Feature, ...]

    @property
    def transitions(self) -> int:
        """Transitions of the whole log."""
        return sum(max(record.steps, 0) for record in self.records)


def draw_sample(
    trajectories: Iterable[Trajectory], spec: Spec, *, limit: int = MAX_TRANSITIONS, seed: int = 0
) -> Sample:
    """Reads a log once; memory of `limit` transitions and one small record per episode."""
    records: list[Record] = []
    usable = _Reservoir(limit, MAX_BYTES, seed)
    invalid: list[tuple[Record, Trajectory]] = []
    room = limit
    for index, trajectory in enumerate(trajectories):
        record = _record(trajectory, spec, index)
        records.append(record)
        if record.fault is None or _usable(trajectory, spec):
            usable.offer(record, trajectory)
        elif room > 0:
            invalid.append((record, trajectory))
            room -= max(record.steps, record.rows, 1)
    episodes = []
    for record, trajectory in usable:
        try:
            episodes.append(_episode(record, trajectory, spec, limit))
        except ValueError as error:  # an image that cannot be decoded is found only when it is looked at
            broken = dataclasses.replace(record, fault=f"{record.id}: {error}")
            records[record.index] = broken
            invalid.append((broken, trajectory))
    return Sample(
        spec,
        tuple(records),
        tuple(episodes),
        tuple(invalid),
        tuple(_features(spec.observation_space)),
        tuple(_features(spec.action_space)),
    )


class _Reservoir:
    """The episodes whose ids hash lowest, as many as fit: a uniform sample that does not depend on their order."""

    def __init__(self, transitions: int, size: int, seed: int):
        self._salt = (seed % 2**64).to_bytes(8, "big")
        self._limits = (transitions, size)
        self._used = [0, 0]
        self._heap: list[tuple[int, int, Record, Trajectory]] = []

    def offer(self, record: Record, trajectory: Trajectory) -> None:
        priority = int.from_bytes(hashlib.blake2b(record.id.encode(), digest_size=8, salt=self._salt).digest(), "big")
        heapq.heappush(self._heap, (-priority, -record.index, record, trajectory))
        self._count(record, trajectory, 1)
        while len(self._heap) > 1 and any(used > limit for used, limit in zip(self._used, self._limits, strict=True)):
            _, _, record, trajectory = heapq.heappop(self._heap)
            self._count(record, trajectory, -1)

    def _count(self, record: Record, trajectory: Trajectory, sign: int) -> None:
        columns = [*column_list(trajectory.observations), *column_list(trajectory.actions)]
        self._used[0] += sign * record.steps
        self._used[1] += sign * sum(_bytes_of(column) for column in columns)

    def __iter__(self) -> Iterator[tuple[Record, Trajectory]]:
        yield from sorted(((record, t) for _, _, record, t in self._heap), key=lambda pair: pair[0].index)


def _bytes_of(column: Any) -> int:
    if isinstance(column, EncodedImages):
        return sum(len(data) for data in column.encoded)
    values = np.asarray(column)
    return sum(len(text) for text in values.ravel()) if values.dtype == np.object_ else values.nbytes


def _record(trajectory: Trajectory, spec: Spec, index: int) -> Record:
    name = str(trajectory.info.get("id", f"episode {index}"))
    try:
        trajectory.validate(spec, where=name)
        fault = None
    except ValueError as error:
        fault = str(error)
    except (TypeError, KeyError) as error:  # values that are not built as any space is
        fault = f"{name}: {type(error).__name__}: {error}"
    rewards = trajectory.rewards
    return Record(
        id=name,
        index=index,
        steps=_length(trajectory.actions),
        rows=_length(trajectory.observations),
        terminated=bool(trajectory.terminated),
        truncated=bool(trajectory.truncated),
        total_reward=math.nan if rewards is None else float(np.sum(rewards, dtype=np.float64)),
        fault=fault,
        digest=_digest(trajectory),
        keys={k: v for k, v in trajectory.info.items() if k != "id" and isinstance(v, (str, int, float, bool))},
    )


def _usable(trajectory: Trajectory, spec: Spec) -> bool:
    """Whether a refused episode can be looked at as numbers: its values are outside the space, or both ends set."""
    try:
        dataclasses.replace(trajectory, truncated=False).validate()
        for space, values in (
            (spec.observation_space, trajectory.observations),
            (spec.action_space, trajectory.actions),
        ):
            for _, leaf, column in columns_of(space, values):
                if tuple(np.shape(column)[1:]) != shape_of(leaf):
                    return False
                if leaf["type"] != "Text" and not isinstance(column, EncodedImages):
                    np.asarray(column).astype(np.float64)
    except (ValueError, TypeError, KeyError):
        return False
    return True


def _length(values: Any) -> int:
    lengths = {len(column) for column in column_list(values)}
    return lengths.pop() if len(lengths) == 1 else -1


def _digest(trajectory: Trajectory) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for values in (trajectory.observations, trajectory.actions, trajectory.rewards):
        for column in column_list(values):
            if isinstance(column, EncodedImages):
                parts: Iterable[bytes] = column.encoded
            elif column is None:
                parts = (b"none",)
            elif np.asarray(column).dtype == np.object_:
                parts = (str(text).encode("utf-8", "surrogatepass") + b"\0" for text in np.ravel(column))
            else:
                parts = (np.ascontiguousarray(column).tobytes(),)
            for part in parts:
                digest.update(part)
            digest.update(b"|")
    return digest.digest()


def _episode(record: Record, trajectory: Trajectory, spec: Spec, limit: int) -> Episode:
    """`limit` cuts an episode that alone is longer than the sample may be."""
    rewards = trajectory.rewards
    return Episode(
        record,
        trajectory,
        flatten(spec.observation_space, trajectory.observations, limit + 1),
        flatten(spec.action_space, trajectory.actions, limit),
        None if rewards is None else np.asarray(rewards[:limit], np.float64),
    )


def flatten(space: Mapping[str, Any], values: Any, rows: int | None = None) -> np.ndarray:
    """The first `rows` of `N` values of a space as float64 `[N, D]`; the columns are those of `_features`."""
    parts = []
    for _, leaf, column in columns_of(space, values):
        if leaf["type"] != "Text":
            parts.append(_flatten_column(leaf, column[:rows]))
    if parts:
        return np.concatenate(parts, axis=1)
    return np.zeros((len(column_list(values)[0][:rows]), 0))


def _flatten_column(space: Mapping[str, Any], column: Any) -> np.ndarray:
    if space["type"] == "Discrete" and space["n"] <= MAX_ONE_HOT:
        return (np.asarray(column)[:, None] == space["start"] + np.arange(space["n"])).astype(np.float64)
    if is_image(space):
        return np.concatenate([_block_means(column[i : i + 256]) for i in range(0, len(column), 256)])
    flat = np.asarray(column, np.float64).reshape(len(column), -1)
    if flat.shape[1] <= _MAX_BOX:
        return flat
    return flat @ np.random.default_rng(flat.shape[1]).standard_normal((flat.shape[1], _PROJECTED))


def _block_means(column: Any) -> np.ndarray:
    """Mean brightness of 6x6 blocks, `[N, 36]`."""
    grey = np.asarray(column).mean(axis=-1, dtype=np.float64)
    for axis in (1, 2):
        edges = np.linspace(0, grey.shape[axis], _IMAGE_GRID + 1).astype(int)
        sums = np.add.reduceat(grey, edges[:-1], axis=axis)
        grey = sums / np.diff(edges).reshape([-1 if a == axis else 1 for a in range(3)])
    return grey.reshape(len(grey), -1)


def _features(space: Mapping[str, Any]) -> Iterator[Feature]:
    for path, leaf in leaves(space):
        if leaf["type"] == "Text":
            continue
        if leaf["type"] == "Discrete" and leaf["n"] <= MAX_ONE_HOT:
            for i in range(leaf["n"]):
                yield Feature(f"{path}={leaf['start'] + i}", "category")
        elif is_image(leaf):
            for i in range(_IMAGE_GRID**2):
                yield Feature(f"{path}[block {i}]", "projection")
        else:
            size = math.prod(shape_of(leaf))
            wide = size > _MAX_BOX
            kind = "projection" if wide else "number" if leaf["type"] == "Box" else "category"
            for i in range(_PROJECTED if wide else size):
                yield Feature(f"{path}[{i}]" if shape_of(leaf) else path, kind)
