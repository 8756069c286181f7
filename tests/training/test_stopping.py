"""Steps that are skipped, and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from worldmodel.training.stopping import PATIENCE, Interruption, SkippedSteps, Stopped

BAD, GOOD = {"skipped": 1.0, "loss": np.nan, "grad_norm": 1.0}, {"skipped": 0.0, "loss": 1.0, "grad_norm": 1.0}


def windows(step):
    return {"observations": {"a": np.full((2, 3), step), "b": (np.zeros(2),)}, "rewards": np.full(2, np.nan)}


def test_skipped_steps_are_counted_and_looked_at_one_step_late(tmp_path):
    skipped = SkippedSteps(tmp_path, total=3)
    for step, metrics in enumerate([BAD, BAD, GOOD, BAD], start=1):
        skipped.watch(step, windows(step), metrics)
    assert (skipped.total, skipped.in_a_row) == (5, 0)
    skipped.settle()
    assert (skipped.total, skipped.in_a_row) == (6, 1)


@pytest.mark.parametrize(
    ("lost", "named"),
    [({"loss": np.nan, "grad_norm": 1.0}, "loss is nan"), ({"loss": 2.0, "grad_norm": np.inf}, "grad_norm is inf")],
)
def test_ten_in_a_row_stop_and_the_last_batch_is_saved(tmp_path, lost, named):
    skipped = SkippedSteps(tmp_path)
    skipped.watch(1, windows(1), GOOD)
    for step in range(2, 12):
        skipped.watch(step, windows(step), BAD | lost)
    with pytest.raises(FloatingPointError, match=rf"{named} at step 11; .*unharmed; 10 steps in a row were skipped"):
        skipped.settle()
    assert skipped.in_a_row == PATIENCE == 10
    (path,) = tmp_path.glob("*.npz")
    with np.load(path, allow_pickle=False) as saved:
        assert set(saved.files) == {"['observations']['a']", "['observations']['b'][0]", "['rewards']"}
        np.testing.assert_array_equal(saved["['observations']['a']"], np.full((2, 3), 11))


def test_sigterm_is_noticed_only_inside_and_the_handler_of_before_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interruption() as interruption:
        assert not interruption.due(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.due(2)
    assert signal.getsignal(signal.SIGTERM) is before
    with Interruption() as interruption:
        assert not interruption.due(1)


def test_another_thread_sets_no_handler():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter():
        with Interruption() as interruption:
            seen.append((signal.getsignal(signal.SIGTERM), interruption.due(1)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


def test_stopped_is_an_exit_with_code_0():
    assert isinstance(Stopped(7), SystemExit)
    assert (Stopped(7).code, Stopped(7).step) == (0, 7)
