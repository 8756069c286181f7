"""`worldmodel serve`: a world model over HTTP, as an OpenEnv environment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from typing import Any

import tyro

from worldmodel.cli.logs import json_object

TOKEN = "WORLDMODEL_TOKEN"
"""Variable of the environment that holds the token where `--token` does not: arguments can be seen by other users."""


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """Serves a world model over HTTP and WebSockets, as an OpenEnv environment (pip install 'worldmodel[serve]').

    Any OpenEnv client steps it: GenericEnvClient(base_url="http://127.0.0.1:8000"), an action being {"action": ..}.
    Every reset tells a session's key in its metadata; reset(session=KEY) goes on with it over a new connection, also
    after the server was killed and started again. Ctrl-C stops it.

    Example: worldmodel serve runs/quickstart --port 8000

    For other machines: WORLDMODEL_TOKEN=... worldmodel serve runs/quickstart --host 0.0.0.0
    """

    run: tyro.conf.Positional[pathlib.Path]
    """Run folder of the world model."""
    host: str = "127.0.0.1"
    """Address to listen at; any that other machines can reach needs a token."""
    port: int = 8000
    """Port to listen at; 0: any that is free."""
    token: str | None = None
    """What clients must send as 'Authorization: Bearer TOKEN'; default: the variable WORLDMODEL_TOKEN."""
    max_sessions: int = 64
    """Sessions open at the same time."""
    idle_seconds: float = 1800.0
    """A session that was not used for so long is forgotten."""
    rows: int = 8
    """Sessions that one call of the simulator advances; more than 8 pays on accelerators."""
    store: pathlib.Path | None = None
    """Folder of the kept sessions; default: RUN/sessions."""
    web: bool = False
    """Serve OpenEnv's page at /web/, too: one episode that everybody who opens it shares."""
    env_kwargs: str = "{}"
    """Further arguments of the simulated environment (worldmodel.envs.gymnasium.SimEnv, or worldmodel.envs.text.TextEnv
    for a run of texts), as JSON."""
    json: bool = False
    """Print where it listens as one JSON object."""


def serve(options: ServeOptions) -> None:
    """Serves until interrupted or terminated."""
    from worldmodel.envs.server.guard import check_address
    from worldmodel.envs.server.sessions import Sessions

    token = os.environ.get(TOKEN) if options.token is None else options.token
    check_address(options.host, token)
    env_kwargs = json_object(options.env_kwargs, "--env-kwargs", '{"trust": "info"}')
    if not 0 <= options.port < 2**16:
        raise ValueError(f"--port is {options.port}; 0 to 65535 are allowed")
    # What is missing is said before anything is loaded.
    from worldmodel.envs.server import app

    try:
        world = _world(options.run, options.rows, env_kwargs)
    except TypeError as error:
        raise ValueError(f"--env-kwargs: {error}") from error
    folder = options.store or options.run / "sessions"
    limits: dict[str, Any] = {"most": options.max_sessions, "idle_seconds": options.idle_seconds}
    with (
        contextlib.closing(app.listen(options.host, options.port)) as listening,
        contextlib.closing(Sessions(world, folder, **limits)) as sessions,
    ):
        world.warm()
        _say(options, listening.getsockname()[:2], world.name, token)
        try:
            app.make_server(sessions, token=token, web=options.web).run(sockets=[listening])
        except KeyboardInterrupt:  # the server has finished what was under way
            print("stopped", file=sys.stderr)


def _world(run: pathlib.Path, rows: int, env_kwargs: dict[str, Any]) -> Any:
    """What is served of a run folder: numbers are stepped `rows` at a time, texts one after the other."""
    from worldmodel.training.opened import holds_texts, load

    if not holds_texts(run):
        from worldmodel.envs.server.numeric import NumericWorld

        return NumericWorld(run, rows=rows, **env_kwargs)
    from worldmodel.envs.server.text import TextWorld
    from worldmodel.envs.text import TextEnv

    dynamics = load(run).dynamics

    def make() -> TextEnv:
        return TextEnv(dynamics, **env_kwargs)

    make()  # whose errors are the arguments'
    return TextWorld(make, run.resolve().name, dynamics.digest)


def _say(options: ServeOptions, address: Any, name: str, token: str | None) -> None:
    host, port = address
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    told = {"url": url, "env": name, "run": str(options.run), "max_sessions": options.max_sessions}
    told |= {"token": token is not None, "web": f"{url}/web/" if options.web else None}
    if options.json:
        print(json.dumps(told), flush=True)
        return
    print(f"serving {name} ({options.run}) at {url}, {'with a token' if token else 'for this machine'}", flush=True)
    print(f'connect: GenericEnvClient(base_url="{url}")', flush=True)
    if options.web:
        print(f"page: {url}/web/", flush=True)
