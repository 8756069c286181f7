"""Which episodes of a log are kept."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from worldmodel.trajectory import Trajectory

_NAMED = 10


@dataclasses.dataclass(frozen=True)
class Filters:
    """What an episode must be to be kept; the default keeps all.

    Attributes:
      first: place in its log, from 0, of the first episode that is looked at.
      last: place of the first that is not looked at any more, or None.
      min_return: lowest sum of rewards, or None. An episode without rewards has no return and is left out.
      max_return: highest sum of rewards, or None.
      policies: names of behaviour policies; empty: any.
    """

    first: int = 0
    last: int | None = None
    min_return: float | None = None
    max_return: float | None = None
    policies: tuple[str, ...] = ()

    def reason_against(self, trajectory: Trajectory) -> str | None:
        """Which filter leaves the episode out ("policy", "return" or "no rewards"), or None: it is kept."""
        if self.policies and trajectory.info.get("policy") not in self.policies:
            return "policy"
        if self.min_return is None and self.max_return is None:
            return None
        if trajectory.rewards is None:
            return "no rewards"
        total = trajectory.total_reward
        low = float("-inf") if self.min_return is None else self.min_return
        high = float("inf") if self.max_return is None else self.max_return
        return None if low <= total <= high else "return"  # NaN is in no interval

    def to_json(self) -> dict[str, Any]:
        """The filters that are set, plain JSON; empty where all episodes are kept."""
        data: dict[str, Any] = {}
        if (self.first, self.last) != (0, None):
            data["episodes"] = [self.first, self.last]
        for name in ("min_return", "max_return"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name)
        if self.policies:
            data["policies"] = list(self.policies)
        return data


@dataclasses.dataclass
class Tally:
    """How many episodes were read, were kept, were left out for which reason, and got another id."""

    read: int = 0
    kept: int = 0
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)
    renamed: int = 0
    policies: set[str] = dataclasses.field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        """`{"read", "kept", "left_out": {reason: episodes}, "renamed"}`."""
        left_out = dict(sorted(self.left_out.items()))
        return {"read": self.read, "kept": self.kept, "left_out": left_out, "renamed": self.renamed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tally:
        """The inverse of `to_json`."""
        return cls(data["read"], data["kept"], Counter(data["left_out"]), data["renamed"])

    def plus(self, other: Tally) -> Tally:
        """The counts of both."""
        left_out = self.left_out + other.left_out
        names = self.policies | other.policies
        return Tally(self.read + other.read, self.kept + other.kept, left_out, self.renamed + other.renamed, names)

    def leave_out(self, reason: str) -> None:
        """Counts an episode that was kept so far as left out."""
        self.kept -= 1
        self.left_out[reason] += 1

    def why_none(self) -> str:
        """One line for a log of which nothing was kept."""
        if not self.read:
            return "no episode was read"
        reasons = ", ".join(f"{count} by {reason}" for reason, count in sorted(self.left_out.items()))
        named = sorted(self.policies)
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        found = f"; policies found are {', '.join(named[:_NAMED])}{more}" if self.left_out["policy"] else ""
        return f"{self.read} read, all left out ({reasons}){found}"


def select(trajectories: Iterable[Trajectory], filters: Filters, tally: Tally) -> Iterator[tuple[int, Trajectory]]:
    """The episodes kept, each with its place in the log; counts in `tally`, and reads none beyond `filters.last`."""
    if filters.last is not None and filters.last <= filters.first:
        return
    for index, trajectory in enumerate(trajectories):
        if index >= filters.first:
            tally.read += 1
            reason = filters.reason_against(trajectory)
            tally.policies.add(str(trajectory.info.get("policy") or "unknown"))
            if reason is None:
                tally.kept += 1
                yield index, trajectory
            else:
                tally.left_out[reason] += 1
        if filters.last is not None and index + 1 >= filters.last:
            return


def parse_range(text: str) -> tuple[int, int | None]:
    """`N`: the first N episodes; `A:B`: from place A up to, without, place B; either end may be left open.

    Raises:
      ValueError: not of this form, or it holds no episode.
    """
    match = re.fullmatch(r"(\d+)|(\d*):(\d*)", text.strip())
    if match is None:
        raise ValueError(f"episodes {text!r} are no range; write N for the first N, or A:B for places A to B-1 from 0")
    count, first, last = match.groups()
    low, high = (0, int(count)) if count else (int(first or 0), int(last) if last else None)
    if high is not None and high <= low:
        raise ValueError(f"episodes {text!r} hold none; the range must end after it begins")
    return low, high
