"""An RLDS episode as a `Trajectory`: which feature becomes what, and which row belongs where.

Row `t` of the steps holds `o_t`, `a_t` and the reward of `a_t`. By RLDS's definition the last row holds an observation
only: its action and reward are padding. Many Open X-Embodiment sets log a real action there, of which nobody knows what
followed; it is left out all the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodel.sources.files import json_of
from worldmodel.sources.rlds_fields import Example, Field, LeaveOut, Tree, fields_of, space_of, tree_of, values_of
from worldmodel.spaces import column_list, map_columns, shape_of
from worldmodel.trajectory import Spec, Trajectory

_FLAGS = ("is_first", "is_last", "is_terminal")
_LISTS = ("cost", "duration")
_OWN_KEYS = ("id", "source", "policy", "seed", "split", "final_reward", *_LISTS)
"""Keys of `Trajectory.info` with a meaning of their own."""
_CORPUS_METADATA = {"terminated", "truncated", "has_rewards", "context", "info"}
"""What the parts of this project's corpora say of an episode."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """What each feature of a dataset becomes.

    Attributes:
      observation: tree of the observations.
      action: tree of the actions.
      scalars: fields of one number a step: reward, action_log_prob, cost, duration, is_first, is_last, is_terminal.
      instructions: texts that hold for the whole episode, by their key.
      metadata: trees of what is logged once an episode, by their key.
      left_out: a line for each feature that is not read.
      is_corpus: the dataset is a part of one of this project's corpora.
      add_final_reward: the last row's reward belongs to the last transition.
    """

    observation: Tree
    action: Tree
    scalars: Mapping[str, Field]
    instructions: Mapping[str, Field]
    metadata: Mapping[str, Tree]
    left_out: tuple[str, ...]
    is_corpus: bool
    add_final_reward: bool

    @property
    def spec(self) -> Spec:
        """Spaces of the observations and actions."""
        return Spec(observation_space=space_of(self.observation), action_space=space_of(self.action))

    @property
    def has_open_images(self) -> bool:
        """The features leave the size of an image open."""
        return any(field.is_open_image for tree in (self.observation, self.action) for field in fields_of(tree))

    def trajectory(self, example: Example, info: Mapping[str, Any]) -> Trajectory:
        """One episode; `info` is what the source says of it.

        Raises:
          ValueError: a column does not fit its feature or the others, an episode begins or ends in the middle, or an
            instruction changes. The message says which; the caller says where.
        """
        observations, actions = values_of(self.observation, example), values_of(self.action, example)
        scalars = {name: np.ravel(field.read(example)) for name, field in self.scalars.items()}
        instructions = {key: field.read(example) for key, field in self.instructions.items()}
        columns = [*_named(self.observation, observations), *_named(self.action, actions)]
        rows = _rows([*columns, *scalars.items(), *instructions.items()])
        ends = _ends(scalars, rows)
        rewards = np.asarray(scalars["reward"], np.float32) if "reward" in scalars else None
        log_prob = np.asarray(scalars["action_log_prob"], np.float32)[:-1] if "action_log_prob" in scalars else None
        known = {**info, **{name: scalars[name][:-1].tolist() for name in _LISTS if name in scalars}}
        metadata = {key: _once(tree, example) for key, tree in self.metadata.items()}
        if self.is_corpus:
            context = json_of(metadata["context"], "its context")
            known = json_of(metadata["info"], "its info")
            if not isinstance(known, dict):
                raise ValueError(f"its info is a {type(known).__name__}; a dict is needed")
            ends = (bool(metadata["terminated"]), bool(metadata["truncated"]))
            rewards = rewards if metadata["has_rewards"] else None
        else:
            texts = {key: _constant(key, column[: max(rows - 1, 1)]) for key, column in instructions.items()}
            context = texts if len(texts) > 1 else next(iter(texts.values()), None)
            known = {**_plain(metadata), **known}
        if rewards is not None and rows > 1 and rewards[-1] != 0 and not self.is_corpus:
            if self.add_final_reward:
                rewards = np.concatenate([rewards[:-2], rewards[-2:-1] + rewards[-1], rewards[-1:]])
            else:
                known["final_reward"] = _json_numbers(float(rewards[-1]))
        return Trajectory(
            observations=observations,
            actions=map_columns(lambda column: column[:-1], actions),
            rewards=None if rewards is None else rewards[:-1],
            terminated=ends[0],
            truncated=ends[1],
            action_log_prob=None if log_prob is None or np.isnan(log_prob).any() else log_prob,
            context=context,
            info=known,
        )


def steps_of_features(features: Any, *, instruction: str, final_reward: str) -> Steps:
    """Assigns every feature of a dataset its role.

    Args:
      features: the dataset's features, as TFDS reads them.
      instruction: "context" or "observation", where texts that instruct go.
      final_reward: "padding" or "add", what the last row's reward is.

    Raises:
      ValueError: the dataset is not of RLDS's form, or nothing of its observations or actions can be read.
    """
    import tensorflow_datasets as tfds

    left_out: list[str] = []

    def leave_out(name: str, why: str) -> None:
        left_out.append(f"{name}: {why}")

    f = tfds.features
    steps = features["steps"] if isinstance(features, f.FeaturesDict) and "steps" in features else None
    if not isinstance(steps, f.Dataset) or not isinstance(steps.feature, f.FeaturesDict):
        raise ValueError("has no feature 'steps' that is a Dataset of dicts; it is not of RLDS's form")
    parts = dict(steps.feature.items())
    for role in ("observation", "action"):
        if role not in parts:
            raise ValueError(f"steps hold {', '.join(sorted(parts))}, but no {role!r}")
    trees = {name: tree_of(parts.pop(name), f"steps/{name}", leave_out) for name in ("observation", "action")}
    metadata = _metadata(features, leave_out)
    is_corpus = set(metadata) >= _CORPUS_METADATA and all(
        isinstance(metadata[key], Field) and metadata[key].stored == "text" for key in ("context", "info")
    )
    # A corpus has its instructions in its context; a text among its observations is one.
    instructions = {} if is_corpus else _instructions(parts, trees["observation"], leave_out)
    if instruction == "observation" and instructions:
        observation = trees["observation"]
        trees["observation"] = {**(observation if isinstance(observation, dict) else {"observation": observation})}
        trees["observation"] |= instructions
        instructions = {}
    scalars = {}
    for name in ("reward", "action_log_prob", *_LISTS, *_FLAGS):
        field = tree_of(parts.pop(name), f"steps/{name}", leave_out) if name in parts else None
        if isinstance(field, Field) and field.dtype.kind in "biuf" and math.prod(shape_of(field.space)) == 1:
            scalars[name] = field
        elif field is not None:
            leave_out(f"steps/{name}", "is not one number a step")
    for name in sorted(parts):
        is_discount = name == "discount"
        leave_out(f"steps/{name}", "is not kept; is_terminal says the end" if is_discount else "has no place here")
    for role, tree in trees.items():
        if not tree:
            raise ValueError(f"nothing of its {role}s can be read: {'; '.join(left_out)}")
    if not is_corpus and final_reward == "add":
        leave_out("the last step's action", "is padding in RLDS")
    elif not is_corpus:
        leave_out("the last step's action and reward", "are padding in RLDS; a reward that is not 0 stays in `info`")
    return Steps(
        observation=trees["observation"],
        action=trees["action"],
        scalars=scalars,
        instructions=instructions,
        metadata=metadata,
        left_out=tuple(left_out),
        is_corpus=is_corpus,
        add_final_reward=final_reward == "add",
    )


def _instructions(parts: dict[str, Any], observation: Tree, leave_out: LeaveOut) -> dict[str, Field]:
    """Takes the texts that instruct, and what was computed from them, out of the features and the observations."""
    found = {}
    for key in [key for key in parts if _is_about_language(key)]:
        tree = tree_of(parts[key], f"steps/{key}", lambda name, why: None)
        if isinstance(tree, Field) and _takes(key, tree, found, leave_out):
            del parts[key]
    if isinstance(observation, dict):
        for key in [key for key in observation if _is_about_language(key)]:
            if isinstance(observation[key], Field) and _takes(key, observation[key], found, leave_out):
                del observation[key]
    return found


def _takes(key: str, field: Field, found: dict[str, Field], leave_out: LeaveOut) -> bool:
    if field.stored == "text":
        found[key] = field
    elif "embedding" in key:
        leave_out(field.name, "is computed from the instruction, which is read")
    else:
        return False
    return True


def _is_about_language(key: str) -> bool:
    return "language" in key or "instruction" in key


def _metadata(features: Any, leave_out: LeaveOut) -> dict[str, Tree]:
    """Trees of `episode_metadata` and of whatever else is logged once an episode."""
    parts = {name: (feature, name) for name, feature in features.items() if name not in ("steps", "episode_metadata")}
    if "episode_metadata" in features:
        inner = features["episode_metadata"]
        parts |= {name: (feature, f"episode_metadata/{name}") for name, feature in inner.items()}
    trees = {key: tree_of(feature, name, leave_out) for key, (feature, name) in sorted(parts.items())}
    for key, tree in trees.items():
        for field in fields_of(tree or {}):
            if field.stored == "image":
                leave_out(field.name, "is an image of the whole episode")
                trees[key] = None
    return {key: tree for key, tree in trees.items() if tree}


def _rows(columns: list[tuple[str, Any]]) -> int:
    """The one length of all columns."""
    first, rows = columns[0][0], len(columns[0][1])
    for name, column in columns:
        if len(column) != rows:
            raise ValueError(f"{name} has {len(column)} steps, {first} has {rows}; they must be as many")
    return rows


def _named(tree: Tree, values: Any) -> list[tuple[str, Any]]:
    return [(field.name, column) for field, column in zip(fields_of(tree), column_list(values), strict=True)]


def _ends(scalars: Mapping[str, np.ndarray], rows: int) -> tuple[bool, bool]:
    """Whether the episode terminated, and whether a limit cut it; neither where the log does not say that it ended."""
    for name, place, inside in (
        ("is_first", "beginning", slice(1, None)),
        *((n, "end", slice(-1)) for n in _FLAGS[1:]),
    ):
        steps = np.arange(rows)[inside][scalars[name][inside] != 0] if name in scalars else np.zeros(0)
        if len(steps):
            raise ValueError(
                f"step {steps[0]} of {rows} is marked {name}; an RLDS episode has that at its {place} only"
            )
    terminated, last = (bool(rows and name in scalars and scalars[name][-1]) for name in ("is_terminal", "is_last"))
    return terminated, last and "is_terminal" in scalars and not terminated


def _constant(key: str, column: np.ndarray) -> str:
    """The one text of all steps."""
    for step, text in enumerate(column):
        if text != column[0]:
            raise ValueError(
                f"{key} changes at step {step} from {column[0]!r} to {text!r}; read such a log with "
                "instruction='observation'"
            )
    return column[0] if len(column) else ""


def _once(tree: Tree, example: Example) -> Any:
    """What is logged once an episode, as plain JSON; labels by their name, None for a number that is not finite."""
    if not isinstance(tree, Field):
        return {key: _once(part, example) for key, part in tree.items()}
    column = tree.read(example)
    if len(column) != 1:
        raise ValueError(f"{tree.name} holds {len(column)} values; one an episode is needed")
    if isinstance(column[0], str):
        return column[0]
    value = _json_numbers(column[0].astype(tree.dtype).tolist())  # a bool is one again
    return tree.labels[value] if tree.labels and value in range(len(tree.labels)) else value


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a stranger's log says of an episode, under `logged_KEY` where it would pass for something else here."""
    info = {}
    for key, value in metadata.items():
        same = (key == "policy" and isinstance(value, str)) or (key == "seed" and isinstance(value, int))
        info[f"logged_{key}" if key in _OWN_KEYS and not same else key] = value
    return info
