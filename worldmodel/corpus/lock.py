"""One writer per folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

NAME = ".lock"


@contextlib.contextmanager
def only_writer(path: pathlib.Path) -> Iterator[None]:
    """Holds `path/.lock`, which names this process, while the body runs.

    The kernel frees the lock of a process that died, however it died, so that a stale file is taken over at once.

    Raises:
      ValueError: another writer, named by its process id, is at work in `path`.
    """
    file = path / NAME
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ValueError(f"{path}: another writer (process {holder}) is at work here") from None
        if _is_same_file(descriptor, file):
            break
        # A writer that was just finishing removed the file between our open and our lock.
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _is_same_file(descriptor: int, file: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
