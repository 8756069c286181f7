"""Cells on a Ray cluster: the same cells, the same results; needs the extra `ray`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from worldmodel.study.cells import Cell
from worldmodel.study.grid import Study
from worldmodel.study.pool import ONE_THREAD, Outcome, compute, loader
from worldmodel.study.source import Source

AHEAD = 4
"""Cells handed to the cluster per core: the rest waits here."""


class RayPool:
    """See `Pool`. The cluster's machines must hold this package, and a recipe's file under the same path.

    Args:
      source: what the cluster's processes load the study from.
      address: of a running cluster, "auto", or "local": one made on this machine, for as long as this lasts.
      workers: cores of a local one.
    """

    def __init__(self, source: Source | Study, address: str, *, workers: int = 1):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise ValueError('Ray is not installed; it comes with the extra: pip install "worldmodel[ray]"') from None
        self._ray = ray
        common = {"log_to_driver": False, "runtime_env": {"env_vars": ONE_THREAD}}
        if address == "local":
            local = {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            ray.init(**local, **common)
        else:
            try:
                ray.init(address=address, **common)
            except ConnectionError as error:
                raise ValueError(f"no Ray cluster answers at {address}: {' '.join(str(error).split())}") from None
        self._source = ray.put(source)
        # A cell that fails is kept as such; a machine that is lost is tried again by the next start.
        self._task = ray.remote(num_cpus=1, max_retries=0)(_compute)

    def __call__(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
        """See `Pool`."""
        waiting, running = list(reversed(cells)), {}
        most = AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        while waiting or running:
            while waiting and len(running) < most:
                cell = waiting.pop()
                running[self._task.remote(self._source, cell.content())] = cell
            ready, _ = self._ray.wait(list(running), num_returns=1)
            for reference in ready:
                yield running.pop(reference), self._outcome(reference)

    def close(self) -> None:
        """See `Pool`: lets go of the cluster, and ends a local one."""
        self._ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome([], 0.0, f"the process that computed it died: {type(error).__name__}", str(error))


def _compute(source: Source | Study, content: dict[str, Any]) -> Outcome:
    # A study that came by itself is there; one that is named is loaded once per process.
    return compute(_loader(source) if isinstance(source, Source) else loader(source), Cell.of(content))


_loader = cache(loader)
