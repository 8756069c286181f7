"""The index of a part: what opening, splitting, filtering and laying out windows need, without reading an episode."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import zipfile
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.corpus.split import hash_of
from worldmodel.trajectory import Trajectory

NAME = "index.npz"
SPLIT_BY_ID = "id"


@dataclasses.dataclass(frozen=True)
class Index:
    """`E` episodes in the order written.

    Attributes:
      lengths: int64 `[E]`, transitions.
      returns: float64 `[E]`, undiscounted sum of rewards; NaN where the log has none.
      terminated: bool `[E]`.
      truncated: bool `[E]`.
      synthetic: bool `[E]`, a model imagined the episode.
      policy_codes: int32 `[E]`, places in `policies`; -1 where unknown.
      policies: names of the behaviour policies.
      id_hashes: uint64 `[E]`, `hash_of` each id.
      split_hashes: uint64 `[E]`, `hash_of` what decides each episode's split: the id, or the value of a key of `info`.
      id_bytes: uint8, the ids in UTF-8 one after the other.
      id_ends: int64 `[E]`, where each id ends in `id_bytes`.
      shard_lengths: int64 `[S]`, episodes of each shard.
    """

    lengths: np.ndarray
    returns: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    synthetic: np.ndarray
    policy_codes: np.ndarray
    policies: tuple[str, ...]
    id_hashes: np.ndarray
    split_hashes: np.ndarray
    id_bytes: np.ndarray
    id_ends: np.ndarray
    shard_lengths: np.ndarray

    @property
    def episodes(self) -> int:
        """Number of episodes `E`."""
        return len(self.lengths)

    @property
    def transitions(self) -> int:
        """Number of transitions of all episodes."""
        return int(self.lengths.sum())

    def id_of(self, episode: int) -> str:
        """Id of one episode."""
        start = int(self.id_ends[episode - 1]) if episode else 0
        return self.id_bytes[start : int(self.id_ends[episode])].tobytes().decode("utf-8")

    def ids(self) -> list[str]:
        """Id of every episode."""
        data = self.id_bytes.tobytes()
        edges = itertools.pairwise([0, *self.id_ends.tolist()])
        return [data[start:end].decode("utf-8") for start, end in edges]

    def policy_of(self, episode: int) -> str | None:
        """Name of the policy of one episode; None where unknown."""
        code = int(self.policy_codes[episode])
        return None if code < 0 else self.policies[code]

    def where_policy(self, name: str) -> np.ndarray:
        """Bool `[E]`: the episodes of one policy."""
        return self.policy_codes == (self.policies.index(name) if name in self.policies else -2)


class IndexBuilder:
    """Gathers the index of a part while its episodes are written."""

    def __init__(self, split_by: str = SPLIT_BY_ID):
        self._split_by = split_by
        self._lengths, self._returns, self._codes = array("q"), array("d"), array("i")
        self._terminated, self._truncated, self._synthetic = array("b"), array("b"), array("b")
        self._id_hashes, self._split_hashes = array("Q"), array("Q")
        self._id_bytes, self._id_ends = bytearray(), array("q")
        self._policies: dict[str, int] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self._lengths)

    def holds(self, episode_id: str) -> bool:
        """Whether an episode of this id was added; of equal hashes, the ids are compared."""
        wanted = hash_of(episode_id)
        return wanted in self._seen and any(
            self._id_bytes[self._id_ends[i - 1] if i else 0 : self._id_ends[i]].decode("utf-8") == episode_id
            for i, known in enumerate(self._id_hashes)
            if known == wanted
        )

    def check(self, trajectory: Trajectory, *, where: str) -> None:
        """`ValueError` unless the episode has a proper id and the key by which the corpus is split."""
        try:
            str(trajectory.info["id"]).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: its id {trajectory.info['id']!r} is no Unicode text ({error.reason})") from None
        if self._split_by not in trajectory.info:
            raise ValueError(f"{where}: its info lacks {self._split_by!r}, by which the corpus is split")

    def add(self, trajectory: Trajectory) -> None:
        """Takes an episode that passed `check`."""
        name = str(trajectory.info["id"])
        policy = trajectory.info.get("policy")
        code = -1 if policy in (None, "") else self._policies.setdefault(str(policy), len(self._policies))
        self._lengths.append(len(trajectory))
        self._returns.append(trajectory.total_reward)
        self._terminated.append(trajectory.terminated)
        self._truncated.append(trajectory.truncated)
        self._synthetic.append(trajectory.synthetic)
        self._codes.append(code)
        self._id_hashes.append(hash_of(name))
        self._split_hashes.append(hash_of(str(trajectory.info[self._split_by])))
        self._id_bytes += name.encode("utf-8")
        self._id_ends.append(len(self._id_bytes))
        self._seen.add(self._id_hashes[-1])

    def build(self, shard_lengths: Sequence[int]) -> Index:
        """The index of what was added, stored in shards of these numbers of episodes."""
        return Index(
            lengths=np.array(self._lengths, np.int64),
            returns=np.array(self._returns, np.float64),
            terminated=np.array(self._terminated, np.bool_),
            truncated=np.array(self._truncated, np.bool_),
            synthetic=np.array(self._synthetic, np.bool_),
            policy_codes=np.array(self._codes, np.int32),
            policies=tuple(self._policies),
            id_hashes=np.array(self._id_hashes, np.uint64),
            split_hashes=np.array(self._split_hashes, np.uint64),
            id_bytes=np.array(self._id_bytes, np.uint8),
            id_ends=np.array(self._id_ends, np.int64),
            shard_lengths=np.array(shard_lengths, np.int64),
        )


def save_index(folder: pathlib.Path, index: Index) -> None:
    """Writes `index.npz` into the folder of a part."""
    arrays: dict[str, Any] = {field.name: getattr(index, field.name) for field in dataclasses.fields(Index)}
    names = json.dumps(index.policies).encode()
    np.savez(folder / NAME, **{**arrays, "policies": np.frombuffer(names, np.uint8)})


def load_index(folder: pathlib.Path) -> Index:
    """The inverse of `save_index`; `ValueError` where the file is damaged."""
    names = [field.name for field in dataclasses.fields(Index)]
    try:
        with np.load(folder / NAME, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in names if name in file.files or name != "synthetic"}
        policies = tuple(json.loads(arrays["policies"].tobytes()))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder / NAME}: is damaged ({' '.join(str(error).split())})") from None
    # An index of before there were synthetic episodes does not say that there are none.
    none = np.zeros(len(arrays["lengths"]), np.bool_)
    return Index(**{"synthetic": none, **arrays, "policies": policies})


def joined(indexes: Sequence[Index]) -> Index:
    """The indexes of several parts as one, in their order."""
    if len(indexes) == 1:
        return indexes[0]
    policies: dict[str, int] = {}
    codes = []
    for index in indexes:
        places = [policies.setdefault(name, len(policies)) for name in index.policies]
        codes.append(np.array([*places, -1], np.int32)[index.policy_codes])  # -1 takes the last
    ends = np.cumsum([0, *[len(index.id_bytes) for index in indexes[:-1]]])
    own: dict[str, Any] = {"policies": tuple(policies), "policy_codes": np.concatenate(codes)}
    own["id_ends"] = np.concatenate([index.id_ends + end for index, end in zip(indexes, ends, strict=True)])
    rest = [field.name for field in dataclasses.fields(Index) if field.name not in own]
    own |= {name: np.concatenate([getattr(index, name) for index in indexes]) for name in rest}
    return Index(**own)
