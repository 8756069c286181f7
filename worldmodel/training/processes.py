"""Training in several processes: how they find each other, and what only the first of them does."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np


def start(coordinator: str, processes: int, process: int) -> None:
    """Joins `processes` processes into one program (`jax.distributed`); to be called before JAX is first used.

    Args:
      coordinator: HOST:PORT of process 0; "auto" where the cluster tells all three (TPU slices, Slurm, Open MPI).
      processes: how many there are.
      process: this one's number, from 0.

    Raises:
      ValueError: the address or the number is none.
    """
    if coordinator == "auto":
        jax.distributed.initialize()
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"coordinator {coordinator!r} is no HOST:PORT")
    if not 0 <= process < processes:
        raise ValueError(f"process {process} of {processes} is none; they are counted from 0 to {processes - 1}")
    local = host in ("127.0.0.1", "localhost")
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        # On one machine nobody else need reach it; by default the coordinator listens on every interface.
        coordinator_bind_address=coordinator if local else None,
    )


def leads() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def leader_first(action: Callable[[], None]) -> None:
    """Process 0 does something while the others wait for it; its `ValueError` or `OSError` ends all of them."""
    error: ValueError | OSError | None = None
    if leads():
        try:
            action()
        except (ValueError, OSError) as caught:
            error = caught
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        failed = multihost_utils.broadcast_one_to_all(np.int32(error is not None))
        if failed and error is None:
            raise ValueError("process 0 could not begin; its own message says why")
    if error is not None:
        raise error
