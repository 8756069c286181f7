"""The tokens of a corpus on disk: derived from its strings once, for each tokenizer and serialisation.

They lie in the corpus's folder, `.tokens/KEY/PART/`, one folder for each of its immutable parts, and are made again
wherever they are missing. What is learned from, and what its tokens weigh, is decided when they are read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.codec.text.codec import Kind, TextCodec
from worldmodel.codec.text.information import CLASSES
from worldmodel.codec.text.samples import Cuts, samples_of
from worldmodel.corpus import Corpus
from worldmodel.corpus.manifest import Part
from worldmodel.corpus.store import StoredEpisodes

FOLDER = ".tokens"
_CLASS_SHIFT = 3
"""Bits of a token's mark below its class: its kind."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """The samples of one part.

    Attributes:
      tokens: ids of all samples end to end, on disk.
      marks: uint8, kinds and classes of the same tokens, on disk.
      ends: int64 `[S]`, where each sample ends.
      episode: int64 `[S]`, which episode of the part it is of.
      first: int64 `[S]`, the first turn that it is to be learned from.
      learned: int32 `[S, classes + 1]`: tokens to learn from, observations' by class, and all others.
      cuts: what was cut or left out.
    """

    tokens: np.ndarray
    marks: np.ndarray
    ends: np.ndarray
    episode: np.ndarray
    first: np.ndarray
    learned: np.ndarray
    cuts: Cuts

    def __len__(self) -> int:
        """Number of samples `S`."""
        return len(self.ends)

    def sample(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids int32, kinds uint8 and classes uint8 of one sample, each `[N]`."""
        start, end = int(self.ends[number - 1]) if number else 0, int(self.ends[number])
        marks = np.asarray(self.marks[start:end])
        kinds, classes = marks & ((1 << _CLASS_SHIFT) - 1), marks >> _CLASS_SHIFT
        return np.asarray(self.tokens[start:end]).astype(np.int32), kinds, classes


def shards_of(corpus: Corpus, codec: TextCodec, length: int, *, otherwise: Path) -> list[Shard]:
    """The shards of every part of a corpus; those that are missing are made.

    Args:
      corpus: of texts.
      codec: how they are written as tokens.
      length: the longest sample, in tokens.
      otherwise: folder to keep them in where the corpus's own cannot be written.

    Raises:
      ValueError: an episode is damaged.
      OSError: neither folder can be written.
    """
    key = hashlib.sha256(f"{codec.digest} {length}".encode()).hexdigest()[:16]
    shards, begin = [], 0
    for part in corpus.manifest.parts:
        own = np.zeros(corpus.episodes, np.bool_)
        own[begin : begin + part.episodes] = True
        begin += part.episodes
        places = [root / FOLDER / key / part.name for root in (corpus.path, otherwise)]
        found = next((place for place in places if _is_of(place, part)), None)
        if found is None:
            writable = os.access(corpus.path, os.W_OK)
            found = places[0] if writable else places[1]
            _make(found, part, corpus.stored(keep=own), codec, length)
        shards.append(_open(found))
    return shards


def _is_of(place: Path, part: Part) -> bool:
    """Whether the tokens there are of the part as it is."""
    told = place / "shard.json"
    return told.is_file() and json.loads(told.read_text(encoding="utf-8"))["checksum"] == part.checksum


def _make(place: Path, part: Part, episodes: StoredEpisodes, codec: TextCodec, length: int) -> None:
    """Writes the shard of a part, whole or not at all."""
    kind = np.dtype("<u2" if codec.vocabulary <= 2**16 else "<u4")
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    ends, episode, first, learned, cuts, total = array("q"), array("q"), array("q"), [], Cuts(), 0
    try:
        with open(temporary / "tokens.bin", "wb") as tokens, open(temporary / "marks.bin", "wb") as marks:
            for number, trajectory in enumerate(episodes):
                samples, cut = samples_of(trajectory, codec, length)
                cuts += cut
                for sample in samples:
                    own = sample.tokens
                    tokens.write(own.ids.astype(kind).tobytes())
                    marks.write((own.kinds | (own.classes << _CLASS_SHIFT)).astype(np.uint8).tobytes())
                    total += len(own)
                    ends.append(total)
                    episode.append(number)
                    first.append(sample.first)
                    learned.append(_learned(own.kinds, own.classes))
        columns = {"ends": ends, "episode": episode, "first": first}
        arrays: dict[str, Any] = {name: np.array(column, np.int64) for name, column in columns.items()}
        arrays["learned"] = np.array(learned, np.int32).reshape(-1, len(CLASSES) + 1)
        np.savez(temporary / "samples.npz", allow_pickle=False, **arrays)
        told = {"checksum": part.checksum, "dtype": kind.str, "tokens": total, **dataclasses.asdict(cuts)}
        (temporary / "shard.json").write_text(json.dumps(told) + "\n", encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)  # of a part that has changed, or half removed
        os.replace(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _learned(kinds: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Tokens to learn from: of observations by class, and others, int64 `[classes + 1]`."""
    counts = np.bincount(classes[kinds == Kind.OBSERVATION], minlength=len(CLASSES) + 1)
    counts[-1] = np.count_nonzero(kinds > Kind.OBSERVATION)
    return counts


def _open(place: Path) -> Shard:
    told = json.loads((place / "shard.json").read_text(encoding="utf-8"))
    with np.load(place / "samples.npz", allow_pickle=False) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    count = told["tokens"]
    empty = np.zeros(0, np.uint8)
    tokens = np.memmap(place / "tokens.bin", told["dtype"], "r", shape=(count,)) if count else empty
    marks = np.memmap(place / "marks.bin", np.uint8, "r", shape=(count,)) if count else empty
    return Shard(tokens, marks, cuts=Cuts(told["texts"], told["unfit"]), **arrays)


@dataclasses.dataclass(frozen=True)
class Samples:
    """The samples of some episodes that there is something to learn from.

    Attributes:
      shards: where they lie.
      shard: int32 `[S]`, in which shard each is.
      place: int64 `[S]`, and where in that.
      lengths: int64 `[S]`, tokens of each.
      weights: float32 `[classes]`, what an observation's tokens count.
      nothing: how many samples were dropped because nothing of them is to be learned.
      cuts: what was cut or left out of the episodes of all shards.
    """

    shards: Sequence[Shard]
    shard: np.ndarray
    place: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray
    nothing: int
    cuts: Cuts

    def __len__(self) -> int:
        """Number of samples `S`."""
        return len(self.lengths)

    def sample(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids int32, kinds uint8 and weights float32 of one sample, each `[N]`."""
        ids, kinds, classes = self.shards[int(self.shard[number])].sample(int(self.place[number]))
        told = np.where(kinds == Kind.OBSERVATION, self.weights[classes], (kinds > 0).astype(np.float32))
        return ids, kinds, told


def samples_among(shards: Sequence[Shard], chosen: np.ndarray, episodes: Sequence[int], weights: np.ndarray) -> Samples:
    """The samples of chosen episodes.

    Args:
      shards: of a corpus's parts.
      chosen: bool `[E]`, over the corpus's episodes.
      episodes: how many of them each part holds.
      weights: float32 `[classes]`, see `worldmodel.codec.text.information.weights_of`.

    Raises:
      ValueError: nothing is left to learn from.
    """
    column = np.append(weights, 1.0)
    begins = np.concatenate([[0], np.cumsum(episodes)[:-1]]).astype(np.int64)
    shard, place, lengths, nothing = [], [], [], 0
    for number, (own, begin) in enumerate(zip(shards, begins, strict=True)):
        wanted = chosen[begin + own.episode]
        useful = own.learned @ column > 0.0
        nothing += int((wanted & ~useful).sum())
        kept = np.flatnonzero(wanted & useful)
        shard.append(np.full(len(kept), number, np.int32))
        place.append(kept)
        lengths.append(np.diff(own.ends, prepend=0)[kept])
    told = Samples(
        shards,
        np.concatenate(shard),
        np.concatenate(place),
        np.concatenate(lengths),
        weights,
        nothing,
        sum((own.cuts for own in shards), Cuts()),
    )
    if not len(told):
        raise ValueError(f"no sample of {int(chosen.sum())} episodes holds anything to learn; is a row long enough?")
    return told
