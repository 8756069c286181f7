"""Episodes, or long pieces of them, that are in the log twice; and what of it crosses the border of a split.

In a world of few states two episodes may be alike by chance. What tells a copy from chance is what happens around it:
chance brings many episodes that agree for a while and then part, a copy brings one that never does.
"""

from __future__ import annotations

import array
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.hashes import hash_rows, mix, powers, running
from worldmodel.corpus.lint.sample import Record, Sample
from worldmodel.corpus.split import SPLITS, split_of
from worldmodel.spaces import dtype_of, leaves
from worldmodel.trajectory import Spec, Trajectory

PIECE = 16
"""Transitions of the shortest copied piece that is looked for; of texts, which say more, half of it."""
_KEPT = 4
"""Pieces remembered of each episode: those whose hashes are lowest, so that two copies remember the same."""
_NO_SPLIT_KEYS = ("source", "policy", "seed", "split", "trial", "episode")
_MOST_GROUP = 64


class Copies:
    """Remembers every episode by a few hashes: of its beginnings, 8 bytes each, and of some pieces, 20 bytes each."""

    def __init__(self, spec: Spec):
        kinds = {leaf["type"] for space in (spec.observation_space, spec.action_space) for _, leaf in leaves(space)}
        self._finite = not any(
            leaf["type"] == "Box" and dtype_of(leaf).kind == "f" for _, leaf in leaves(spec.observation_space)
        )
        self._piece = PIECE // 2 if "Text" in kinds else PIECE
        self._unlikely = 2 if "Text" in kinds else 4
        # A start and a policy from few bring the same short episode again and again.
        self._shortest = PIECE if self._finite and "Text" not in kinds else 1
        self._beginnings: dict[int, tuple[array.array, array.array]] = {}
        self._halves, self._wholes, self._owners = array.array("Q"), array.array("Q"), array.array("L")

    def add(self, index: int, trajectory: Trajectory) -> None:
        """Remembers the episode at place `index` of the log; its columns need lengths, but no common one."""
        rows = hash_rows(trajectory.observations, trajectory.actions)
        if not len(rows):
            return
        begun = running(rows)
        level = 0
        while 2**level <= len(rows):
            hashes, owners = self._beginnings.setdefault(level, (array.array("Q"), array.array("L")))
            hashes.append(int(begun[2**level - 1]))
            owners.append(index)
            level += 1
        for half, whole in self._pieces(rows):
            self._halves.append(half)
            self._wholes.append(whole)
            self._owners.append(index)

    def findings(self, sample: Sample, split_by: str = "id") -> list[Finding]:
        """Duplicates, pieces in two episodes, leaks across the split. `sample.records` are the episodes added."""
        records = sample.records
        copies = list(self._copies(records))
        pieces = list(self._shared_pieces(records))
        found = []
        if copies:
            shown = ", ".join(f"{copy.id} = {first.id}" for first, copy in copies[:3])
            found.append(
                finding(
                    "duplicate",
                    f"{len(copies):,} of {len(records):,} episodes are there already under another id: {shown}",
                    episodes=[copy.id for _, copy in copies],
                    evidence=_pairs(copies, len(records)),
                )
            )
        if pieces:
            shown = ", ".join(f"{second.id} ~ {first.id}" for first, second in pieces[:3])
            found.append(
                finding(
                    "near-duplicate",
                    f"{len(pieces):,} pairs of episodes share a piece of {self._piece} transitions or more: {shown}",
                    episodes=sorted({second.id for _, second in pieces}),
                    evidence=_pairs(pieces, len(records)) | {"piece": self._piece},
                )
            )
        return [
            *found,
            *_leaks(records, [*copies, *pieces], split_by),
            *_shared_keys(records, split_by),
            *_repeated_ids(records),
        ]

    def _pieces(self, rows: np.ndarray) -> Iterator[tuple[int, int]]:
        """Hashes of the first half and of all of a few pieces that lie behind the first quarter of an episode.

        Before that, episodes of a deterministic start and a deterministic policy may well be alike.
        """
        size, start = self._piece, len(rows) // 4
        if len(rows) - start < size:
            return
        half = _windows(rows[start:], size // 2)[: len(rows) - start - size + 1]
        best = np.argsort(half)[: 4 * _KEPT] if len(half) > 4 * _KEPT else np.argsort(half)
        taken: set[int] = set()
        for at in best:
            piece = rows[start + at : start + at + size]
            # A stretch in which nothing happens is like any other.
            if len(set(piece.tolist())) < 0.75 * size or int(half[at]) in taken:
                continue
            taken.add(int(half[at]))
            yield int(half[at]), int(_windows(piece, size)[0])
            if len(taken) == _KEPT:
                return

    def _copies(self, records: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
        """The first and a later one of equal episodes, where chance does not bring equal ones of that length."""
        by_digest: dict[bytes, list[Record]] = defaultdict(list)
        for record in records:
            if record.steps > 0:
                by_digest[record.digest].append(record)
        pairs = []
        for group in by_digest.values():
            for copy in group[1:]:
                first = group[0]
                # In a world of few states two seeds may bring one episode; with one seed it is one episode.
                natural = self._finite and copy.keys.get("seed") != first.keys.get("seed")
                if copy.id != first.id and not natural:
                    pairs.append((first, copy))
        by_chance = self._longest_by_chance(records, len(pairs)) if pairs else 0
        for first, copy in pairs:
            same_seed = first.keys.get("seed") is not None and first.keys.get("seed") == copy.keys.get("seed")
            if first.steps >= max(self._unlikely * by_chance, self._shortest) or same_seed:
                yield first, copy

    def _longest_by_chance(self, records: Sequence[Record], copies: int) -> int:
        """Transitions, a power of two, that as many pairs of different episodes begin alike for as there are copies."""
        longest = 0
        for level, (hashes, owners) in sorted(self._beginnings.items()):
            order = np.argsort(np.array(hashes), kind="stable")
            hashes, owners = np.array(hashes)[order], np.array(owners)[order]
            pairs = 0
            for group in _runs(hashes):
                if group.stop - group.start > 1:
                    kinds = len({records[int(i)].digest for i in owners[group]})
                    pairs += kinds * (kinds - 1) // 2
            if pairs < copies:
                break
            longest = 2**level
        return longest

    def _shared_pieces(self, records: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
        """Pairs that share a piece, where pieces once begun alike mostly go on alike."""
        halves, wholes, owners = (np.array(column) for column in (self._halves, self._wholes, self._owners))
        if not len(halves):
            return
        order = np.lexsort((owners, wholes, halves))
        halves, wholes, owners = halves[order], wholes[order], owners[order]
        same: Counter[tuple[int, int]] = Counter()
        parted = 0
        for group in _runs(halves):
            inner = [group.start + r.start for r in _runs(wholes[group])] + [group.stop]
            members = [owners[a:b][:_MOST_GROUP] for a, b in itertools.pairwise(inner)]
            parted += _distinct_pairs(members, records)
            for piece in members:
                for i, first in enumerate(piece):
                    for second in piece[i + 1 :]:
                        if records[first].digest != records[second].digest:
                            same[(int(first), int(second))] += 1
        if len(same) > parted:
            yield from ((records[first], records[second]) for first, second in sorted(same))


def _windows(rows: np.ndarray, size: int) -> np.ndarray:
    """Hash of every `size` rows in a row, uint64 `[N - size + 1]`."""
    count = len(rows) - size + 1
    total = np.zeros(count, np.uint64)
    for i, factor in enumerate(powers(size)):
        total += rows[i : i + count] * factor
    return mix(total)


def _runs(values: np.ndarray) -> Iterator[slice]:
    """Slices of equal neighbours, of one value or more."""
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(values)]
    yield from (slice(a, b) for a, b in zip(starts, stops, strict=True))


def _distinct_pairs(members: list[np.ndarray], records: Sequence[Record]) -> int:
    """Pairs of different episodes whose pieces begin alike and part."""
    kinds = [{records[int(i)].digest for i in piece} for piece in members[:_MOST_GROUP]]
    return sum(len(a - b) * len(b - a) > 0 for i, a in enumerate(kinds) for b in kinds[i + 1 :])


def _pairs(pairs: Sequence[tuple[Record, Record]], of: int) -> dict[str, Any]:
    listed = [{"episode": second.id, "of": first.id} for first, second in pairs[:1000]]
    return {"count": len(pairs), "of": of, "pairs": listed}


def _leaks(records: Sequence[Record], pairs: Sequence[tuple[Record, Record]], split_by: str) -> list[Finding]:
    """Copies across the split. Of episodes whose split is named the held-out one is listed, else the later one."""
    leaked: dict[str, tuple[Record, Record]] = {}
    for first, second in pairs:
        if side_of(first, split_by) != side_of(second, split_by):
            named = isinstance(second.keys.get("split"), str)
            swapped = named and side_of(second, split_by) == SPLITS[0]
            listed, other = (first, second) if swapped else (second, first)
            leaked.setdefault(listed.id, (other, listed))
    if not leaked:
        return []
    sides = [(a, side_of(a, split_by), b, side_of(b, split_by)) for a, b in leaked.values()]
    shown = ", ".join(f"{b.id} ({b_side}) = {a.id} ({a_side})" for a, a_side, b, b_side in sides[:3])
    return [
        finding(
            "leak-duplicate",
            f"{len(leaked):,} episodes are on both sides of the split: {shown}",
            episodes=list(leaked),
            # A piece that two episodes share may be all that two tasks have in common.
            severity="error" if any(a.digest == b.digest for a, _, b, _ in sides) else "warning",
            evidence={
                "count": len(leaked),
                "of": len(records),
                "pairs": [{"episode": b.id, "of": a.id, "split": a_side} for a, a_side, b, _ in sides],
            },
        )
    ]


def side_of(record: Record, split_by: str = "id") -> str:
    """The split an episode is in: what `info["split"]` says, else by its id or by the key that the corpus splits by."""
    named = record.keys.get("split")
    if isinstance(named, str):
        return named
    return split_of(str(record.keys.get(split_by, record.id)))


def _shared_keys(records: Sequence[Record], split_by: str) -> list[Finding]:
    """Keys of `info` whose values are on both sides of the split."""
    sides = [side_of(record, split_by) == SPLITS[0] for record in records]
    share = sum(sides) / max(len(sides), 1)
    if share in (0.0, 1.0):
        return []
    named = sum(isinstance(record.keys.get("split"), str) for record in records) > len(records) / 2
    found = []
    names = sorted({key for record in records for key in record.keys if key not in _NO_SPLIT_KEYS})
    for key in names:
        counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
        for record, train in zip(records, sides, strict=True):
            value = record.keys.get(key)
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                counts[value][train] += 1
        both = [value for value, (out, train) in counts.items() if out and train]
        repeated = [sum(pair) for pair in counts.values() if sum(pair) > 1]
        if not both or len(counts) < 2:
            continue
        # Were episodes dealt to the sides one by one, this many values of two episodes or more would be on one side.
        chance = np.array([share**n + (1 - share) ** n for n in repeated])
        apart = len(repeated) - len(both)
        by_key = named and apart > chance.sum() + 4 * np.sqrt((chance * (1 - chance)).sum()) + 1
        found.append(
            finding(
                "leak-key" if by_key else "shared-key",
                f"{len(both):,} of {len(counts):,} values of info[{key!r}] are on both sides of the split"
                + (", though the split goes by it" if by_key else ""),
                episodes=[
                    r.id for r, train in zip(records, sides, strict=True) if not train and r.keys.get(key) in both
                ]
                if by_key
                else (),
                evidence={"key": key, "both": len(both), "values": len(counts), "examples": both[:20]},
            )
        )
    return found


def _repeated_ids(records: Sequence[Record]) -> list[Finding]:
    counts = Counter(record.id for record in records)
    repeated = [name for name, count in counts.items() if count > 1]
    if not repeated:
        return []
    return [
        finding(
            "id-repeated",
            f"{len(repeated):,} ids are of more than one episode: first {repeated[0]}, {counts[repeated[0]]} times",
            episodes=repeated,
            evidence={"count": len(repeated), "of": len(records)},
        )
    ]
