"""A run folder belongs to one configuration and one set of logs: claimed at the first call, compared at every later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldmodel.codec import fit_codec
from worldmodel.corpus import Episodes
from worldmodel.corpus.differences import differences
from worldmodel.spaces import map_columns
from worldmodel.training.checkpoint import describe, read_config, write_json, write_starts
from worldmodel.training.config import OF_THE_MACHINE, TrainingConfig
from worldmodel.training.continuation import Continuation
from worldmodel.trajectory import Spec

FITTED = 1_000_000
"""Transitions from which scales are fitted and starts are taken; of more, a sample."""


def claim(
    run: Path, episodes: Episodes, spec: Spec, config: TrainingConfig, continuation: Continuation | None = None
) -> None:
    """Writes `config.json` and `starts.npy`, or checks that those there ask for the same.

    Fields that only say how the work is spread (`config.OF_THE_MACHINE`) may differ.

    Raises:
      ValueError: the folder was made with another configuration or from other logs; the difference is named.
    """
    training = dataclasses.asdict(config) | {"logs": _fingerprint(episodes)}
    columns = episodes.sample(FITTED)
    if continuation is None:
        t = columns.transitions()
        codec = fit_codec(spec, t.obs, t.next_obs, t.actions, t.rewards, t.terminated)
    else:
        codec = continuation.codec(spec, config.model)
        training["continues"] = continuation.describe()
    del training["model"]
    wanted = describe(spec, codec, config.model, training)
    if not (run / "config.json").exists():
        write_starts(run, map_columns(lambda column: column[columns.observation_starts], columns.observations))
        write_json(run / "config.json", wanted)
        return
    different = differences(_that_bind(_with_defaults(read_config(run))), _that_bind(wanted))
    if different:
        raise ValueError(f"{run} was made with another configuration: {'; '.join(different)}")


def _with_defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of before an option existed asked for what is now the option's default."""
    defaults = dataclasses.asdict(TrainingConfig())
    model = {**defaults.pop("model"), **found.get("model", {})}
    return {**found, "model": model, "training": {**defaults, **found.get("training", {})}}


def _fingerprint(episodes: Episodes) -> dict[str, Any]:
    """Counts and a hash of the logs, so that a run never resumes on other data."""
    lengths = episodes.lengths
    return {"transitions": int(lengths.sum()), "episodes": len(lengths), "sha256": episodes.digest}


def _that_bind(config: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change; a codec follows from the logs, which are compared by their hash."""
    training = {name: value for name, value in config["training"].items() if name not in OF_THE_MACHINE}
    return {name: value for name, value in config.items() if name != "codec"} | {"training": training}
