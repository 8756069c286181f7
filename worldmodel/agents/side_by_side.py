"""One imagined episode, and beside it the real environment with the same actions from the same start."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from worldmodel.agents.record import rebuild_env
from worldmodel.envs.check import check_action
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.rendering import fit, pictures
from worldmodel.images import encode_gif
from worldmodel.spaces import map_columns
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Spec

FRAME = (300, 300)
"""Box in pixels that a side's picture fits in."""
GAP, BANNER = 8, 16
"""Pixels between the sides, and above them for their names."""


@dataclasses.dataclass
class Side:
    """What one side of the screen has lived through.

    Attributes:
      observations: as its `reset` and `step` returned them.
      rewards: of each step.
      end: "terminated", "truncated", or None while it goes on.
    """

    observations: list[Any]
    rewards: list[float] = dataclasses.field(default_factory=list)
    end: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, and the return."""
        observations = [map_columns(lambda part: np.asarray(part).tolist(), obs) for obs in self.observations]
        told = {"observations": observations, "rewards": self.rewards, "return": float(sum(self.rewards))}
        return {**told, "end": self.end}


class SideBySide:
    """Steps both worlds; a side that ended stays as it is.

    Attributes:
      imagined: the simulated side; None before `reset`.
      real: the real side; None where it was not asked for.

    Raises:
      ValueError: the logs name no real environment, or it cannot be made, or has other spaces than the model.
    """

    def __init__(self, world: WorldModel, *, real: bool, context: Any = None):
        self._spec = world.spec
        self._context = context
        self._sides: dict[str, gym.Env] = {"imagined": SimEnv(world)}
        if real:
            self._sides["real"] = rebuild_env(world.spec, disable_env_checker=True)
            found = Spec.from_gymnasium(self._sides["real"])
            if (found.observation_space, found.action_space) != (
                world.spec.observation_space,
                world.spec.action_space,
            ):
                self.close()
                raise ValueError(f"{world.spec.env_id} has other spaces than the model: it cannot be stepped beside it")
        self.imagined: Side | None = None
        self.real: Side | None = None

    @property
    def action_space(self) -> gym.Space:
        """Of both."""
        return self._sides["imagined"].action_space

    @property
    def sides(self) -> Mapping[str, Side]:
        """The sides that there are, by name."""
        found = {"imagined": self.imagined, "real": self.real}
        return {name: side for name, side in found.items() if side is not None}

    @property
    def over(self) -> bool:
        """Whether every side has ended."""
        return all(side.end is not None for side in self.sides.values())

    def reset(self, seed: int | None = None) -> None:
        """A new episode; where there is a real side, both begin where it does."""
        options = {} if self._context is None else {"context": self._context}
        if "real" in self._sides:
            obs, _ = self._sides["real"].reset(seed=seed)
            self.real = Side([obs])
            options["start"] = obs
        obs, _ = self._sides["imagined"].reset(seed=seed, options=options)
        self.imagined = Side([obs])

    def step(self, action: Any) -> None:
        """The same action on every side that goes on; `ValueError` for one that is not of the space."""
        checked = check_action(self.action_space, action)
        checked = map_columns(lambda column: column[0], checked)
        for name, side in self.sides.items():
            if side.end is None:
                obs, reward, terminated, truncated, _ = self._sides[name].step(checked)
                side.observations.append(map_columns(np.copy, obs))
                side.rewards.append(float(reward))
                side.end = "terminated" if terminated else "truncated" if truncated else None

    def gif(self, seconds: float = 0.05) -> bytes:
        """Both sides as a GIF file, a frame for every step; a side that ended shows its last picture."""
        drawn = [pictures(self._spec, np.stack(side.observations), size=FRAME) for side in self.sides.values()]
        count = max(map(len, drawn))
        sides = [[*some, *[some[-1]] * (count - len(some))] for some in drawn]
        names = list(self.sides)
        return encode_gif([_beside(names, frames) for frames in zip(*sides, strict=True)], seconds)

    def close(self) -> None:
        """Closes the environments."""
        for env in self._sides.values():
            env.close()


def _beside(names: Sequence[str], frames: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of one height side by side, each under its name."""
    from PIL import Image, ImageDraw

    height = max(frame.shape[0] for frame in frames)
    width = sum(frame.shape[1] for frame in frames) + GAP * (len(frames) - 1)
    sheet = Image.new("RGB", (width, height + BANNER), "white")
    place = 0
    for name, frame in zip(names, frames, strict=True):
        ImageDraw.Draw(sheet).text((place + 4, 2), name, fill="black")
        sheet.paste(Image.fromarray(fit(frame, FRAME)), (place, BANNER))
        place += frame.shape[1] + GAP
    return np.asarray(sheet)


def parse_action(space: gym.Space, text: str) -> Any:
    """An action out of a line: numbers with spaces between them, `+` or `-` for the ends of a Box, or JSON.

    What the line cannot say, such as a number out of bounds, is left for the environment to refuse.

    Raises:
      ValueError: the line is none of these.
    """
    text = text.strip()
    if isinstance(space, gym.spaces.Box) and text in ("+", "-"):
        return np.array(space.high if text == "+" else space.low)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        try:
            value = [json.loads(word) for word in text.replace(",", " ").split()]
        except json.JSONDecodeError:
            raise ValueError(f"{text!r} is no action; {describe_actions(space)}") from None
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return _from_json(space, value)
    values = np.asarray(value)
    if values.dtype.kind not in "iufb" or values.size != int(np.prod(space.shape or ())):
        raise ValueError(f"{text!r} is no action; {describe_actions(space)}")
    return values.reshape(space.shape or ())


def describe_actions(space: gym.Space) -> str:
    """What a line may say, in a few words."""
    if isinstance(space, gym.spaces.Discrete):
        return f"a number from {space.start} to {space.start + space.n - 1} is needed"
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return f"JSON of {space} is needed"
    size = int(np.prod(space.shape or ()))
    ends = ", or + or - for its ends" if isinstance(space, gym.spaces.Box) else ""
    return f"{size} number(s) of {space} are needed{ends}"


def _from_json(space: Any, value: Any) -> Any:
    """JSON as the parts of a Dict or a Tuple; what does not fit is left for the environment to refuse."""
    if isinstance(space, gym.spaces.Dict) and isinstance(value, dict):
        return {key: _from_json(space.spaces.get(key), part) for key, part in value.items()}
    if isinstance(space, gym.spaces.Tuple) and isinstance(value, list):
        parts = [*space.spaces, *[None] * len(value)]
        return tuple(_from_json(part, item) for part, item in zip(parts, value, strict=False))
    return np.asarray(value)


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file of actions with their numbers, from 1: not the empty ones, nor those that begin with #."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line
