"""Episodes that a world model imagines: families of simulated environments, rolled out by policies.

What varies is said by one dial each (`Family`), and every episode says in its `info` that it is synthetic.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.agents.behaviour import Behaviour
from worldmodel.agents.context_draws import check_draws, drawn, merged
from worldmodel.agents.named import TrainedPolicy, named_policies, past_of
from worldmodel.agents.past import Past
from worldmodel.corpus import StoredEpisodes
from worldmodel.envs.snapshot import name_of
from worldmodel.envs.vector import SimVectorEnv
from worldmodel.simulator import DEFAULT_TIME_LIMIT
from worldmodel.spaces import map_columns
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Trajectory

ROWS = 32
"""Episodes imagined side by side, whatever their number: a product's last bits depend on its height."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of simulated environments, one dial for each thing that may vary.

    Attributes:
      starts: recorded episodes; each imagined one begins at an observation drawn from theirs, in the context of its
        episode. None: where the model's own episodes begin.
      context: physics and whatever else holds for an episode, JSON in which `{"uniform": [low, high]}` and
        `{"choice": [..]}` are drawn (`worldmodel.agents.context_draws`); it goes before the starts'.
      worlds: of how many environments the family consists: so many contexts are drawn, and the episodes shared evenly
        among them. None: one for every episode.
      env: further arguments of `SimVectorEnv`, the same for every episode.
    """

    starts: StoredEpisodes | None = None
    context: Any = None
    worlds: int | None = None
    env: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def imagine(
    world: WorldModel,
    *,
    policies: Sequence[str],
    episodes: int,
    seed: int,
    family: Family | None = None,
    horizon: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Trajectory]:
    """Rolls policies out in a family of simulated environments; the same arguments give the same bits.

    Episodes run `ROWS` at a time. Behaviours that breed from earlier episodes come last, and see those of the rows
    before theirs.

    Args:
      world: the model.
      policies: as `named_policies` reads them; each gets an even share, one named twice two.
      episodes: how many.
      seed: of everything.
      family: what varies; None: nothing but the chances.
      horizon: steps after which an episode is cut (neither terminated nor truncated); None: the environment's limit, or
        `DEFAULT_TIME_LIMIT`.
      progress: called with (episodes done, steps done).

    Returns:
      Trajectories, imagined as they are asked for; `info` has `synthetic` (true), the `model` and its training `step`,
      the number of the `world` in the family, `seed`, and of a recorded start the `start_episode` and `start_step`.

    Raises:
      ValueError: an argument is out of range, a policy is unknown or does not suit the spaces, the context is not one
        that the model knows, or it needs one and none is said.
      FileNotFoundError: a policy's file is missing.
    """
    family = family or Family()
    numbers = {"episodes": episodes, "horizon": horizon, "worlds": family.worlds}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed")
    spec, known = world.spec, inspect.signature(SimVectorEnv).parameters
    for name in family.env:
        if name not in known or name in ("num_envs", "checkpoint", "autoreset_mode", "render_mode"):
            raise ValueError(f"argument {name!r} of the simulated environments is not known")
    codec = world.dynamics.codec.context
    check_draws(family.context)
    codec.check(drawn(family.context, np.random.default_rng(0)))
    if codec.fields and family.context is None and family.starts is None:
        names = ", ".join(field.name or "the context" for field in codec.fields)
        raise ValueError(f"the model reads {names} at every step: say which (context), or take recorded starts")
    mixture = sorted(named_policies(policies, world), key=lambda policy: policy.uses_past)
    shares = [episodes // len(mixture) + (i < episodes % len(mixture)) for i in range(len(mixture))]
    plan = [policy for policy, share in zip(mixture, shares, strict=True) for _ in range(share)]
    env = SimVectorEnv(ROWS, world, **{"max_episode_steps": spec.max_episode_steps or -1, **family.env})
    limit = horizon or spec.max_episode_steps or DEFAULT_TIME_LIMIT
    return _Imagination(world, env, family, plan, past_of(mixture, spec), seed, limit).run(progress)


@dataclasses.dataclass(frozen=True)
class _Imagination:
    """One call of `imagine`, whose arguments are checked."""

    world: WorldModel
    env: SimVectorEnv
    family: Family
    plan: list[Behaviour | TrainedPolicy]
    past: Past | None
    seed: int
    limit: int

    def run(self, progress: Callable[[int, int], None] | None) -> Iterator[Trajectory]:
        """Every episode, in the plan's order."""
        steps = 0
        for first in range(0, len(self.plan), ROWS):
            rows = self._rows(range(first, min(first + ROWS, len(self.plan))))
            for done, row in enumerate(rows, 1):
                steps += len(row.trajectory)
                if self.past is not None:
                    self.past.absorb(row.trajectory, row.policy.rule)
                if progress is not None:
                    progress(first + done, steps)
                yield row.trajectory

    def _rows(self, numbers: range) -> list[_Row]:
        """Episodes of these numbers, side by side."""
        rows = [self._begin(number) for number in numbers]
        idle = ROWS - len(rows)
        seeds = [row.info["seed"] for row in rows] + [0] * idle
        options: dict[str, Any] = {}
        if rows[0].start is not None:
            starts = [row.start for row in rows] + [rows[0].start] * idle
            options["start"] = map_columns(lambda *parts: np.stack(parts), *starts)
        if self.world.dynamics.codec.context.fields:
            options["context"] = [row.context for row in rows] + [rows[0].context] * idle
        obs, _ = self.env.reset(seed=seeds, options=options)
        for place, row in enumerate(rows):
            row.observations.append(_row(obs, place))
        self.env.single_action_space.seed(0)
        actions = np.stack([self.env.single_action_space.sample()] * ROWS)  # what ended rows go on with, unseen
        for _ in range(self.limit):
            running = [(place, row) for place, row in enumerate(rows) if not row.ended]
            if not running:
                break
            for place, row in running:
                actions[place] = row.policy.act(row.observations[-1])
            obs, reward, terminated, truncated, _ = self.env.step(actions)
            for place, row in running:
                row.actions.append(actions[place].copy())
                row.observations.append(_row(obs, place))
                row.rewards.append(reward[place])
                row.terminated, row.truncated = bool(terminated[place]), bool(truncated[place])
        return rows

    def _begin(self, number: int) -> _Row:
        """Everything that is drawn for an episode before its first step."""
        spec, world = self.world.spec, number % (self.family.worlds or len(self.plan))
        name = f"imagined/{name_of(self.world)}/{self.seed}/{number:06d}"
        info = {
            "id": name,
            "source": "imagined",
            "synthetic": True,
            "policy": self.plan[number].name,
            "seed": int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") // 2,
            "model": name_of(self.world),
            "step": self.world.step,
            "world": world,
        }
        chances = [np.random.default_rng([self.seed % 2**63, of, n]) for of, n in enumerate((number, number, world))]
        start, context = None, None
        if self.family.starts is not None:
            recorded, step = _drawn_start(self.family.starts, chances[0])
            start, context = (
                map_columns(lambda column: np.asarray(column[step]), recorded.observations),
                recorded.context,
            )
            info |= {"start_episode": str(recorded.info.get("id", "")), "start_step": step}
        context = merged(context, drawn(self.family.context, chances[2]))
        return _Row(self.plan[number].begin(spec, self.past, chances[1]), info, start, context)


@dataclasses.dataclass
class _Row:
    """An episode while it is imagined."""

    policy: Any
    info: dict[str, Any]
    start: Any
    context: Any
    observations: list[Any] = dataclasses.field(default_factory=list)
    actions: list[np.ndarray] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    @property
    def trajectory(self) -> Trajectory:
        observed = map_columns(lambda *parts: np.stack(parts), *self.observations)
        acted = np.stack(self.actions)
        log_probs = self.policy.log_probs(observed, acted) if hasattr(self.policy, "log_probs") else None
        return Trajectory(
            observations=observed,
            actions=acted,
            rewards=np.array(self.rewards, np.float32),
            terminated=self.terminated,
            truncated=self.truncated and not self.terminated,
            action_log_prob=None if log_probs is None else log_probs.astype(np.float32),
            context=self.context,
            info=self.info,
        )


def _row(columns: Any, place: int) -> Any:
    return map_columns(lambda column: column[place].copy(), columns)


def _drawn_start(episodes: StoredEpisodes, rng: np.random.Generator) -> tuple[Trajectory, int]:
    """A recorded episode and one of its steps, every transition alike: none starts at an episode's last observation."""
    place = int(rng.integers(episodes.transitions))
    ends = np.cumsum(episodes.lengths)
    episode = int(np.searchsorted(ends, place, side="right"))
    return episodes[episode], int(place - (ends[episode] - episodes.lengths[episode]))
