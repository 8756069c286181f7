"""What gathers while a call runs is done in the next one."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from worldmodel.envs.server.batching import Batcher


class Recorder:
    """Doubles numbers; stands still while its gate is closed."""

    def __init__(self):
        self.calls: list[tuple[str, list]] = []
        self.started, self.gate = threading.Event(), threading.Event()

    def __call__(self, kind, items):
        self.started.set()
        assert self.gate.wait(10)
        self.calls.append((kind, list(items)))
        if kind == "broken":
            raise ValueError("no")
        return [ValueError(f"not {item}") if item < 0 else 2 * item for item in items]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def batcher(recorder):
    made = Batcher(recorder, 3)
    yield made
    recorder.gate.set()
    made.close()


def held(batcher: Batcher, recorder: Recorder) -> Future:
    """An item that is being worked on, so that what comes next gathers."""
    future = batcher.submit("step", 0)
    assert recorder.started.wait(10)
    return future


def test_items_gather_by_kind_in_order_and_up_to_the_most_a_call_takes(batcher, recorder):
    held(batcher, recorder)
    wanted = [("step", 1), ("reset", 2), ("step", 3), ("reset", 4), ("step", 5), ("step", 6)]
    futures = [batcher.submit(kind, item) for kind, item in wanted]
    recorder.gate.set()
    assert [future.result(10) for future in futures] == [2 * item for _, item in wanted]
    assert recorder.calls == [("step", [0]), ("step", [1, 3, 5]), ("reset", [2, 4]), ("step", [6])]
    assert (batcher.calls, batcher.items) == (4, 7)


def test_an_error_is_that_of_its_item_or_of_its_call_and_the_thread_goes_on(batcher, recorder):
    recorder.gate.set()
    held(batcher, recorder)
    futures = [batcher.submit("step", item) for item in (-1, 1)]
    with pytest.raises(ValueError, match="not -1"):
        futures[0].result(10)
    assert futures[1].result(10) == 2
    with pytest.raises(ValueError, match=r"^no$"):
        batcher.submit("broken", 1).result(10)
    assert batcher.submit("step", 4).result(10) == 8


def test_who_has_gone_gets_nothing_and_others_do(batcher, recorder):
    held(batcher, recorder)
    gone, stays = batcher.submit("step", 1), batcher.submit("step", 2)
    assert gone.cancel()
    recorder.gate.set()
    assert stays.result(10) == 4


def test_closing_finishes_what_waits_and_takes_no_more(batcher, recorder):
    first = held(batcher, recorder)
    later = batcher.submit("step", 1)
    threading.Timer(0.05, recorder.gate.set).start()
    batcher.close()
    assert (first.result(0), later.result(0)) == (0, 2)
    with pytest.raises(ValueError, match="the server is closing"):
        batcher.submit("step", 1)
