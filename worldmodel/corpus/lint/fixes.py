"""Repairs of what the lint finds, one episode at a time: `worldmodel data convert --fix CODE`.

A repair never invents: what a log lost (the observation after the end, an action that left its episode) stays lost, and
the transition that lacks it is dropped. An episode that loses its last transition is neither terminated nor truncated
any more: it was cut.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from worldmodel.corpus.lint.codes import CODES
from worldmodel.corpus.lint.finding import Finding, LintReport
from worldmodel.corpus.lint.structure import name_of
from worldmodel.corpus.split import SPLITS
from worldmodel.spaces import box_bounds, columns_of, map_columns
from worldmodel.trajectory import Spec, Trajectory, suggest

Fixed = Trajectory | list[Trajectory] | None
"""What becomes of an episode: another, several, or none."""


def apply(
    trajectories: Iterable[Trajectory], report: LintReport, codes: Sequence[str], *, spec: Spec | None = None
) -> Iterator[Trajectory]:
    """Repairs the episodes of the very log that `report` is of, streaming, in the order of `FIXES`.

    Args:
      trajectories: the log, as it was linted.
      report: what the lint found.
      codes: which of it to repair; "all": everything that has a repair but what is done only when asked by name.
      spec: of the log; by default `trajectories.spec`. Needed for `action-outside`.

    Raises:
      ValueError: a code that is unknown or has no repair; none of it is raised for a code that was not found.
    """
    for code in codes:
        if code != "all" and code not in FIXES:
            raise ValueError(f"{code!r} has no repair{suggest(code, FIXES)}; repairs are all, {', '.join(FIXES)}")
    spec = spec or getattr(trajectories, "spec", None)
    wanted = [c for c in FIXES if c in codes or ("all" in codes and CODES[c].in_all)]
    findings = [next((f for f in report.findings if f.code == code), None) for code in wanted]
    return _repaired(trajectories, [(c, f) for c, f in zip(wanted, findings, strict=True) if f], spec)


def _repaired(
    trajectories: Iterable[Trajectory], repairs: Sequence[tuple[str, Finding]], spec: Spec | None
) -> Iterator[Trajectory]:
    named = {code: frozenset(finding.episodes) for code, finding in repairs}
    for index, trajectory in enumerate(trajectories):
        name, episodes = name_of(trajectory, index), [trajectory]
        for code, finding in repairs:
            if name in named[code] or not CODES[code].named:
                episodes = [
                    piece for episode in episodes for piece in _listed(FIXES[code](episode, finding, name, spec))
                ]
        yield from episodes


def fix(code: str, trajectory: Trajectory, finding: Finding, *, spec: Spec | None = None, index: int = 0) -> Fixed:
    """The repair of one episode; `index` is its place in the log, which names an episode without an id."""
    return FIXES[code](trajectory, finding, name_of(trajectory, index), spec)


def _listed(fixed: Fixed) -> list[Trajectory]:
    if fixed is None:
        return []
    return fixed if isinstance(fixed, list) else [fixed]


def piece(trajectory: Trajectory, start: int, stop: int) -> Trajectory | None:
    """Transitions `start` up to, without, `stop`; its end is kept where it is the last one. None: nothing is left."""
    steps = len(trajectory)
    start, stop = max(start, 0), min(stop, steps)
    if stop <= start:
        return None
    cut = stop < steps
    info = {
        key: value[start:stop] if isinstance(value, list) and key in ("duration", "cost") else value
        for key, value in trajectory.info.items()
    }
    return dataclasses.replace(
        trajectory,
        observations=map_columns(lambda column: column[start : stop + 1], trajectory.observations),
        actions=map_columns(lambda column: column[start:stop], trajectory.actions),
        rewards=_rows(trajectory.rewards, start, stop),
        action_log_prob=_rows(trajectory.action_log_prob, start, stop),
        terminated=trajectory.terminated and not cut,
        truncated=trajectory.truncated and not cut,
        info=info,
    )


def _rows(column: Any, start: int, stop: int) -> Any:
    return None if column is None else column[start:stop]


def _drop(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    return None


def _drop_repeated(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    same: list[bool] = []
    map_columns(lambda column: same.append(len(column) > 1 and _equal(column[-1], column[-2])), trajectory.observations)
    return piece(trajectory, 0, len(trajectory) - 1) if all(same) else trajectory


def _equal(first: Any, second: Any) -> bool:
    return bool(np.array_equal(first, second))


def _drop_unobserved(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    """Of as many observations as actions, the last action has no outcome."""
    return piece(trajectory, 0, len(trajectory) - 1) if _observations(trajectory) == len(trajectory) else trajectory


def _observations(trajectory: Trajectory) -> int:
    lengths: list[int] = []
    map_columns(lambda column: lengths.append(len(column)), trajectory.observations)
    return lengths[0]


def _drop_empty(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    return trajectory if len(trajectory) else None


def _drop_nan(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    columns: list[Any] = []
    for values in (trajectory.observations, trajectory.actions, trajectory.rewards):
        map_columns(columns.append, values)
    finite = (np.isfinite(column).all() for column in columns if getattr(column, "dtype", np.dtype(object)).kind == "f")
    return trajectory if all(finite) else None


def _one_end(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    return dataclasses.replace(trajectory, truncated=trajectory.truncated and not trajectory.terminated)


def _to_train(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    """Where the log names splits the episode joins the other one; a split by id cannot be joined."""
    if not isinstance(trajectory.info.get("split"), str):
        return None
    joins = {pair["episode"]: pair["split"] for pair in finding.evidence["pairs"]}
    return dataclasses.replace(trajectory, info={**trajectory.info, "split": joins.get(name, SPLITS[0])})


def _cut(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    """The transitions of `evidence["steps"]` are jumps; what stands between them are episodes."""
    jumps = sorted(set(finding.evidence["steps"].get(name, ())))
    borders = [-1, *jumps, len(trajectory)]
    pieces = [piece(trajectory, a + 1, b) for a, b in itertools.pairwise(borders)]
    if not jumps:
        return trajectory
    kept = [each for each in pieces if each is not None]
    return [
        dataclasses.replace(each, info={**each.info, "id": name if place == 0 else f"{name}/{place + 1}"})
        for place, each in enumerate(kept)
    ]


def _earlier_end(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    """Drops the jump and what follows; where it comes at the very end the episode ends before it, as it did."""
    left = int(finding.evidence.get("left", 1))
    shorter = piece(trajectory, 0, len(trajectory) - 1 - left)
    if shorter is None or left:
        return shorter
    return dataclasses.replace(shorter, terminated=trajectory.terminated, truncated=trajectory.truncated)


def _truncated(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    """Those named; where the lint saw a sample only, every terminated episode of that length."""
    concerned = name in finding.episodes
    if not concerned and "sampled" in finding.evidence:
        concerned = trajectory.terminated and len(trajectory) == finding.evidence["length"]
    return dataclasses.replace(trajectory, terminated=False, truncated=True) if concerned else trajectory


def _moved(role: str) -> Callable[[Trajectory, Finding, str, Spec | None], Fixed]:
    def move(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
        late = int(finding.evidence["shift"])
        steps = len(trajectory)
        # What is logged at row t belongs to row t - late; rows of which nothing is logged are dropped.
        kept = piece(trajectory, max(-late, 0), steps - max(late, 0))
        source = piece(trajectory, max(late, 0), steps + min(late, 0))
        if kept is None or source is None:
            return None
        if role == "rewards":
            return dataclasses.replace(kept, rewards=source.rewards)
        return dataclasses.replace(kept, actions=source.actions, action_log_prob=source.action_log_prob)

    return move


def _clip(trajectory: Trajectory, finding: Finding, name: str, spec: Spec | None) -> Fixed:
    if spec is None:
        raise ValueError("action-outside: clipping needs the log's spec")
    clipped = []
    for _, leaf, column in columns_of(spec.action_space, trajectory.actions):
        if leaf["type"] == "Box":
            low, high = box_bounds(leaf)
            clipped.append(np.clip(column, low, high).astype(np.asarray(column).dtype))
        else:
            clipped.append(column)
    values = iter(clipped)
    actions = map_columns(lambda _: next(values), trajectory.actions)
    try:
        spec.check(actions, "action")
    except ValueError:
        return None
    return dataclasses.replace(trajectory, actions=actions)


FIXES: dict[str, Callable[[Trajectory, Finding, str, Spec | None], Fixed]] = {
    "observations-T": _drop_unobserved,
    "empty-episode": _drop_empty,
    "nan": _drop_nan,
    "duplicate": _drop,
    "leak-duplicate": _to_train,
    "both-ends": _one_end,
    "glued": _cut,
    "end-late": _earlier_end,
    "last-repeated": _drop_repeated,
    "action-shifted": _moved("actions"),
    "reward-shifted": _moved("rewards"),
    "time-limit-terminal": _truncated,
    "action-outside": _clip,
}
"""What repairs each code, in the order in which repairs are made: `(episode, finding, its name, spec)` to what becomes
of it."""
