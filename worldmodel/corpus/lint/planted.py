"""Faults planted in a clean log on purpose, to measure how many of them the lint finds.

A fault of a column (actions, rewards, ends) moves it against the others as in one long table of all rows, the way such
logs are stored: what leaves an episode enters its neighbour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.spaces import column_list, dtype_of, leaves, map_columns
from worldmodel.trajectory import Spec, Trajectory

Log = list[Trajectory]
UNITS = (1000.0, 100.0, 180 / np.pi, 3.6, 2.54, 0.3048, np.pi / 180, 0.01, 0.001)
"""Ratios of units that people mix up: of metres, of angles, of speeds."""


def shift_actions(log: Log, rows: int) -> Log:
    """`rows` = 1: every action stands one step later than it was taken."""
    moved = map_columns(lambda *columns: np.roll(np.concatenate(columns), rows, axis=0), *(t.actions for t in log))
    return [
        dataclasses.replace(t, actions=map_columns(lambda column, a=a, b=b: column[a:b], moved))
        for t, (a, b) in zip(log, _bounds(log), strict=True)
    ]


def shift_rewards(log: Log, rows: int) -> Log:
    """`rows` = 1: every reward stands one step later than it was given."""
    moved = np.roll(np.concatenate([_rewards(t) for t in log]), rows)
    return [dataclasses.replace(t, rewards=moved[a:b]) for t, (a, b) in zip(log, _bounds(log), strict=True)]


def shift_ends(log: Log) -> Log:
    """Every end is marked one row late: an episode lacks its first row and has the first of the next instead."""
    shifted = []
    for this, following in zip(log, [*log[1:], log[0]], strict=True):
        head = _steps(following, 0, 1)
        if len(this) < 3:
            continue
        shifted.append(_joined(this, _steps(this, 1, len(this) - 1), head))
    return shifted


def keep_reset(log: Log) -> Log:
    """The row in which an environment resets itself is logged as the last step of the episode before it."""
    kept = []
    for this, following in zip(log, [*log[1:], log[0]], strict=True):
        observations = map_columns(
            _concatenate, this.observations, map_columns(lambda c: c[:1], following.observations)
        )
        actions = map_columns(_concatenate, this.actions, map_columns(lambda c: c[:1], following.actions))
        rewards = np.append(_rewards(this), np.float32(0))
        kept.append(dataclasses.replace(this, observations=observations, actions=actions, rewards=rewards))
    return kept


def drop_last_observation(log: Log) -> Log:
    """`T` observations instead of `T+1`."""
    return [dataclasses.replace(t, observations=map_columns(lambda c: c[:-1], t.observations)) for t in log]


def repeat_last_observation(log: Log) -> Log:
    """The observation after the end was lost and the one before it stands in its place."""
    return [
        dataclasses.replace(t, observations=map_columns(lambda c: _concatenate(c[:-1], c[-2:-1]), t.observations))
        for t in log
    ]


def limits_as_terminals(log: Log) -> Log:
    """Every end is stored as a terminal."""
    return [dataclasses.replace(t, terminated=True, truncated=False) for t in log]


def glue_pairs(log: Log, *, keep_last: bool) -> Log:
    """Two episodes as one; the last observation of the first is kept, or else the first of the second is."""
    glued = []
    for first, second in zip(log[::2], log[1::2], strict=False):
        if keep_last:
            observations = map_columns(lambda a, b: _concatenate(a, b[1:]), first.observations, second.observations)
        else:
            observations = map_columns(lambda a, b: _concatenate(a[:-1], b), first.observations, second.observations)
        glued.append(
            dataclasses.replace(
                second,
                observations=observations,
                actions=map_columns(_concatenate, first.actions, second.actions),
                rewards=np.concatenate([_rewards(first), _rewards(second)]),
                info=first.info,
            )
        )
    return glued


def duplicate(log: Log, rng: np.random.Generator) -> Log:
    """One episode of at least 20 steps twice, under two ids (a short one may well come twice by itself)."""
    copy = _long(log, rng)
    place = int(rng.integers(len(log) + 1))
    return [*log[:place], dataclasses.replace(copy, info={**copy.info, "id": f"{copy.info['id']}-again"}), *log[place:]]


def split(log: Log) -> Log:
    """The last fifth of the episodes is marked as `test`, the others as `train`."""
    border = len(log) - len(log) // 5
    names = ["train"] * border + ["test"] * (len(log) - border)
    return [dataclasses.replace(t, info={**t.info, "split": name}) for t, name in zip(log, names, strict=True)]


def leak(log: Log, rng: np.random.Generator) -> Log:
    """A split log with one training episode, of at least 20 steps, among those of the test, too."""
    parted = split(log)
    copy = _long([t for t in parted if t.info["split"] == "train"], rng)
    return [*parted, dataclasses.replace(copy, info={**copy.info, "id": f"{copy.info['id']}-test", "split": "test"})]


def _long(log: Log, rng: np.random.Generator) -> Trajectory:
    found = [t for t in log if len(t) >= 20]
    return found[int(rng.integers(len(found)))]


def change_unit(log: Log, rng: np.random.Generator, *, within: bool) -> Log:
    """One number of the observations is in another unit from a row near the middle on.

    `within`: the row lies inside an episode; otherwise it is the first of one. The number is one that is not zero in at
    least a twentieth of the rows.
    """
    bounds = _bounds(log)
    middle = int(rng.uniform(0.3, 0.7) * bounds[-1][1])
    at = next(i for i, (_, stop) in enumerate(bounds) if middle < stop)
    offset = middle - bounds[at][0] if within else 0
    shapes = [np.shape(column) for column in column_list(log[0].observations)]
    leaf = next(i for i, shape in enumerate(shapes) if len(shape) > 1)
    rows = np.concatenate([np.asarray(column_list(t.observations)[leaf]).reshape(len(t) + 1, -1) for t in log])
    place = int(rng.choice(np.flatnonzero((rows != 0).mean(axis=0) > 0.05)))
    # Bytes are counted in other steps; they have no room for 1000 and no fractions.
    factor = float(rng.choice((10.0, 3.0) if rows.dtype.kind in "iu" else UNITS))
    changed = list(log)
    for i in range(at, len(log)):
        start = offset if i == at else 0
        changed[i] = dataclasses.replace(log[i], observations=_scaled(log[i].observations, leaf, place, start, factor))
    return changed


def _scaled(observations: Any, leaf: int, place: int, start: int, factor: float) -> Any:
    counter = iter(range(1000))

    def scale(column: Any) -> Any:
        if next(counter) != leaf:
            return column
        flat = np.array(column).reshape(len(column), -1)
        flat[start:, place] = (flat[start:, place] * factor).astype(flat.dtype)
        return flat.reshape(np.shape(column))

    return map_columns(scale, observations)


def plant_nan(log: Log, rng: np.random.Generator, spec: Spec) -> Log:
    """One number of one observation is NaN (of one reward, where observations hold whole numbers)."""
    at = int(rng.integers(len(log)))
    kinds = [dtype_of(leaf).kind == "f" for _, leaf in leaves(spec.observation_space)]
    if not any(kinds):
        rewards = _rewards(log[at]).copy()
        rewards[rng.integers(len(rewards))] = np.nan
        return [*log[:at], dataclasses.replace(log[at], rewards=rewards), *log[at + 1 :]]
    return _edited(log, at, "observations", kinds.index(True), rng, np.nan)


def plant_outside(log: Log, rng: np.random.Generator, spec: Spec) -> Log:
    """One action is outside its space."""
    _, leaf = next(leaves(spec.action_space))
    value = leaf["start"] + leaf["n"] if leaf["type"] == "Discrete" else 2.0 * np.max(leaf["high"])
    return _edited(log, int(rng.integers(len(log))), "actions", 0, rng, value)


def _edited(log: Log, at: int, role: str, leaf: int, rng: np.random.Generator, value: float) -> Log:
    counter = iter(range(1000))

    def edit(column: Any) -> Any:
        if next(counter) != leaf:
            return column
        values = np.array(column)
        flat = values.reshape(-1)
        flat[rng.integers(flat.size)] = value
        return values

    episode = dataclasses.replace(log[at], **{role: map_columns(edit, getattr(log[at], role))})
    return [*log[:at], episode, *log[at + 1 :]]


def _rewards(trajectory: Trajectory) -> np.ndarray:
    if trajectory.rewards is None:
        raise ValueError(
            f"episode {trajectory.info.get('id')} has no rewards; faults are planted in logs that have them"
        )
    return trajectory.rewards


def _bounds(log: Sequence[Trajectory]) -> list[tuple[int, int]]:
    stops = np.cumsum([len(t) for t in log])
    return [(int(stop) - len(t), int(stop)) for t, stop in zip(log, stops, strict=True)]


def _steps(trajectory: Trajectory, start: int, stop: int) -> Trajectory:
    return dataclasses.replace(
        trajectory,
        observations=map_columns(lambda c: c[start : stop + 1], trajectory.observations),
        actions=map_columns(lambda c: c[start:stop], trajectory.actions),
        rewards=_rewards(trajectory)[start:stop],
    )


def _joined(ends: Trajectory, first: Trajectory, second: Trajectory) -> Trajectory:
    """Rows of `first` followed by those of `second`, in place of whose first row its last observation is lost."""
    return dataclasses.replace(
        ends,
        observations=map_columns(lambda a, b: _concatenate(a[:-1], b), first.observations, second.observations),
        actions=map_columns(_concatenate, first.actions, second.actions),
        rewards=np.concatenate([_rewards(first), _rewards(second)]),
    )


def _concatenate(*columns: Any) -> np.ndarray:
    return np.concatenate(columns)
