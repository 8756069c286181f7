"""A step model as a world to serve: episodes are rows, and any rows are stepped together, in one call."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.utils import seeding

from worldmodel.envs.check import STARTS, Start, check_action, check_options, check_start, open_world_model, step_limit
from worldmodel.envs.control import check_control
from worldmodel.envs.host import LEAST_ROWS, HostSimulator, HostStep
from worldmodel.envs.server.wire import plain, prefix_from_json, schema, start_from_json, to_json, whole
from worldmodel.envs.server.world import SESSION_OPTIONS, Turn, check_seed
from worldmodel.envs.snapshot import name_of
from worldmodel.spaces import map_columns


class Episode(NamedTuple):
    """One simulated episode: its row of every array, bytes `[S]`, and the generator of its session's next resets."""

    row: np.ndarray
    ended: bool
    generator: np.random.Generator
    seed: int


class Begin(NamedTuple):
    """How an episode is to begin: a seed or None, and what `check_start` read."""

    seed: int | None
    start: Start


class NumericWorld:
    """See `World`. A served episode is `SimEnv`'s with the same seed and actions.

    Every call of the simulator has the same number of rows, however many sessions wait: the order in which a matrix
    product sums depends on it. So no session's bits depend on who else is served, and with up to `LEAST_ROWS` rows a
    call they are those of `SimEnv`; more rows a call are faster on accelerators.

    Args:
      checkpoint: a run folder, or a loaded `WorldModel`.
      rows: sessions that one call advances at most.
      max_episode_steps, **control: as in `SimEnv`.

    Raises:
      FileNotFoundError, ValueError: as `SimEnv`.
    """

    suffix = ".session"

    def __init__(
        self, checkpoint: Any, *, rows: int = LEAST_ROWS, max_episode_steps: int | None = None, **control: Any
    ):
        if rows < 1:
            raise ValueError(f"{rows} rows a call; at least 1 is needed")
        model = open_world_model(checkpoint)
        self._model, self._spec = model, model.spec
        self._limit = step_limit(max_episode_steps, model.spec)
        self._host = HostSimulator(model, max(rows, LEAST_ROWS), self._limit, check_control(model, **control).alone())
        self._identity = name_of(model)
        self._rows = _Rows(self._host)
        self.most = rows
        self.name = model.spec.env_id or Path(model.run).name
        self.description = f"{self.name}, simulated by a world model learned from logs ({model.step} training steps)"
        self.action_schema, self.observation_schema = (
            schema(model.spec.action_space),
            schema(model.spec.observation_space),
        )

    @property
    def spec(self) -> Any:
        """`Spec` of the environment that the model stands for."""
        return self._spec

    def warm(self) -> None:
        """Compiles what a reset and a step need, so that no client waits for it."""
        ((episode, _),) = self.reset([(None, Begin(0, Start(None, None, None)))])
        action = map_columns(lambda part: np.asarray(part)[None], self._host.action_space.sample())
        self.step([(episode, action)])

    def check_reset(self, options: Mapping[str, Any]) -> Begin:
        """See `World`; options are `seed` and those of `SimEnv.reset`, as JSON."""
        check_options(options, (*SESSION_OPTIONS, *STARTS))
        seed = options.get("seed")
        check_seed(seed)
        given = {name: options[name] for name in STARTS if options.get(name) is not None}
        if "start" in given:
            given["start"] = start_from_json(self._spec, given["start"])
        if "prefix" in given:
            given["prefix"] = prefix_from_json(self._spec, given["prefix"])
        return Begin(seed, check_start(given, self._model, self._limit))

    def check_action(self, action: Any) -> Any:
        """See `World`; the action as columns `[1, ...]`."""
        return check_action(self._host.action_space, action)

    def reset(self, items: Sequence[tuple[Episode | None, Begin]]) -> list[tuple[Episode, Turn]]:
        """See `World`. Episodes that begin in the same way begin in one call; one that has a prefix begins alone."""
        done: dict[int, tuple[Episode, Turn]] = {}
        ways: dict[Any, list[int]] = {}
        for place, (_, begin) in enumerate(items):
            first, context, prefix = begin.start
            way = ("prefix", place) if prefix is not None else (first is None, context is None)
            ways.setdefault(way, []).append(place)
        for places in ways.values():
            done |= zip(places, self._begin([items[place] for place in places]), strict=True)
        return [done[place] for place in range(len(items))]

    def step(self, items: Sequence[tuple[Episode, Any]]) -> list[tuple[Episode, Turn]]:
        """See `World`; one call of the simulator."""
        self._host.put(self._rows.gather([episode.row for episode, _ in items]))
        step = self._host.step(self._joined([action for _, action in items]))
        rows = self._rows.scatter(self._host.leaves(), len(items))
        turns = [self._turn(step, place) for place in range(len(items))]
        return [
            (Episode(row, turn.over, episode.generator, episode.seed), turn)
            for row, turn, (episode, _) in zip(rows, turns, items, strict=True)
        ]

    def save(self, episode: Episode, note: Mapping[str, Any], path: Path) -> None:
        """See `World`: a line of JSON, then the row's bytes. An archive of arrays takes ten times as long to write."""
        told = {"model": self._identity, "ended": episode.ended, "seed": episode.seed, "note": note}
        told["generator"] = episode.generator.bit_generator.state
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(temporary, "wb") as file:
            file.write(json.dumps(told, allow_nan=False).encode() + b"\n" + episode.row.tobytes())
        os.replace(temporary, path)

    def load(self, path: Path) -> tuple[Episode, dict[str, Any]]:
        """See `World`."""
        line, _, row = path.read_bytes().partition(b"\n")
        try:
            told = json.loads(line)
            model, note, ended, seed = (told[name] for name in ("model", "note", "ended", "seed"))
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = told["generator"]
        except (KeyError, TypeError, ValueError):
            raise ValueError("its file is no session") from None
        if model != self._identity:
            raise ValueError("it is of another world model")
        if len(row) != self._rows.size:
            raise ValueError("it is of other arguments of the environment")
        return Episode(np.frombuffer(row, np.uint8), ended, generator, seed), note

    def drop(self, episode: Episode) -> None:
        """See `World`: an episode holds nothing but its arrays."""

    def _begin(self, items: list[tuple[Episode | None, Begin]]) -> list[tuple[Episode, Turn]]:
        seeded = [before is None or begin.seed is not None for before, begin in items]
        pairs = [
            seeding.np_random(begin.seed) if new or before is None else (before.generator, before.seed)
            for new, (before, begin) in zip(seeded, items, strict=True)
        ]
        # A perturbation whose strength progresses goes on from the episode before, where there was one.
        earlier = [before for before, _ in items if before is not None]
        self._host.forget()
        if earlier:
            self._host.put(self._rows.gather([(before or earlier[0]).row for before, _ in items]))
        spare = self._host.rows - len(items)
        generators = [generator for generator, _ in pairs] + [np.random.default_rng(0) for _ in range(spare)]
        starts = [begin.start for _, begin in items]
        first, context, prefix = starts[0]
        obs = self._host.reset(
            generators,
            None if first is None else self._joined([start.first for start in starts]),
            None if context is None else self._joined([start.context for start in starts]),
            seeded=np.array([*seeded, *[True] * spare]),
        )
        if prefix is not None:
            obs = self._host.observe(prefix)
        rows = self._rows.scatter(self._host.leaves(), len(items))
        return [
            (Episode(row, False, *pair), Turn(self._told(obs, place), None, False, False, {}))
            for place, (row, pair) in enumerate(zip(rows, pairs, strict=True))
        ]

    def _joined(self, parts: list[Any]) -> Any:
        """Columns `[1, ...]` as one `[rows, ...]`, filled up with copies of the first."""
        spare = [parts[0]] * (self._host.rows - len(parts))
        return map_columns(lambda *columns: np.concatenate(columns), *parts, *spare)

    def _told(self, obs: Any, row: int) -> Any:
        return to_json(self._spec.observation_space, map_columns(lambda column: column[row], obs))

    def _turn(self, step: HostStep, row: int) -> Turn:
        obs, reward = self._told(step.obs, row), plain(step.reward[row])
        info = {name: plain(values[row]) for name, values in step.info.items()}
        if reward is None or not whole(obs):
            info["why"] = "the model left the finite numbers: null stands where it did"
        return Turn(obs, reward, bool(step.terminated[row]), bool(step.truncated[row]), info)


class _Rows:
    """Rows of the host's arrays as bytes, one array for each row: one piece of memory, and one in the file."""

    def __init__(self, host: HostSimulator):
        self._count = host.rows
        few, many = (host.layout(rows)[0] for rows in (host.rows, host.rows + 1))
        self._parts: list[tuple[int, tuple[int, ...], np.dtype, int, int]] = []
        self.size = 0
        for one, other in zip(few, many, strict=True):
            # Rows lie along the axis that grows with their number.
            (axis,) = [axis for axis, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b]
            shape, dtype = one.shape[:axis] + one.shape[axis + 1 :], np.dtype(one.dtype)
            end = self.size + math.prod(shape) * dtype.itemsize
            self._parts.append((axis, shape, dtype, self.size, end))
            self.size = -(-end // _ALIGNED) * _ALIGNED

    def gather(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Arrays of the host; rows that are to spare are copies of the first."""
        block = np.stack([*rows, *[rows[0]] * (self._count - len(rows))])
        return [
            np.moveaxis(block[:, start:end].copy().view(dtype).reshape(self._count, *shape), 0, axis)
            for axis, shape, dtype, start, end in self._parts
        ]

    def scatter(self, leaves: list[np.ndarray], count: int) -> list[np.ndarray]:
        """The first rows of the arrays, each in memory of its own: a view would keep its whole batch alive."""
        block = np.zeros((count, self.size), np.uint8)
        for leaf, (axis, _, _, start, end) in zip(leaves, self._parts, strict=True):
            rows = np.ascontiguousarray(np.moveaxis(leaf, axis, 0)[:count]).reshape(count, -1)
            block[:, start:end] = rows.view(np.uint8)
        return [row.copy() for row in block]


_ALIGNED = 8
"""Bytes that every array of a row begins at a multiple of."""
