"""A connection to the sessions as OpenEnv's environment (pip install 'worldmodel[serve]')."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
from gymnasium.error import ResetNeeded

from worldmodel.envs.rendering import can_draw, pictures
from worldmodel.envs.server.session import Answer
from worldmodel.envs.server.sessions import Sessions

MISSING = "serving needs OpenEnv, which is not installed: pip install 'worldmodel[serve]'"
README = """
```python
from openenv.core import GenericEnvClient

with GenericEnvClient(base_url="http://127.0.0.1:8000").sync() as env:  # the address of this page
    result = env.reset(seed=0)
    while not result.done:
        result = env.step({"action": ...})  # /schema says what an action is
        print(result.observation["observation"], result.reward)
```
"""
log = logging.getLogger(__name__)

try:
    from openenv.core.env_server import (  # pyright: ignore[reportMissingImports]
        Action,
        Environment,
        Observation,
        State,
    )
    from openenv.core.env_server.types import EnvironmentMetadata  # pyright: ignore[reportMissingImports]
    from pydantic import WithJsonSchema, create_model
except ModuleNotFoundError as error:
    raise ValueError(MISSING) from error


class WorldAction(Action):
    """`{"action": ...}`, a value of the world's action space as JSON."""

    action: Any

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Any:
        """As pydantic's, with an error that says what is allowed."""
        if not isinstance(obj, Mapping) or "action" not in obj or set(obj) - {"action", "metadata"}:
            found = ", ".join(sorted(map(str, obj))) if isinstance(obj, Mapping) else type(obj).__name__
            raise ValueError(f"an action is an object with the key 'action', not one with: {found or 'nothing'}")
        return super().model_validate({"action": obj["action"]}, **kwargs)


class WorldObservation(Observation):
    """A value of the world's observation space as JSON, and how the episode ended, if it did."""

    observation: Any
    terminated: bool
    truncated: bool


class WorldState(State):
    """What may be known of a session: its key, with which another connection goes on with it, and where it stands."""

    session: str | None = None
    terminated: bool = False
    truncated: bool = False


def classes_of(sessions: Sessions) -> tuple[type[WorldAction], type[WorldObservation]]:
    """The classes of actions and observations, whose published schemas are those of the world's spaces."""
    action = Annotated[Any, WithJsonSchema(sessions.world.action_schema)]
    observation = Annotated[Any, WithJsonSchema(sessions.world.observation_schema)]
    made: Any = create_model("WorldAction", __base__=WorldAction, action=(action, ...))
    seen: Any = create_model("WorldObservation", __base__=WorldObservation, observation=(observation, ...))
    return made, seen


class ServedEnvironment(Environment):
    """OpenEnv's environment over one connection to the sessions; it holds no state of its own.

    `reset` takes the options of `Connection.reset`. Over HTTP, where every request has a connection of its own, `step`
    takes `session`, too: the key that `reset` told in its metadata.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, sessions: Sessions, seen: Callable[..., WorldObservation]):
        super().__init__()
        self._sessions, self._seen = sessions, seen
        self._connection = sessions.connect()

    def reset(self, seed: Any = None, episode_id: Any = None, **options: Any) -> WorldObservation:
        """Starts an episode, or goes on with a session."""
        return self._now(lambda: self._connection.reset({"seed": seed, "episode_id": episode_id, **options}))

    async def reset_async(self, seed: Any = None, episode_id: Any = None, **options: Any) -> WorldObservation:
        """The same, without a thread that waits."""
        return await self._later(lambda: self._connection.reset({"seed": seed, "episode_id": episode_id, **options}))

    def step(self, action: Any, timeout_s: Any = None, session: Any = None) -> WorldObservation:
        """One step."""
        return self._now(lambda: self._connection.step(action.action, session))

    async def step_async(self, action: Any, timeout_s: Any = None, session: Any = None) -> WorldObservation:
        """The same, without a thread that waits."""
        return await self._later(lambda: self._connection.step(action.action, session))

    @property
    def state(self) -> WorldState:
        """Where the connection's session stands."""
        answer = self._connection.look()
        if answer is None:
            return WorldState()
        ends = {"terminated": answer.turn.terminated, "truncated": answer.turn.truncated}
        return WorldState(episode_id=answer.episode_id, step_count=answer.steps, session=answer.session, **ends)

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and description of the world, and how to step it."""
        world = self._sessions.world
        told = {"version": version("worldmodel"), "readme_content": README}
        return EnvironmentMetadata(name=world.name, description=world.description, **told)

    def render_web(self, observation: dict[str, Any]) -> str | None:
        """The observation as the real environment would draw it, where its renderer can."""
        spec, values = getattr(self._sessions.world, "spec", None), observation.get("observation")
        if spec is None or values is None or not can_draw(spec):
            return None
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(pictures(spec, np.asarray(values)[None], size=(480, 360))[0]).save(file, "PNG")
        drawn = base64.b64encode(file.getvalue()).decode()
        return f'<img alt="the observation, drawn" src="data:image/png;base64,{drawn}">'

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """A button for each of a few actions."""
        return [(str(choice), {"action": choice}) for choice in self._sessions.world.action_schema.get("enum", ())]

    def close(self) -> None:
        """Lets go of the session, which stays on disk."""
        self._connection.close()

    def _now(self, ask: Callable[[], Any]) -> WorldObservation:
        try:
            return self._told(ask().result())
        except Exception as error:
            raise _for_client(error) from error

    async def _later(self, ask: Callable[[], Any]) -> WorldObservation:
        try:
            return self._told(await asyncio.wrap_future(ask()))
        except Exception as error:
            raise _for_client(error) from error

    def _told(self, answer: Answer) -> WorldObservation:
        turn = answer.turn
        metadata = {"session": answer.session, "episode_id": answer.episode_id, "steps": answer.steps}
        metadata |= {"resumed": answer.resumed, **turn.info}
        ends = {"terminated": turn.terminated, "truncated": turn.truncated, "done": turn.over}
        return self._seen(observation=turn.observation, reward=turn.reward, metadata=metadata, **ends)


class EnvironmentFactory(ServedEnvironment):
    """Makes environments, and is one: OpenEnv's page asks its own for what it says of the world."""

    def __call__(self) -> ServedEnvironment:
        """An environment with a connection of its own."""
        return ServedEnvironment(self._sessions, self._seen)


def _for_client(error: Exception) -> Exception:
    """What a client may read of an error: all of those that are about what it asked, nothing of others."""
    if isinstance(error, (ValueError, ResetNeeded)):
        return error
    log.error("a request failed", exc_info=error)
    return RuntimeError(str(error) if isinstance(error, OSError) else "the server failed; its log says why")
