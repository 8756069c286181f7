"""Freed memory kept by the process: on CPU, a train step's buffers are then not fetched from the system every time.

XLA frees a step's temporaries when it ends, and glibc gives blocks of that size straight back to the kernel, which
hands them out again page by page, each filled with zeros.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt`."""


def keep_freed_memory() -> bool:
    """From now on freed memory stays with the process, for whatever it needs next; True where glibc can be told so.

    Threads that begin later share one heap: call it before JAX is first used. Peak memory stays what it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return all([mallopt(*pair) for pair in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_ARENA_MAX, 1))])
