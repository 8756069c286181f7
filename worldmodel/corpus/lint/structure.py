"""Faults that one episode shows by itself: counts, dtypes, numbers that are none, values outside the space, ends.

Every episode of the log is looked at, one at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.images import EncodedImages
from worldmodel.spaces import box_bounds, columns_of, dtype_of, is_image, leaves, shape_of
from worldmodel.trajectory import Spec, Trajectory

LISTED = 1000
"""Ids that a finding names at most; `evidence["count"]` counts them all."""
_WIDEST = 4096
"""A leaf of more numbers than this is not searched for constant dimensions."""


@dataclasses.dataclass
class _Tally:
    """The episodes that have one fault, and what was seen first."""

    first: str
    count: int = 0
    last: str = ""
    names: list[str] = dataclasses.field(default_factory=list)


class Structure:
    """Collects the faults of single episodes over a whole log."""

    def __init__(self, spec: Spec):
        self.episodes = self.transitions = 0
        self._sound = True
        self._with_rewards = 0
        self._tallies: dict[str, _Tally] = {}
        self._roles = {
            "observation": [_Leaf(path, leaf) for path, leaf in leaves(spec.observation_space)],
            "action": [_Leaf(path, leaf) for path, leaf in leaves(spec.action_space)],
        }
        self._spec = spec
        self._discrete_actions = all(leaf.space["type"] != "Box" for leaf in self._roles["action"])

    def add(self, name: str, trajectory: Trajectory) -> bool:
        """Looks at one episode; false where it is not built as the space is, so that no other check should see it."""
        self.episodes += 1
        self._sound = True
        try:
            columns = {
                role: list(columns_of(space, values))
                for role, space, values in (
                    ("observation", self._spec.observation_space, trajectory.observations),
                    ("action", self._spec.action_space, trajectory.actions),
                )
            }
            counts = {role: [len(column) for _, _, column in found] for role, found in columns.items()}
        except (ValueError, TypeError, KeyError) as error:  # TypeError: a column without length
            self._mark("malformed", name, f"{name}: {error}")
            return False
        if any(len(set(found)) != 1 for found in counts.values()):
            self._mark("malformed", name, f"{name}: columns of {counts} steps; one length of each role is needed")
            return False
        steps, rows = counts["action"][0], counts["observation"][0]
        self.transitions += steps
        self._look_at_counts(name, trajectory, steps, rows)
        for role, found in columns.items():
            for leaf, (_, _, column) in zip(self._roles[role], found, strict=True):
                for code, line in leaf.faults(column, role):
                    self._mark(code, name, f"{name}: {line}")
        self._look_at_numbers(name, trajectory)
        self._look_at_end(name, trajectory)
        return self._sound

    def findings(self) -> list[Finding]:
        """What was found, in the order of `CODES`."""
        if self.episodes == 0:
            return [finding("empty-log", "the log holds no episode")]
        found = [
            finding(
                code,
                f"{tally.count:,} of {self.episodes:,} episodes: first {tally.first}",
                episodes=tally.names,
                evidence={"count": tally.count, "of": self.episodes},
            )
            for code, tally in self._tallies.items()
        ]
        if self._with_rewards == 0:
            found.append(finding("no-rewards", "no episode has rewards"))
        elif self._with_rewards < self.episodes:
            missing = self.episodes - self._with_rewards
            found.append(
                finding(
                    "some-rewards",
                    f"{missing:,} of {self.episodes:,} episodes have no rewards, the others have",
                    evidence={"without": missing, "of": self.episodes},
                )
            )
        for role, parts in self._roles.items():
            constant = [line for leaf in parts for line in leaf.constant(role)]
            if constant and self.transitions > 1:
                shown = ", ".join(constant[:8]) + (", .." if len(constant) > 8 else "")
                found.append(
                    finding(
                        "constant-dimension",
                        f"{len(constant):,} {role} dimension(s) never change: {shown}",
                        evidence={"role": role, "dimensions": constant[:LISTED], "count": len(constant)},
                    )
                )
        return found

    def _look_at_counts(self, name: str, trajectory: Trajectory, steps: int, rows: int) -> None:
        if steps == 0:
            self._mark("empty-episode", name, f"{name} has {rows} observation(s) and no action")
        elif rows == steps:
            self._mark("observations-T", name, f"{name} has {rows} observations for {steps} actions, not {steps + 1}")
        elif rows != steps + 1:
            line = f"{name} has {rows} observations for {steps} actions; {steps + 1} are needed"
            self._mark("malformed", name, line)
        for role in ("rewards", "action_log_prob"):
            column = getattr(trajectory, role)
            if column is not None and np.shape(column) != (steps,):
                self._mark("malformed", name, f"{name}: {role} have shape {np.shape(column)}; ({steps},) is needed")
            elif column is not None and np.asarray(column).dtype.kind not in "fiub":
                self._mark("dtype", name, f"{name}: {role} have dtype {np.asarray(column).dtype}; numbers are needed")
        if trajectory.info.get("id") is None:
            self._mark("id-missing", name, name)
        if trajectory.synthetic:
            self._mark("synthetic", name, f"{name}, imagined by a model")

    def _look_at_numbers(self, name: str, trajectory: Trajectory) -> None:
        if trajectory.rewards is not None:
            self._with_rewards += 1
            for code, line in _not_finite(trajectory.rewards, "reward"):
                self._mark(code, name, f"{name}: {line}")
        if trajectory.action_log_prob is not None:
            values = np.asarray(trajectory.action_log_prob)
            for _, line in _not_finite(values, "log-probability"):
                self._mark("log-prob", name, f"{name}: {line}")
            if self._discrete_actions and values.dtype.kind == "f" and bool((values > 1e-4).any()):
                step = int(np.argmax(values > 1e-4))
                line = f"log-probability at step {step} is {values[step]:.4g}, above 0, of a discrete action"
                self._mark("log-prob", name, f"{name}: {line}")

    def _look_at_end(self, name: str, trajectory: Trajectory) -> None:
        if trajectory.terminated and trajectory.truncated:
            self._mark("both-ends", name, f"{name} is both terminated and truncated")
        elif not trajectory.terminated and not trajectory.truncated:
            self._mark("cut", name, f"{name} is neither terminated nor truncated")

    def _mark(self, code: str, name: str, line: str) -> None:
        self._sound &= code not in ("malformed", "dtype")
        tally = self._tallies.setdefault(code, _Tally(line))
        if tally.last == name:
            return
        tally.last = name
        tally.count += 1
        if tally.count <= LISTED:
            tally.names.append(name)


class _Leaf:
    """One leaf of a space, its bounds, and the range of what came."""

    def __init__(self, path: str, space: Mapping[str, Any]):
        self.path, self.space = path, space
        self._low, self._high = _bounds(space)
        self._least: np.ndarray | None = None
        self._most: np.ndarray | None = None

    def faults(self, column: Any, role: str) -> Iterator[tuple[str, str]]:
        """`(code, line)` of every fault of a column; folds its range in."""
        what = f"{role} {self.path!r}" if self.path else role
        if isinstance(column, EncodedImages):
            if not is_image(self.space) or column.size != tuple(self.space["shape"]):
                yield "malformed", f"{what} is an encoded image of {column.size}; the space has {self.space}"
            return
        values = np.asarray(column)
        if values.shape[1:] != shape_of(self.space):
            yield "malformed", f"{what} has shape {values.shape[1:]}; the space has {shape_of(self.space)}"
            return
        if self.space["type"] == "Text":
            yield from self._text_faults(values, role, what)
            return
        if not _fits(values.dtype, self.space):
            yield (
                "dtype",
                f"{what} has dtype {values.dtype}; a {self.space['type']} of {dtype_of(self.space)} is needed",
            )
            return
        yield from _not_finite(values, what)
        outside = _first_outside(values, self._low, self._high)
        if outside is not None:
            yield f"{role}-outside", f"{what} at step {outside[0]} is {values[outside]}, outside its space"
        self._fold(values)

    def constant(self, role: str) -> list[str]:
        """Names of the dimensions that had one value only."""
        if self._least is None or self._most is None:
            return []
        name = f"{role}/{self.path}" if self.path else role
        where = np.argwhere(self._least == self._most)
        return [name + (str(index.tolist()) if len(index) else "") for index in where]

    def _text_faults(self, values: np.ndarray, role: str, what: str) -> Iterator[tuple[str, str]]:
        limit = self.space.get("max_length")
        for step, text in enumerate(values):
            if not isinstance(text, str):
                yield "dtype", f"{what} at step {step} is a {type(text).__name__}; a Text space takes str"
                return
            if limit is not None and len(text) > limit:
                yield f"{role}-outside", f"{what} at step {step} has {len(text)} characters; the space has {limit}"
                return

    def _fold(self, values: np.ndarray) -> None:
        if is_image(self.space) or not len(values) or values[0].size > _WIDEST:
            return
        least, most = values.min(axis=0), values.max(axis=0)
        self._least = least if self._least is None else np.minimum(self._least, least)
        self._most = most if self._most is None else np.maximum(self._most, most)


def _bounds(space: Mapping[str, Any]) -> tuple[Any, Any]:
    kind = space["type"]
    if kind == "Box":
        return box_bounds(space)
    if kind == "Discrete":
        return space["start"], space["start"] + space["n"] - 1
    if kind == "MultiDiscrete":
        low = np.asarray(space["start"], np.int64)
        return low, low + np.asarray(space["nvec"], np.int64) - 1
    return 0, 1


def _fits(dtype: np.dtype, space: Mapping[str, Any]) -> bool:
    if dtype == np.bool_:
        return space["type"] in ("Box", "MultiBinary")
    return np.issubdtype(dtype, np.number) and np.can_cast(dtype, dtype_of(space), "same_kind")


def _first_outside(values: np.ndarray, low: Any, high: Any) -> tuple[int, ...] | None:
    """Index of the first finite value outside its bounds, with the tolerance of float32."""
    if values.dtype.kind in "iub":
        outside = (values < low) | (values > high)
    else:
        if not (np.isfinite(low).any() or np.isfinite(high).any()):
            return None
        slack = 1e-5 * np.maximum(1.0, np.abs(values.astype(np.float64)))
        outside = np.isfinite(values) & ((values < low - slack) | (values > high + slack))
    return tuple(int(i) for i in np.argwhere(outside)[0]) if outside.any() else None


def _not_finite(values: Any, what: str) -> Iterator[tuple[str, str]]:
    values = np.asarray(values)
    if values.dtype.kind not in "fc":
        return
    bad = ~np.isfinite(values)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        yield "nan", f"{what} at step {first[0] if first else 0} is {values[first]}"


def name_of(trajectory: Trajectory, index: int) -> str:
    """The id of an episode, or its place in the log where it has none."""
    return str(trajectory.info.get("id", f"episode {index}"))
