"""The `checkpoints/` folder of a run, through Orbax: written in the background, verified when read back."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import PyTree

_log = logging.getLogger(__name__)
_SCORE = "held_out_nll"


class Checkpoints:
    """The newest `keep` steps stay, and the one of the lowest held-out negative log-likelihood.

    Args:
      run: the run folder.
      keep: how many of the newest.
      read_only: nothing is written, and what a killed writer left is not swept up.
    """

    def __init__(self, run: Path, *, keep: int = 2, read_only: bool = False):
        import orbax.checkpoint as ocp
        from orbax.checkpoint import checkpoint_managers as managers

        self._ocp, self._folder, self._read_only = ocp, (run / "checkpoints").absolute(), read_only
        _tell_failures_once()
        lowest = managers.BestN(
            get_metric_fn=lambda metrics: metrics[_SCORE], reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            best_fn=lambda metrics: metrics[_SCORE],
            best_mode="min",
            preservation_policy=managers.AnyPreservationPolicy([managers.LatestN(keep), lowest]),
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def save(self, step: int, state: PyTree, position: Mapping[str, Any], *, score: float | None = None) -> None:
        """Begins to save what training carries; returns when the state may change again.

        Args:
          step: training steps taken.
          state: parameters and optimiser.
          position: of the data, and whatever else is plain JSON.
          score: held-out negative log-likelihood; None: this step cannot be the best.

        Raises:
          OSError: this or the save before failed; what was there before is unharmed.
        """
        with self._failures_as_one_line():
            if jax.default_backend() == "cpu":
                # There Orbax reads the very buffers that the next step is given to write in.
                state = jax.tree.map(jnp.copy, state)
            content = dict(position) | {"checksums": checksums(state)}
            items = self._ocp.args.Composite(
                state=self._ocp.args.StandardSave(state), position=self._ocp.args.JsonSave(content)
            )
            self._manager.save(step, args=items, metrics=None if score is None else {_SCORE: score}, force=True)

    def wait(self) -> None:
        """Returns when everything is on disk; `OSError` where it could not be written."""
        with self._failures_as_one_line():
            self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        """The complete steps, oldest first."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def best(self) -> int | None:
        """The step of the lowest held-out negative log-likelihood; None where none was measured."""
        return self._manager.best_step()

    def restore(self, step: int, template: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """`(state, position)`; the template's arrays give types, structure and where each lies, on whatever mesh.

        Raises:
          ValueError: the files are damaged.
        """
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), template)
        with _damage_as_one_line(self._folder / str(step)):
            items = self._ocp.args.Composite(
                state=self._ocp.args.StandardRestore(target), position=self._ocp.args.JsonRestore()
            )
            restored = self._manager.restore(step, args=items)
            state, position = restored["state"], restored["position"]
            _verify(position.pop("checksums", {}), checksums(state))
        return state, position

    def restore_params(self, step: int) -> PyTree:
        """Parameters alone, as dicts of NumPy arrays, wherever they were saved; `ValueError` where damaged."""
        ocp, folder = self._ocp, self._folder / str(step)
        with _damage_as_one_line(folder), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            tree = reader.metadata(folder / "state").item_metadata.tree
            wanted = {"params": tree["params"]}
            kinds = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
            how = ocp.args.PyTreeRestore(item=wanted, restore_args=kinds, partial_restore=True)
            params = reader.restore(folder / "state", args=how)
            items = ocp.args.Composite(position=ocp.args.JsonRestore())
            known = self._manager.restore(step, args=items)["position"].get("checksums", {})
            found = checksums(params)
            _verify({name: known[name] for name in found if name in known}, found)
        return params["params"]

    def newest(self, template: PyTree) -> tuple[int, PyTree, dict[str, Any]] | None:
        """`(step, state, position)` of the newest step that is whole, or None where there is no step.

        A damaged one is told and removed, so that training can write it again.

        Raises:
          ValueError: every step is damaged.
        """
        for step in reversed(self.steps()):
            try:
                return step, *self.restore(step, template)
            except ValueError as error:
                before = [known for known in self.steps() if known < step]
                if not before:
                    raise
                _log.warning("%s; continuing from step %d", error, before[-1])
                self._manager.delete(step)
        return None

    def newest_params(self) -> tuple[int, PyTree] | None:
        """The same for parameters alone; nothing is removed."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, self.restore_params(step)
            except ValueError as error:
                if step == steps[0]:
                    raise
                _log.warning("%s; taking the step before", error)
        return None

    def close(self) -> None:
        """Waits for what is being written and releases the manager's threads."""
        with self._failures_as_one_line():
            self._manager.close()

    @contextlib.contextmanager
    def _failures_as_one_line(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of TensorStore's threads, Orbax raises whatever they raised
            steps = [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()]
            kept = f"the last good one is of step {max(steps)}" if steps else "there is none yet"
            full = "No space left" in str(error) or getattr(error, "errno", None) == errno.ENOSPC
            reason = "no space left on the disk" if full else " ".join(str(error).split())[:200]
            raise OSError(f"{self._folder}: the checkpoint could not be written ({reason}); {kept}") from error


def checksums(tree: PyTree) -> dict[str, int]:
    """Of every array by its path: the sum of its 32-bit words modulo 2^32, the same on whatever mesh it lies."""
    leaves = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    if all(not isinstance(leaf, jax.Array) or leaf.is_fully_addressable for leaf in leaves.values()):
        return {name: _host_sum(np.asarray(leaf)) for name, leaf in leaves.items()}
    return {name: int(value) for name, value in _device_sums(leaves).items()}


def _host_sum(array: np.ndarray) -> int:
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint32 if array.itemsize == 4 else np.uint8)
    return int(words.sum(dtype=np.uint64)) % 2**32


@jax.jit
def _device_sums(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    def total(array: jax.Array) -> jax.Array:
        words = jax.lax.bitcast_convert_type(array, jnp.uint32 if array.dtype.itemsize == 4 else jnp.uint8)
        return jnp.sum(words.astype(jnp.uint32))

    return jax.tree.map(total, leaves)


def _name(path: Any) -> str:
    """One name for a leaf of a tuple, of a list, and of the dict as which either is read back."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path)


def _verify(expected: Mapping[str, int], found: Mapping[str, int]) -> None:
    different = [name for name, value in expected.items() if found.get(name) != value]
    if different:
        raise ValueError(f"{len(different)} arrays are not what was saved, {different[0]} among them")


@contextlib.contextmanager
def _damage_as_one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Orbax, TensorStore and JSON raise anything at all for a damaged file
        raise ValueError(f"checkpoint {folder} is damaged ({' '.join(str(error).split())[:160]})") from error


def _tell_failures_once() -> None:
    """Orbax logs a failure's traceback in every thread that sees it; here it is raised, and told once."""
    logger = logging.getLogger("absl")
    if _not_from_orbax not in logger.filters:
        logger.addFilter(_not_from_orbax)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname
