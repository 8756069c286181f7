"""Checkpoints: which are kept, what damage is seen, and what a full disk leaves."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.training.storage import Checkpoints, checksums


def state(value: float):
    return {"params": {"a": jnp.full((5, 3), value), "b": [jnp.arange(7)]}, "step": jnp.asarray(int(value), jnp.int32)}


def written(run: Path, scores: dict[int, float | None]) -> Path:
    checkpoints = Checkpoints(run)
    for step, score in scores.items():
        checkpoints.save(step, state(step), {"data": {"next": step}}, score=score)
    checkpoints.close()
    return run


def kept(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def largest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_the_last_two_and_the_best_are_kept(tmp_path):
    run = written(tmp_path, {1: 5.0, 2: 3.0, 3: 4.0, 4: None, 5: 6.0})
    assert kept(run) == [2, 4, 5]
    checkpoints = Checkpoints(run, read_only=True)
    assert (checkpoints.latest(), checkpoints.best()) == (5, 2)
    np.testing.assert_array_equal(checkpoints.restore_params(2)["a"], np.full((5, 3), 2.0, np.float32))
    checkpoints.close()


def test_without_scores_the_last_two_are_kept(tmp_path):
    run = written(tmp_path, {1: None, 2: None, 3: None})
    assert kept(run) == [2, 3]
    checkpoints = Checkpoints(run, read_only=True)
    assert checkpoints.best() is None
    checkpoints.close()


def test_what_is_saved_is_not_what_the_next_step_writes(tmp_path):
    """The save runs on while the buffers are given away to the next step."""
    checkpoints = Checkpoints(tmp_path)
    advance = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    current = {"a": jnp.zeros(200_003), "b": jnp.zeros((), jnp.int32)}
    for step in range(1, 6):
        current = advance(current)
        checkpoints.save(step, current, {})
        for _ in range(3):
            current = advance(current)
    restored, _ = checkpoints.restore(5, jax.tree.map(jnp.zeros_like, current))
    assert set(np.unique(restored["a"])) == {float(5 + 4 * 3)}
    checkpoints.close()


@pytest.mark.parametrize("damage", ["cut", "emptied", "a bit", "a file gone", "position"])
def test_a_damaged_newest_step_is_told_and_the_one_before_taken(tmp_path, caplog, damage):
    run = written(tmp_path, {1: None, 2: None})
    folder = run / "checkpoints" / "2"
    victim = (
        largest_file(folder / "state" / "d") if (folder / "state" / "d").is_dir() else largest_file(folder / "state")
    )
    content = bytearray(victim.read_bytes())
    if damage == "cut":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "emptied":
        victim.write_bytes(b"")
    elif damage == "a bit":
        content[len(content) // 2] ^= 16
        victim.write_bytes(content)
    elif damage == "a file gone":
        victim.unlink()
    else:
        (folder / "position" / "metadata").write_text('{"data": ')
    with caplog.at_level(logging.WARNING):
        checkpoints = Checkpoints(run)
        step, restored, position = checkpoints.newest(state(0))
        checkpoints.close()
    assert (step, position) == (1, {"data": {"next": 1}})
    np.testing.assert_array_equal(restored["params"]["a"], np.full((5, 3), 1.0))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "checkpoints/2 is damaged (" in lines[0]
    assert lines[0].endswith("; continuing from step 1")
    assert kept(run) == [1]


def test_a_state_that_reads_well_but_is_not_what_was_saved_is_seen(tmp_path):
    """As a write that the disk lost: another step's files, whole in themselves."""
    run = written(tmp_path, {1: None, 2: None})
    checkpoints = Checkpoints(run, read_only=True)
    os.rename(run / "checkpoints" / "2" / "state", run / "set-aside")
    os.rename(run / "checkpoints" / "1" / "state", run / "checkpoints" / "2" / "state")
    with pytest.raises(ValueError, match="2 arrays are not what was saved, params/a among them"):
        checkpoints.restore(2, state(0))
    with pytest.raises(ValueError, match="1 arrays are not what was saved, params/a among them"):
        checkpoints.restore_params(2)
    checkpoints.close()


def test_all_damaged_is_an_error(tmp_path):
    run = written(tmp_path, {1: None})
    largest_file(run / "checkpoints" / "1" / "state").unlink()
    (run / "checkpoints" / "1" / "position" / "metadata").unlink()
    checkpoints = Checkpoints(run)
    with pytest.raises(ValueError, match="checkpoints/1 is damaged") as caught:
        checkpoints.newest(state(0))
    assert "\n" not in str(caught.value)
    checkpoints.close()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("RESOURCE_EXHAUSTED: Failed to write 245154 bytes: No space left on device [os_error_code='28']"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_step_before(tmp_path, monkeypatch, error):
    run = written(tmp_path, {1: None})
    checkpoints = Checkpoints(run)

    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(checkpoints._manager, "save", full)
    expected = r"could not be written \(no space left on the disk\); the last good one is of step 1$"
    with pytest.raises(OSError, match=expected) as caught:
        checkpoints.save(2, state(2), {})
    assert "\n" not in str(caught.value)
    checkpoints.close()
    assert kept(run) == [1]


def test_checksums_do_not_depend_on_how_arrays_lie():
    rng = np.random.default_rng(0)
    tree = {"a": rng.normal(size=(6, 5)).astype(np.float32), "b": [np.arange(9, dtype=np.int32), np.float16([1, -2])]}
    from worldmodel.training.storage import _device_sums

    leaves = {"a": tree["a"], "b/0": tree["b"][0], "b/1": tree["b"][1]}
    on_device = {name: int(value) for name, value in _device_sums(jax.tree.map(jnp.asarray, leaves)).items()}
    assert checksums(tree) == on_device
    flipped = tree["a"].copy()
    flipped.view(np.uint32)[3, 2] ^= 1 << 17
    assert checksums(tree | {"a": flipped}) != on_device
