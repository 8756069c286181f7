"""A run folder belongs to one configuration and one set of logs: claimed at the first call, compared at every later."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.codec import fit_codec
from worldmodel.corpus import Columns
from worldmodel.spaces import column_list, map_columns
from worldmodel.training.checkpoint import describe, read_config, write_json, write_starts
from worldmodel.training.config import OF_THE_MACHINE, TrainingConfig
from worldmodel.training.continuation import Continuation
from worldmodel.trajectory import Spec


def claim(
    run: Path, columns: Columns, spec: Spec, config: TrainingConfig, continuation: Continuation | None = None
) -> None:
    """Writes `config.json` and `starts.npy`, or checks that those there ask for the same.

    Fields that only say how the work is spread (`config.OF_THE_MACHINE`) may differ.

    Raises:
      ValueError: the folder was made with another configuration or from other logs; the difference is named.
    """
    training = dataclasses.asdict(config) | {"logs": _fingerprint(columns)}
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
    different = _differences(_with_defaults(read_config(run)), wanted)
    if different:
        raise ValueError(f"{run} was made with another configuration: {'; '.join(different)}")


def _with_defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of before an option existed asked for what is now the option's default."""
    defaults = dataclasses.asdict(TrainingConfig())
    del defaults["model"]
    return {**found, "training": {**defaults, **found.get("training", {})}}


def _fingerprint(columns: Columns) -> dict[str, Any]:
    """Counts and a hash of the logs' arrays, so that a run never resumes on other data."""
    digest = hashlib.sha256()
    parts = (columns.observations, columns.actions, columns.rewards, columns.lengths, columns.terminated)
    for array in (column for part in parts for column in column_list(part)):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {"transitions": len(columns), "episodes": columns.episodes, "sha256": digest.hexdigest()[:16]}


def _differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        lines = []
        for key in sorted({*found, *wanted}):
            lines += _differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
        return lines
    if name.startswith("codec.") or name.removeprefix("training.") in OF_THE_MACHINE:
        return []  # a codec follows from the logs, which are compared by their hash
    return [] if found == wanted else [f"{name} is {json.dumps(found)} there, {json.dumps(wanted)} here"]
