"""A run folder belongs to one configuration and one set of logs: claimed at the first call, compared at every later."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.codec import StepCodec, fit_codec
from worldmodel.corpus import Columns, Episodes
from worldmodel.corpus.differences import differences
from worldmodel.spaces import column_list, dtype_of, map_columns, shape_of, walk
from worldmodel.training.checkpoint import (
    describe,
    describe_together,
    read_config,
    world_folder,
    write_json,
    write_starts,
)
from worldmodel.training.config import OF_THE_MACHINE, TrainingConfig
from worldmodel.training.continuation import Continuation
from worldmodel.trajectory import Spec

FITTED = 1_000_000
"""Transitions from which scales are fitted and starts are taken; of more, a sample."""

FITTED_BYTES = 2**28
"""Most bytes of their observations."""

STARTS_BYTES = 2**26
"""Most bytes of first observations that are kept."""


def claim(
    run: Path, episodes: Episodes, spec: Spec, config: TrainingConfig, continuation: Continuation | None = None
) -> None:
    """Writes `config.json` and `starts.npy`, or checks that those there ask for the same.

    Fields that only say how the work is spread (`config.OF_THE_MACHINE`) may differ.

    Raises:
      ValueError: the folder was made with another configuration or from other logs; the difference is named.
    """
    training = dataclasses.asdict(config) | {"logs": _fingerprint(episodes)}
    columns = fitted_on(spec, episodes)
    if continuation is None:
        codec = codec_of(spec, columns)
    else:
        codec = continuation.codec(spec, config.model)
        training["continues"] = continuation.describe()
    del training["model"]
    wanted = describe(spec, codec, config.model, training)
    if not (run / "config.json").exists():
        _write_beginnings(run, columns, codec)
        write_json(run / "config.json", wanted)
        return
    _compare(run, wanted)


def _write_beginnings(folder: Path, columns: Columns, codec: StepCodec) -> None:
    """Keeps how the episodes begin: all of them, or, where they are large, as many as `STARTS_BYTES` holds."""
    first = columns.observation_starts
    one = sum(np.asarray(column[first[:1]]).nbytes for column in column_list(columns.observations))
    most = max(STARTS_BYTES // one, 1)
    kept = np.arange(len(first)) if len(first) <= most else np.linspace(0, len(first) - 1, most).astype(np.int64)
    starts = map_columns(lambda column: np.asarray(column[first[kept]]), columns.observations)
    write_starts(folder, starts, codec.context.encode([columns.contexts[i] for i in kept]))


def _compare(run: Path, wanted: Mapping[str, Any]) -> None:
    different = differences(_that_bind(_with_defaults(read_config(run))), _that_bind(wanted))
    if different:
        raise ValueError(f"{run} was made with another configuration: {'; '.join(different)}")


def check_worlds(worlds: Mapping[str, tuple[Episodes, Spec]]) -> None:
    """`ValueError` unless there are several, each by a folder's name and with rewards."""
    if len(worlds) < 2:
        raise ValueError(f"{len(worlds)} world to train together; at least two are needed")
    for name, (episodes, _) in worlds.items():
        if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
            raise ValueError(f"world {name!r}: a name is made of letters, digits, '_', '-' and '.'")
        if not episodes.has_rewards:
            raise ValueError(f"world {name!r}: an episode has no rewards; training needs them in every episode")


def claim_together(run: Path, worlds: Mapping[str, tuple[Episodes, Spec]], config: TrainingConfig) -> None:
    """`claim` of a run of several worlds: its `config.json`, and in `worlds/NAME/` one and the starts of each."""
    logs = {name: _fingerprint(episodes) for name, (episodes, _) in worlds.items()}
    training = dataclasses.asdict(config) | {"logs": logs}
    del training["model"]
    wanted = describe_together({name: spec for name, (_, spec) in worlds.items()}, config.model, training)
    if (run / "config.json").exists():
        _compare(run, wanted)
        return
    for name, (episodes, spec) in worlds.items():
        columns, folder = fitted_on(spec, episodes), world_folder(run, name)
        codec = codec_of(spec, columns)
        folder.mkdir(parents=True, exist_ok=True)
        _write_beginnings(folder, columns, codec)
        write_json(folder / "config.json", describe(spec, codec, config.model, training) | {"world": name})
    write_json(run / "config.json", wanted)


def fitted_on(spec: Spec, episodes: Episodes) -> Columns:
    """The episodes that scales are fitted to: all, or a sample of those that are too many or too large."""
    one = sum(math.prod(shape_of(leaf)) * dtype_of(leaf).itemsize for _, leaf in walk(spec.observation_space))
    return episodes.sample(min(FITTED, max(FITTED_BYTES // max(one, 1), 1)))


def codec_of(spec: Spec, columns: Columns) -> StepCodec:
    """The codec fitted to all transitions of these episodes; errors as `fit_codec`."""
    t = columns.transitions()
    return fit_codec(spec, t.obs, t.next_obs, t.actions, t.rewards, t.terminated, columns.contexts)


def _with_defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of before an option existed asked for what is now the option's default."""
    defaults = dataclasses.asdict(TrainingConfig())
    default, made = defaults.pop("model"), found.get("model", {})
    model = {**default, **made, "trunk": {**default["trunk"], **made.get("trunk", {})}}
    return {**found, "model": model, "training": {**defaults, **found.get("training", {})}}


def _fingerprint(episodes: Episodes) -> dict[str, Any]:
    """Counts and a hash of the logs, so that a run never resumes on other data."""
    lengths = episodes.lengths
    return {"transitions": int(lengths.sum()), "episodes": len(lengths), "sha256": episodes.digest}


def _that_bind(config: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change; a codec follows from the logs, which are compared by their hash."""
    training = {name: value for name, value in config["training"].items() if name not in OF_THE_MACHINE}
    return {name: value for name, value in config.items() if name != "codec"} | {"training": training}
