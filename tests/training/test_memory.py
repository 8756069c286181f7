"""Memory that is freed stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, threading
import numpy as np
from worldmodel.training.memory import keep_freed_memory
if {keep}:
    assert keep_freed_memory()

def use():
    global faults
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(2**26, np.uint8)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

thread = threading.Thread(target=use)
thread.start()
thread.join()
print(faults)
"""


def faults(keep):
    """Pages that the third array of 64 MiB, made in a thread, asks the system for."""
    done = subprocess.run([sys.executable, "-c", CODE.format(keep=keep)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_block_that_was_freed_is_used_again():
    assert faults(keep=True) < 100
    assert faults(keep=False) > 25
