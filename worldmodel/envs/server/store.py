"""Sessions on disk: one file each, named by its key, so that a server that was killed goes on with them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from worldmodel.envs.server.world import World

KEY = re.compile(r"[A-Za-z0-9_-]{22}")
"""A session's key, 128 random bits: who knows it may continue the session. Nothing else becomes a file's name."""


class Store:
    """The kept sessions of one world, in a folder that only this user can read.

    Args:
      folder: made if it is not there.
      world: writes and reads the episodes.
      most: files that are kept at most; the longest unused go first.
    """

    def __init__(self, folder: Path, world: World, most: int):
        self._folder, self._world, self._most = folder, world, most
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, key: str, episode: Any, note: Mapping[str, Any]) -> None:
        """Keeps a session; the file is whole or absent at any instant."""
        self._world.save(episode, note, self._path(key))

    def load(self, key: Any) -> tuple[Any, dict[str, Any]] | None:
        """Episode and note; None where there is no such session. `ValueError` where it is not of this world."""
        if not isinstance(key, str) or not KEY.fullmatch(key) or not self._path(key).is_file():
            return None
        found = self._world.load(self._path(key))
        self.touch(key)
        return found

    def touch(self, key: str) -> None:
        """Counts the session as used now."""
        if self._path(key).exists():
            os.utime(self._path(key))

    def discard(self, key: str) -> None:
        """Forgets a session."""
        self._path(key).unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """Of all that are kept, the longest unused first."""
        found = [(path.stat().st_mtime, path.stem) for path in self._folder.glob(f"*{self._world.suffix}")]
        return [key for _, key in sorted(found) if KEY.fullmatch(key)]

    def sweep(self, idle_seconds: float, live: Collection[str]) -> None:
        """Forgets what was not used for so long, and what is too much; not what is `live`."""
        asleep = [key for key in self.keys() if key not in live]
        too_many = len(asleep) - self._most
        for place, key in enumerate(asleep):
            if place < too_many or time.time() - self._path(key).stat().st_mtime > idle_seconds:
                self.discard(key)
        for path in self._folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            if time.time() - path.stat().st_mtime > idle_seconds:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{self._world.suffix}"
