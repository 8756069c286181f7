"""A run folder's model: what is saved, in what order, and how it comes back.

`config.json` describes the run once; `checkpoints/` holds Orbax steps of everything training carries. Nothing is
unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import PyTree
from worldmodel.codec import StepCodec
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig
from worldmodel.model.transformer import TrunkConfig
from worldmodel.trajectory import Spec

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class WorldModel:
    """A trained world model.

    Attributes:
      spec: spaces and limits of the environment it stands for.
      dynamics: the model behind the `Dynamics` protocol.
      params: what the dynamics' functions take first: `{"members": ..., "starts": [S, ...]}`.
      run: the run folder it was read from.
      step: training steps taken.
    """

    spec: Spec
    dynamics: StepDynamics
    params: PyTree
    run: Path
    step: int


def write_json(path: Path, data: Any) -> None:
    """Writes JSON so that the file is whole or absent at any instant."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def describe(spec: Spec, codec: StepCodec, model: StepConfig, training: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `config.json`, plain JSON."""
    return json.loads(
        json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "spec": spec.to_json(),
                "model": dataclasses.asdict(model),
                "training": dict(training),
                "codec": codec.to_json(),
            }
        )
    )


def read_config(run: Path) -> dict[str, Any]:
    """`config.json` of a run folder; one-line errors for a folder that is none or of another version."""
    path = run / "config.json"
    if not run.is_dir():
        raise FileNotFoundError(f"run folder {run} does not exist")
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run folder: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    version = config.get("format_version") if isinstance(config, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(f"{path} has format version {version}; this release reads {FORMAT_VERSION}")
    return config


def model_from_config(config: Mapping[str, Any]) -> tuple[Spec, StepDynamics]:
    """The inverse of `describe`, without parameters."""
    try:
        model = dict(config["model"])
        model["trunk"] = TrunkConfig(**model["trunk"])
        dynamics = StepDynamics(StepConfig(**model), StepCodec.from_json(config["codec"]))
        return Spec.from_json(config["spec"]), dynamics
    except (KeyError, TypeError) as error:
        raise ValueError(f"config.json of the run is damaged: {type(error).__name__} {error}") from error


class Checkpoints:
    """The `checkpoints/` folder of a run, through Orbax; the newest `keep` steps stay."""

    def __init__(self, run: Path, *, keep: int = 2):
        import orbax.checkpoint as ocp

        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager((run / "checkpoints").absolute(), options=options)

    def save(self, step: int, state: PyTree, position: Mapping[str, Any]) -> None:
        """Saves parameters, optimiser and data position of one step; returns when it is on disk."""
        items = self._ocp.args.Composite(
            state=self._ocp.args.StandardSave(state), position=self._ocp.args.JsonSave(dict(position))
        )
        self._manager.save(step, args=items)
        self._manager.wait_until_finished()

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def restore(self, step: int, template: PyTree | None) -> tuple[PyTree, dict[str, Any]]:
        """`(state, position)`; a template gives types and structure, without one the state is plain dicts."""
        if template is not None:
            template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), template)
        items = self._ocp.args.Composite(
            state=self._ocp.args.StandardRestore(template), position=self._ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=items)
        return restored["state"], restored["position"]

    def close(self) -> None:
        """Releases the manager's threads."""
        self._manager.close()


def load(run: str | os.PathLike[str]) -> WorldModel:
    """Loads the newest checkpoint of a run folder.

    Raises `FileNotFoundError` or `ValueError` with one clear line where the folder is missing, is no run, holds no
    complete checkpoint, or was written by another version.
    """
    path = Path(run)
    config = read_config(path)
    spec, dynamics = model_from_config(config)
    if not (path / "checkpoints").is_dir():
        raise FileNotFoundError(f"{path} holds no checkpoint yet: training has not reached its first save")
    checkpoints = Checkpoints(path)
    try:
        step = checkpoints.latest()
        if step is None:
            raise FileNotFoundError(f"{path} holds no complete checkpoint")
        state, _ = checkpoints.restore(step, None)
    finally:
        checkpoints.close()
    starts = read_starts(path)
    params = {"members": _integer_keys(state["params"]), "starts": jnp.asarray(starts)}
    return WorldModel(spec, dynamics, jax.tree.map(jnp.asarray, params), path, step)


def write_starts(run: Path, starts: np.ndarray) -> None:
    """Keeps the logs' first observations `[S, ...]` beside the config."""
    temporary = run / f".starts.{os.getpid()}.npy"
    np.save(temporary, starts, allow_pickle=False)
    os.replace(temporary, run / "starts.npy")


def read_starts(run: Path) -> np.ndarray:
    """The inverse of `write_starts`; never unpickles."""
    path = run / "starts.npy"
    if not path.is_file():
        raise FileNotFoundError(f"{run} has no starts.npy, the first observations that its episodes begin from")
    return np.load(path, allow_pickle=False)


def _integer_keys(tree: Any) -> Any:
    """Orbax writes a list's positions as text; modules count with integers."""
    if not isinstance(tree, Mapping):
        return tree
    return {int(k) if isinstance(k, str) and k.isdigit() else k: _integer_keys(v) for k, v in tree.items()}
