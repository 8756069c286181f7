"""The codec of one environment's transitions, fitted to its logs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.codec.box import BoxCodec
from worldmodel.codec.context import ContextCodec, ContextField
from worldmodel.codec.discrete import DiscreteCodec, GridCodec, MultiDiscreteCodec
from worldmodel.codec.picture import LARGEST_SIDE, PictureCodec
from worldmodel.codec.reward import RewardCodec
from worldmodel.codec.tree import Leaf, TreeCodec
from worldmodel.spaces import at, is_image, leaves, named, shape_of, walk
from worldmodel.trajectory import Spec

LARGEST_BOX = 256
"""Most continuous numbers of a space: within a step they are predicted one after another."""

LARGEST_GRID = 1024
"""Most categories side by side: within a step they are predicted all at once."""

SpaceCodec = BoxCodec | DiscreteCodec | TreeCodec
_LEAVES: dict[str, Any] = {
    "box": BoxCodec,
    "multi_discrete": MultiDiscreteCodec,
    "grid": GridCodec,
    "picture": PictureCodec,
}


@dataclasses.dataclass(frozen=True)
class StepCodec:
    """All codecs of one environment, and the rate of true ends in its logs."""

    observation: SpaceCodec
    action: SpaceCodec
    reward: RewardCodec
    end_rate: float
    context: ContextCodec = ContextCodec()

    @property
    def uniforms(self) -> int:
        """Uniform numbers that a sampled transition takes: the observation's, two for the reward, one for the end."""
        return self.observation.uniforms + 3

    @property
    def looks_back(self) -> bool:
        """Whether the observation before the present one is needed, too: what moves shows in two pictures."""
        return isinstance(self.observation, TreeCodec) and bool(self.observation.pictures)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; the inverse of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepCodec:
        """The inverse of `to_json`."""
        return cls(
            observation=_space_codec_from_json(data["observation"]),
            action=_space_codec_from_json(data["action"]),
            reward=RewardCodec(**_frozen(data["reward"])),
            end_rate=data["end_rate"],
            context=_context_codec_from_json(data["context"]),
        )


def _context_codec_from_json(data: Mapping[str, Any]) -> ContextCodec:
    return ContextCodec(tuple(ContextField(**field) for field in data["fields"]), tuple(data["ignored"]))


def _space_codec_from_json(data: Mapping[str, Any]) -> SpaceCodec:
    if data["kind"] == "discrete":
        return DiscreteCodec(**data)
    if data["kind"] == "tree":
        parts = tuple(_LEAVES[leaf["kind"]](**_frozen(leaf)) for leaf in data["leaves"])
        return TreeCodec(_tuples(data["paths"]), parts)
    return BoxCodec(**_frozen(data))


def _frozen(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in data.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _roles(spec: Spec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "observation", spec.observation_space
    yield "action", spec.action_space


def check_kinds(spec: Spec) -> None:
    """Raises `ValueError` for spaces that no behaviour policy plays: they take one Box or one Discrete."""
    for role, space in _roles(spec):
        if space["type"] not in ("Box", "Discrete"):
            raise ValueError(f"{role} space {space['type']} is not supported; supported are Box and Discrete")


def check_spec(spec: Spec) -> None:
    """Raises `ValueError` for spaces that cannot be modelled, before anything is recorded or trained."""
    for role, space in _roles(spec):
        numbers = sites = 0
        for path, leaf in leaves(space):
            name, shape = named(f"{role} space", path), shape_of(leaf)
            if leaf["type"] == "Text":
                raise ValueError(
                    f"{name} is Text, which the step model does not read; supported are Box, Discrete, MultiDiscrete, "
                    "MultiBinary, and Dict and Tuple of them"
                )
            size = math.prod(shape)
            if role == "observation" and is_image(leaf) and size > LARGEST_GRID:
                if max(shape[:2]) > LARGEST_SIDE:
                    raise ValueError(
                        f"{name} is a picture of {shape[0]}x{shape[1]} pixels; supported are at most {LARGEST_SIDE}x"
                        f"{LARGEST_SIDE}: gymnasium.wrappers.ResizeObservation makes it smaller"
                    )
                continue
            integers = leaf["type"] == "Box" and np.dtype(leaf["dtype"]).kind in "iu"
            if leaf["type"] == "Box" and size > (LARGEST_GRID if integers else LARGEST_BOX):
                most = f"{LARGEST_GRID} integers of few values, or {LARGEST_BOX} numbers"
                raise ValueError(
                    f"{name} is a Box of shape {shape}, {size:,} numbers; supported are Discrete spaces and Boxes of "
                    f"at most {most if integers else LARGEST_BOX}"
                )
            numbers += size if leaf["type"] == "Box" and not integers else 0
            sites += 0 if leaf["type"] == "Box" else size
        for total, most, what in ((numbers, LARGEST_BOX, "numbers"), (sites, LARGEST_GRID, "categories")):
            if total > most:
                raise ValueError(f"{role} space has {total:,} {what} in all; supported are at most {most}")


def fit_codec(
    spec: Spec,
    observations: Any,
    next_observations: Any,
    actions: Any,
    rewards: np.ndarray,
    terminated: np.ndarray,
    contexts: Sequence[Any] = (),
) -> StepCodec:
    """Statistics of `N` logged transitions.

    Args:
      spec: the spaces.
      observations: columns `[N, ...]` before each action.
      next_observations: columns `[N, ...]` after it.
      actions: columns `[N, ...]`.
      rewards: float `[N]`.
      terminated: bool `[N]`.
      contexts: of the episodes, `[E]`, plain JSON.

    Raises:
      ValueError: a space is too large to be modelled, or a context cannot be read.
    """
    check_spec(spec)
    return StepCodec(
        observation=_fit_space(
            spec.observation_space, "observation", observations, next_observations, np.asarray(terminated)
        ),
        action=_fit_space(spec.action_space, "action", actions, actions, None),
        reward=RewardCodec.fit(rewards),
        # Jeffreys' prior: logs without a single end still say how rare an end can be at most.
        end_rate=float((np.sum(terminated) + 0.5) / (len(terminated) + 1.0)),
        context=ContextCodec.fit(contexts),
    )


def _fit_space(space: Mapping[str, Any], role: str, values: Any, following: Any, ends: np.ndarray | None) -> SpaceCodec:
    if space["type"] == "Discrete":
        return DiscreteCodec(n=space["n"], start=space["start"])
    paths, parts = zip(*walk(space), strict=True)
    # What an action was tells nothing of which it may be: integers of an action stay numbers.
    fitted = tuple(
        _fit_leaf(leaf, at(values, path), at(following, path), ends, grids=role == "observation")
        for path, leaf in zip(paths, parts, strict=True)
    )
    if space["type"] == "Box" and isinstance(fitted[0], BoxCodec):
        codec = fitted[0]
        _check_numbers(codec.size, f"{role} space", fitted[0].shape)
        return codec
    codec = TreeCodec(paths, fitted)
    _check_numbers(codec.numbers, f"{role} space", None)
    return codec


def _fit_leaf(space: Mapping[str, Any], values: Any, following: Any, ends: np.ndarray | None, *, grids: bool) -> Leaf:
    if space["type"] != "Box":
        return MultiDiscreteCodec.fit(space, values, following)
    small = math.prod(space["shape"]) <= LARGEST_GRID
    grid = GridCodec.fit(space, values, following) if grids and small else None
    if grid is None and grids and is_image(space):
        return PictureCodec.fit(space, values, following)
    return grid or BoxCodec.fit(space, values, following, ends)


def _check_numbers(size: int, name: str, shape: tuple[int, ...] | None) -> None:
    if size > LARGEST_BOX:
        what = f"is a Box of shape {shape}, {size:,} numbers" if shape else f"has {size:,} numbers in all"
        raise ValueError(
            f"{name} {what} of more values than a grid of categories has; supported are Discrete spaces and Boxes of "
            f"at most {LARGEST_BOX}"
        )
