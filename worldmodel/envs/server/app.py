"""OpenEnv's application behind the guard, and the HTTP server (pip install 'worldmodel[serve]')."""

from __future__ import annotations

import os
import socket
from typing import Any

from gymnasium.error import ResetNeeded

# Before the web page's library is imported: it would report its use to its makers.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from worldmodel.envs.server.guard import BODY, BODY_SECONDS, Guard
from worldmodel.envs.server.openenv import MISSING, EnvironmentFactory, WorldState, classes_of
from worldmodel.envs.server.sessions import Sessions

try:
    import uvicorn  # pyright: ignore[reportMissingImports]
    from fastapi import FastAPI, Request  # pyright: ignore[reportMissingImports]
    from fastapi.exceptions import RequestValidationError  # pyright: ignore[reportMissingImports]
    from fastapi.responses import JSONResponse  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server import (  # pyright: ignore[reportMissingImports]
        ConcurrencyConfig,
        ServerMode,
        create_fastapi_app,
    )
    from uvicorn.protocols.http.h11_impl import H11Protocol  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise ValueError(MISSING) from error


def make_app(
    sessions: Sessions, *, token: str | None = None, web: bool = False, body_seconds: float = BODY_SECONDS
) -> Guard:
    """The whole application.

    Args:
      sessions: what is served.
      token: see `Guard`.
      body_seconds: see `Guard`.
      web: also serve OpenEnv's page at `/web/`, which steps one episode that everybody who opens it shares.
    """
    action, seen = classes_of(sessions)
    limits = ConcurrencyConfig(max_concurrent_envs=sessions.most, session_timeout=sessions.idle_seconds)
    common: dict[str, Any] = {"env_name": sessions.world.name, "concurrency_config": limits, "state_cls": WorldState}
    make = create_fastapi_app
    if web:
        from openenv.core.env_server.web_interface import (  # pyright: ignore[reportMissingImports]
            create_web_interface_app as make,
        )
    app = make(EnvironmentFactory(sessions, seen), action, seen, mode=ServerMode.SIMULATION, **common)
    _answer_errors(app)
    return Guard(app, token=token, idle_seconds=sessions.idle_seconds, body_seconds=body_seconds)


def _answer_errors(app: FastAPI) -> None:
    """Every error over HTTP is `{"error": one line}`."""

    def reply(status: int, error: Any) -> JSONResponse:
        return JSONResponse({"error": " ".join(str(error).split())}, status)

    @app.exception_handler(ValueError)
    async def of_value(request: Request, error: ValueError) -> JSONResponse:
        return reply(getattr(error, "status", 422), error)

    @app.exception_handler(ResetNeeded)
    async def of_order(request: Request, error: ResetNeeded) -> JSONResponse:
        return reply(
            409, f"{error}; over HTTP a step names the session that reset told: {{'action': .., 'session': ..}}"
        )

    @app.exception_handler(RequestValidationError)
    async def of_body(request: Request, error: RequestValidationError) -> JSONResponse:
        places = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return reply(422, f"the body is not as it should be: {'; '.join(places)}")

    @app.exception_handler(RuntimeError)
    async def of_server(request: Request, error: RuntimeError) -> JSONResponse:
        return reply(500, error)


def _punctual(seconds: float) -> type[H11Protocol]:
    """A protocol that closes a connection whose first request does not come; the server's own waits without end."""

    class Punctual(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            # A connection that became a WebSocket has another protocol by now.
            if self.cycle is None and self.transport.get_protocol() is self and not self.transport.is_closing():
                self.transport.close()

    return Punctual


BACKLOG = 256
"""Connections that wait for the server to take them."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0: any that is free. `OSError` where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
        listening.listen(BACKLOG)  # who connects before the server has started is served when it has
    except OSError:
        listening.close()
        raise
    return listening


def make_server(
    sessions: Sessions, *, token: str | None = None, web: bool = False, body_seconds: float = BODY_SECONDS
) -> uvicorn.Server:
    """A server, whose `run(sockets=[listen(..)])` serves until it is interrupted or terminated.

    What is under way is then finished; the sessions stay on disk. Arguments are as of `make_app`.
    """
    return uvicorn.Server(
        uvicorn.Config(
            make_app(sessions, token=token, web=web, body_seconds=body_seconds),
            http=_punctual(body_seconds),
            ws="websockets-sansio",
            ws_max_size=BODY,
            ws_per_message_deflate=False,
            limit_concurrency=4 * sessions.most + 64,
            timeout_graceful_shutdown=5,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
    )
