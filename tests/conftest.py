"""What holds for every test: the machine's settings, run-time type checks, and the one trained run that tests share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

# Read by the libraries when they are first imported, and inherited by the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["HF_HUB_OFFLINE"] = "1"
# What was compiled once is kept: for the other workers, for the processes that tests start, for the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Tests compile far more than they compute.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    # Compiles the step model in half the time; later releases have no other emitters, and die of an unknown flag.
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: each computes on one thread.
    os.environ["XLA_FLAGS"] += " --xla_cpu_multi_thread_eigen=false"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtyping import install_import_hook

EARLY = sorted(name for name in sys.modules if name.partition(".")[0] == "worldmodel")
if EARLY:
    raise RuntimeError(f"imported before its type checks could be switched on: {', '.join(EARLY)}")
# Every function and dataclass of the library checks the types and shapes of what passes through it.
install_import_hook("worldmodel", "beartype.beartype")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", os.environ["JAX_NUMPY_DTYPE_PROMOTION"])

hypothesis.settings.register_profile("worldmodel", derandomize=True, deadline=None)
hypothesis.settings.load_profile("worldmodel")


# --- The run that tests share -----------------------------------------------------------------------------------------
# Only tests/support.py knows how it is trained. Tests leave it as it is: whoever changes a run copies it first.


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny trained run, made once for all workers."""
    from tests.support import make_tiny_run

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return made_once(shared / "trained_run", make_tiny_run)


# ----------------------------------------------------------------------------------------------------------------------


def made_once(target: Path, make: Callable[[Path], object], *, timeout: float = 900.0) -> Path:
    """Calls `make(target)` in the first process that asks; every other process waits for it. Returns `target`.

    Raises:
      RuntimeError: `make` failed in another process.
      TimeoutError: another process did not finish within `timeout` seconds.
    """
    done, failed = target.with_name(f"{target.name}.done"), target.with_name(f"{target.name}.failed")
    try:
        os.close(os.open(target.with_name(f"{target.name}.lock"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        end = time.monotonic() + timeout
        while not done.exists():
            if failed.exists():
                raise RuntimeError(f"{target.name} could not be made: see the error of the test that made it") from None
            if time.monotonic() > end:
                raise TimeoutError(f"{target.name} was not ready after {timeout:.0f} s") from None
            time.sleep(0.1)
        return target
    try:
        make(target)
        done.touch()
    finally:
        if not done.exists():
            failed.touch()
    return target
