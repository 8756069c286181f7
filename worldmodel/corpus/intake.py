"""How the episodes of one log enter a part, and what the part says of their origin."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from worldmodel.corpus.filters import Tally
from worldmodel.corpus.index import SPLIT_BY_ID
from worldmodel.corpus.job import Recipe, digest
from worldmodel.corpus.part import PartWriter
from worldmodel.trajectory import Trajectory, suggest


@dataclasses.dataclass(frozen=True)
class Intake:
    """Takes episodes of one log into parts.

    Attributes:
      uri: of the log, for errors.
      name: of the log, short: what comes before an id that is taken.
      recipe: of the conversion.
      split_by: key of `info` by which the corpus is split.
      is_taken: whether an id is in another part.
    """

    uri: str
    name: str
    recipe: Recipe
    split_by: str = SPLIT_BY_ID
    is_taken: Callable[[str], bool] = lambda name: False

    def fill(
        self,
        part: PartWriter,
        episodes: Iterator[tuple[int, Trajectory]],
        tally: Tally,
        *,
        is_full: Callable[[PartWriter], bool] = lambda part: False,
        report: Callable[[int, int, int], None] = lambda place, transitions, size: None,
    ) -> tuple[int | None, bool]:
        """Adds episodes to a part until it is full or there are no more.

        Args:
          part: the part.
          episodes: each with its place in the log (as `select` gives them).
          tally: is told of episodes that are not valid or get another id.
          is_full: asked after each episode.
          report: told of each episode its place, transitions and bytes.

        Returns:
          The place after the last episode looked at (None: there was none), and whether the part is full.

        Raises:
          ValueError: an episode is not valid (and `recipe.drop_invalid` is false) or lacks the key to split by.
        """
        in_part: set[str] = set()
        end = None
        for place, trajectory in episodes:
            end = place + 1
            self._check_key(place, trajectory)
            given = str(trajectory.info.get("id") or f"{self.name}-{place:06d}")
            free = self._free_id(given, in_part)
            named = dataclasses.replace(trajectory, info={**trajectory.info, "id": free})
            before = part.bytes
            try:
                part.add(named, where=f"{self.uri}: episode {place} ({given})")
            except ValueError as error:
                if not self.recipe.drop_invalid:
                    hint = (
                        "`worldmodel data lint` says more, --fix CODE repairs, --drop-invalid leaves such episodes out"
                    )
                    raise ValueError(f"{error} ({hint})") from error
                tally.leave_out("not valid")
                continue
            in_part.add(free)
            tally.renamed += free != given
            report(place, len(trajectory), part.bytes - before)
            if is_full(part):
                return end, True
        return end, False

    def _check_key(self, place: int, trajectory: Trajectory) -> None:
        if self.split_by != SPLIT_BY_ID and self.split_by not in trajectory.info:
            raise ValueError(
                f"{self.uri}: episode {place} has no {self.split_by!r} to split by"
                f"{suggest(self.split_by, trajectory.info)}; it has {', '.join(sorted(trajectory.info)) or 'no info'}"
            )

    def _free_id(self, given: str, in_part: set[str]) -> str:
        """`given` where it is free, else `log/given`, else `log~2/given`, and so on."""
        prefixes = itertools.chain(["", f"{self.name}/"], (f"{self.name}~{count}/" for count in itertools.count(2)))
        if self.recipe.prefix_ids:
            next(prefixes)
        names = (f"{prefix}{given}" for prefix in prefixes)
        return next(name for name in names if name not in in_part and not self.is_taken(name))


def part_provenance(
    job: Mapping[str, Any],
    log: int,
    uri: str,
    said: Mapping[str, Any],
    places: tuple[int, int],
    counts: Mapping[str, Any],
    repairs: Mapping[str, Any],
) -> dict[str, Any]:
    """Where the episodes of a part come from, plain JSON.

    Args:
      job: of the conversion (`describe`).
      log: index of the log in it.
      uri: of the log.
      said: what the log says of itself.
      places: of the first episode looked at in the log, and after the last.
      counts: in the log up to there.
      repairs: what of it was repaired.
    """
    recipe = job["recipe"]
    return {
        "made_by": "worldmodel data convert",
        "conversion": digest(job),
        "uri": uri,
        "log": {key: value for key, value in said.items() if key != "files"},
        "options": job["logs"][log]["options"],
        "state": job["logs"][log]["state"],
        "episodes": list(places),
        "counts": dict(counts),
        "filters": recipe["filters"],
        "fixes": dict(repairs),
        "versions": dict(_versions()),
    }


@functools.cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("worldmodel", "numpy", "tensorflow-datasets")}
