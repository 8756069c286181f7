"""Sessions: which connection holds which episode, how many there may be, and for how long."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from gymnasium.error import ResetNeeded

from worldmodel.corpus.lock import only_writer
from worldmodel.envs.server.batching import Batcher
from worldmodel.envs.server.session import Answer, Job, Refused, Session, answer_of, from_note, to_note
from worldmodel.envs.server.store import Store
from worldmodel.envs.server.world import Turn, World

ASLEEP = 16
"""Sessions on disk for each that may be open."""
LABEL = 255
"""Characters of an `episode_id`."""


class Sessions:
    """All sessions of one served world.

    A session is open while a connection holds it, and asleep on disk afterwards, until it was not used for
    `idle_seconds`. Every answer is on disk before it is given, so that a server that was killed and started again goes
    on from what its clients saw last. A session's state is reached by its key alone.

    Args:
      world: what is served.
      folder: of the store; one server at a time.
      most: sessions open at the same time.
      idle_seconds: unused for so long, a session is forgotten.

    Raises:
      ValueError: another server uses the folder, or a number is outside what is allowed.
    """

    def __init__(self, world: World, folder: Path, *, most: int = 64, idle_seconds: float = 1800.0):
        if most < 1:
            raise ValueError(f"max_sessions is {most}; at least 1 is needed")
        if not 0 < idle_seconds < float("inf"):
            raise ValueError(f"idle_seconds is {idle_seconds}; a positive number of seconds is needed")
        self.world, self.most, self.idle_seconds = world, most, idle_seconds
        self._store = Store(folder, world, ASLEEP * most)
        self._claim = only_writer(folder)
        self._claim.__enter__()
        self._open: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._names = itertools.count(1)
        self._fresh = 0
        self._ended, self._wake = threading.Event(), threading.Event()
        self.batcher = Batcher(self._run, world.most)
        self._sweeper = threading.Thread(target=self._sweep_now_and_then, name="sweeper", daemon=True)
        self._sweeper.start()

    def connect(self) -> Connection:
        """A connection that holds no session yet."""
        return Connection(self, next(self._names))

    def __len__(self) -> int:
        """Sessions that are open."""
        return len(self._open)

    def close(self) -> None:
        """Finishes what is under way; the sessions stay on disk. May be called again."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wake.set()
        self.batcher.close()
        self._sweeper.join()
        self._claim.__exit__(None, None, None)

    def sweep(self) -> None:
        """Forgets sessions that were not used for `idle_seconds`, open or asleep."""
        now = time.monotonic()
        with self._lock:
            for session in list(self._open.values()):
                if not session.busy and now - session.used > self.idle_seconds:
                    self._release(session)
                    self._store.discard(session.key)
            self._fresh = 0
            self._store.sweep(self.idle_seconds, self._open)

    def begin(self, key: str | None, owner: int, asked: Any, episode_id: str | None) -> tuple[str, Future[Answer]]:
        """Starts an episode in the owner's session, or in a new one where the key is None."""
        with self._lock:
            session = self._open.get(key) if key is not None else None
            if session is None or session.owner != owner:  # it ended, or another connection has it now
                session = self._new(owner)
            return session.key, self._submit("reset", session, Job(session, asked, episode_id))

    def step(self, key: str, owner: int, asked: Any) -> Future[Answer]:
        """Takes a step in the owner's session."""
        with self._lock:
            session = self._held(key, owner)
            if session.turn is None:
                raise ResetNeeded("step was called before reset")
            if session.turn.over:
                raise ResetNeeded("step was called after the episode's end; call reset first")
            return self._submit("step", session, Job(session, asked, None))

    def take(self, key: Any, owner: int) -> str:
        """Opens a session for a new owner, whoever had it: a lost connection is soon replaced by another."""
        with self._lock:
            session = self._open.get(key) if isinstance(key, str) else None
            if session is None:
                try:
                    found = self._store.load(key)
                except ValueError as error:
                    raise Refused(f"the session cannot go on: {error}", 409) from None
                if found is None:
                    raise Refused("no such session: it never was, or was forgotten; reset without 'session'", 404)
                self._make_room()
                session = Session(key, owner, time.monotonic(), found[0], **from_note(found[1]))
                self._open[key] = session
            session.owner, session.used = owner, time.monotonic()
            return session.key

    def look(self, key: str, owner: int) -> Answer | None:
        """The last answer of the owner's session; None before the first."""
        with self._lock:
            session = self._held(key, owner)
            return None if session.turn is None else answer_of(session, resumed=True)

    def leave(self, key: str, owner: int) -> None:
        """The owner's connection has gone: its session falls asleep."""
        with self._lock:
            session = self._open.get(key)
            if session is not None and session.owner == owner:
                session.owner = 0
                if not session.busy:
                    self._release(session)
                    self._store.touch(key)

    def _new(self, owner: int) -> Session:
        self._make_room()
        self._fresh += 1
        if self._fresh >= self.most:  # many short sessions must not fill the disk before the next round
            self._wake.set()
        key = secrets.token_urlsafe(16)
        self._open[key] = Session(key, owner, time.monotonic())
        return self._open[key]

    def _make_room(self) -> None:
        if len(self._open) >= self.most:
            raise Refused(f"{len(self._open)} sessions are open, the most this server allows; try again later", 503)

    def _held(self, key: str, owner: int) -> Session:
        session = self._open.get(key)
        if session is None:
            raise Refused(f"the session is closed, as after {self.idle_seconds:g} s without use; call reset", 404)
        if session.owner != owner:
            raise Refused("the session was taken over by another connection", 409)
        return session

    def _submit(self, kind: str, session: Session, job: Job) -> Future[Answer]:
        if session.busy:
            raise Refused("an earlier request of this session is still under way; wait for its answer", 409)
        future = self.batcher.submit(kind, job)
        session.busy, session.used = True, time.monotonic()
        return future

    def _run(self, kind: str, jobs: Sequence[Job]) -> list[Any]:
        """What the batcher calls: one call of the world, whose outcome is kept before anybody hears of it."""
        results: list[Any]
        try:
            act = self.world.reset if kind == "reset" else self.world.step
            done = act([(job.session.episode, job.asked) for job in jobs])
            results = [self._settle(kind, job, *one) for job, one in zip(jobs, done, strict=True)]
        except Exception as error:
            results = [error] * len(jobs)
        with self._lock:
            for job in jobs:
                job.session.busy, job.session.used = False, time.monotonic()
                if job.session.owner == 0 or job.session.turn is None:
                    self._release(job.session)
        return results

    def _settle(self, kind: str, job: Job, episode: Any, turn: Turn) -> Any:
        session = job.session
        steps = session.steps + 1 if kind == "step" else 0
        episode_id = session.episode_id if kind == "step" else job.episode_id or secrets.token_hex(8)
        try:
            self._store.save(session.key, episode, to_note(turn, steps, episode_id))
        except Exception as error:  # of this session alone
            with self._lock:
                self._release(session)  # what is on disk is what the client knows
            if not isinstance(error, OSError):
                return error
            return OSError(f"the session could not be kept ({error.strerror}); reset with its key goes on from before")
        session.episode, session.turn, session.steps, session.episode_id = episode, turn, steps, episode_id
        return answer_of(session, resumed=False)

    def _release(self, session: Session) -> None:
        if self._open.get(session.key) is session:
            del self._open[session.key]
            self.world.drop(session.episode)

    def _sweep_now_and_then(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(min(self.idle_seconds / 4, 30.0))
            self._wake.clear()
            self.sweep()


class Connection:
    """What one client has in hand: no session, or one. Futures give an `Answer`."""

    def __init__(self, sessions: Sessions, name: int):
        self._sessions, self._name = sessions, name
        self.key: str | None = None

    def reset(self, options: Mapping[str, Any] | None = None) -> Future[Answer]:
        """Starts an episode as the options say, or looks at the present one of the session that they name.

        Args:
          options: those of the world; `episode_id`, a label for the client's own use; or `session` alone, the key of a
            session to go on with.

        Raises:
          ValueError: an option is not allowed, or (`Refused`) the server cannot do it now.
        """
        options = {name: value for name, value in (options or {}).items() if value is not None}
        episode_id = options.pop("episode_id", None)
        if episode_id is not None and (not isinstance(episode_id, str) or not 0 < len(episode_id) <= LABEL):
            raise ValueError(f"reset option 'episode_id' must be a string of 1 to {LABEL} characters")
        if "session" in options:
            if len(options) > 1:
                raise ValueError("reset option 'session' excludes every other: the episode goes on as it is")
            return self._resume(options["session"])
        asked = self._sessions.world.check_reset(options)
        self.key, future = self._sessions.begin(self.key, self._name, asked, episode_id)
        return future

    def step(self, action: Any, session: Any = None) -> Future[Answer]:
        """Takes a step, in the session named or else in the connection's own.

        Raises:
          ValueError: the action is not of the space, or (`Refused`) the server cannot do it now.
          gymnasium.error.ResetNeeded: before reset, or after the episode's end.
        """
        if session is not None and session != self.key:
            self.take(session)
        if self.key is None:
            raise ResetNeeded("step was called before reset")
        return self._sessions.step(self.key, self._name, self._sessions.world.check_action(action))

    def look(self) -> Answer | None:
        """The last answer again; None before the first reset."""
        return None if self.key is None else self._sessions.look(self.key, self._name)

    def take(self, session: Any) -> None:
        """Goes on with a session instead of the connection's own, which falls asleep."""
        taken = self._sessions.take(session, self._name)
        if taken != self.key:
            self.close()
        self.key = taken

    def close(self) -> None:
        """Lets go of the session; may be called again."""
        if self.key is not None:
            self._sessions.leave(self.key, self._name)
        self.key = None

    def _resume(self, session: Any) -> Future[Answer]:
        self.take(session)
        future: Future[Answer] = Future()
        answer = self.look()
        if answer is None:
            raise ResetNeeded("the session has not begun: its first reset is still under way")
        future.set_result(answer)
        return future
