"""A run folder's model: what describes it, and how it comes back.

`config.json` describes the run once; `checkpoints/` holds Orbax steps of everything training carries
(`worldmodel.training.storage`). Nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import PyTree
from worldmodel.certificate import Certificate
from worldmodel.codec import StepCodec
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig
from worldmodel.model.transformer import TrunkConfig
from worldmodel.spaces import assemble, walk
from worldmodel.training.storage import Checkpoints
from worldmodel.training.worlds import ONLY, member_params
from worldmodel.trajectory import Spec
from worldmodel.trust_region import TrustRegion

FORMAT_VERSION = 2


@dataclasses.dataclass(frozen=True)
class WorldModel:
    """A trained world model.

    Attributes:
      spec: spaces and limits of the environment it stands for.
      dynamics: the model behind the `Dynamics` protocol.
      params: what the dynamics' functions take first, see `StepDynamics`.
      run: the run folder it was read from.
      step: training steps taken.
      trust: what its members' disagreement is on held-out steps; None where that was not measured of this checkpoint.
      certificate: states in which its steps are certified; None where no probe certified this checkpoint.
    """

    spec: Spec
    dynamics: StepDynamics
    params: PyTree
    run: Path
    step: int
    trust: TrustRegion | None = None
    certificate: Certificate | None = None


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


def describe_together(specs: Mapping[str, Spec], model: StepConfig, training: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a run of several worlds; each world's own description is in its `world_folder`."""
    described = {
        "format_version": FORMAT_VERSION,
        "worlds": {name: spec.to_json() for name, spec in specs.items()},
        "model": dataclasses.asdict(model),
        "training": dict(training),
    }
    return json.loads(json.dumps(described))


def world_folder(run: Path, name: str) -> Path:
    """Where one world of several has its config and its starts; to load it, it is a run folder."""
    return run / "worlds" / name


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
    if "worlds" in config:
        names = ", ".join(f"worlds/{name}" for name in config["worlds"])
        raise ValueError(f"this run is of several worlds; take the folder of one: {names}")
    try:
        model = dict(config["model"])
        model["trunk"] = TrunkConfig(**model["trunk"])
        dynamics = StepDynamics(StepConfig(**model), StepCodec.from_json(config["codec"]))
        return Spec.from_json(config["spec"]), dynamics
    except (KeyError, TypeError) as error:
        raise ValueError(f"config.json of the run is damaged: {type(error).__name__} {error}") from error


def load(run: str | os.PathLike[str], *, which: Literal["last", "best"] = "last") -> WorldModel:
    """Loads a checkpoint of a run folder.

    Args:
      run: the folder.
      which: the newest that is whole, or the one of the lowest held-out negative log-likelihood.

    Raises `FileNotFoundError` or `ValueError` with one clear line where the folder is missing, is no run, holds no
    complete checkpoint, or was written by another version.
    """
    path = Path(run)
    config = read_config(path)
    spec, dynamics = model_from_config(config)
    world = config.get("world", ONLY)
    home = path.absolute().parents[1] if world else path
    if not (home / "checkpoints").is_dir():
        raise FileNotFoundError(f"{home} holds no checkpoint yet: training has not reached its first save")
    checkpoints = Checkpoints(home, read_only=True)
    try:
        if which == "best":
            best = checkpoints.best()
            if best is None:
                raise FileNotFoundError(f"{home} holds no checkpoint that was measured on held-out episodes")
            found = best, checkpoints.restore_params(best)
        else:
            found = checkpoints.newest_params()
            if found is None:
                raise FileNotFoundError(f"{home} holds no complete checkpoint")
    finally:
        checkpoints.close()
    params = {"members": _integer_keys(member_params(found[1], world)), "starts": read_starts(path, spec)}
    if dynamics.codec.context.size:
        params["contexts"] = np.load(path / "contexts.npy", allow_pickle=False)
    trust, certificate = TrustRegion.load(path), Certificate.load(path)
    if trust is not None and trust.step != found[0]:
        trust = None
    if certificate is not None and certificate.step != found[0]:
        certificate = None
    return WorldModel(spec, dynamics, jax.tree.map(jnp.asarray, params), path, found[0], trust, certificate)


def write_starts(run: Path, starts: PyTree, contexts: np.ndarray | None = None) -> None:
    """Keeps the logs' first observations, columns `[S, ...]`, beside the config; of several parts as `starts.npz`.

    Encoded contexts `[S, C]` go to `contexts.npy`, where there are any.
    """
    if contexts is not None and contexts.shape[1]:
        _save(run / "contexts.npy", contexts)
    if isinstance(starts, np.ndarray):
        _save(run / "starts.npy", starts)
    else:
        temporary = run / f".starts.{os.getpid()}.npz"
        np.savez(temporary, **{jax.tree_util.keystr(p): v for p, v in jax.tree_util.tree_leaves_with_path(starts)})
        os.replace(temporary, run / "starts.npz")


def _save(path: Path, array: np.ndarray) -> None:
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    np.save(temporary, array, allow_pickle=False)
    os.replace(temporary, path)


def read_starts(run: Path, spec: Spec) -> PyTree:
    """The inverse of `write_starts`; never unpickles."""
    parts = spec.observation_space["type"] in ("Dict", "Tuple")
    path = run / ("starts.npz" if parts else "starts.npy")
    if not path.is_file():
        raise FileNotFoundError(f"{run} has no {path.name}, the first observations that its episodes begin from")
    if not parts:
        return np.load(path, allow_pickle=False)
    with np.load(path, allow_pickle=False) as file:
        return assemble(
            [(path, file["".join(f"[{key!r}]" for key in path)]) for path, _ in walk(spec.observation_space)]
        )


def _integer_keys(tree: Any) -> Any:
    """Orbax writes a list's positions as text; modules count with integers."""
    if not isinstance(tree, Mapping):
        return tree
    return {int(k) if isinstance(k, str) and k.isdigit() else k: _integer_keys(v) for k, v in tree.items()}
