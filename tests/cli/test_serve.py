"""`worldmodel serve`: what it refuses before anything is loaded. The server itself: tests/envs/server."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.cli.test_cli import one_line, run
from tests.support import untrained_run

HAS_OPENENV = pytest.mark.skipif("not __import__('importlib').util.find_spec('openenv')", reason="openenv is missing")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "host 0.0.0.0 can be reached from other machines: a token is needed (--token)"),
        (["--host", "::"], "host :: can be reached from other machines"),
        (["--host", "example.org"], "host example.org can be reached from other machines"),
        (["--token", ""], "the token is empty; at least one character is needed"),
        (["--env-kwargs", "[1]"], "--env-kwargs '[1]' is no JSON object"),
        (["--port", "70000"], "--port is 70000; 0 to 65535 are allowed"),
    ],
)
def test_what_is_not_allowed_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("WORLDMODEL_TOKEN", raising=False)
    assert message in one_line(run("serve", tmp_path / "run", *words, code=2, capsys=capsys)[1])


def test_without_openenv_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("openenv", "worldmodel.envs.server"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openenv", None)
    monkeypatch.setenv("WORLDMODEL_TOKEN", "secret")  # which makes every host fine
    _, err = run("serve", tmp_path / "run", "--host", "0.0.0.0", code=2, capsys=capsys)
    missing = "serving needs OpenEnv, which is not installed: pip install 'worldmodel[serve]'"
    assert one_line(err) == f"worldmodel: error: {missing}\n"


@HAS_OPENENV
def test_what_a_run_or_the_machine_forbids_is_one_line(tmp_path, capsys):
    folder = untrained_run(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = ["--port", taken.getsockname()[1]]
        assert "Address already in use" in one_line(run("serve", folder, *words, code=2, capsys=capsys)[1])
    for words, message in (
        (["--env-kwargs", '{"trust": "inform"}'], "inform"),
        (["--env-kwargs", '{"trsut": "info"}'], "--env-kwargs: "),
        (["--max-sessions", "0"], "max_sessions is 0; at least 1 is needed"),
        (["--idle-seconds", "-1"], "idle_seconds is -1.0; a positive number"),
        (["--rows", "0"], "0 rows a call; at least 1 is needed"),
        (["--store", folder / "config.json"], "File exists"),
    ):
        assert message in one_line(run("serve", folder, "--port", "0", *words, code=2, capsys=capsys)[1])
    assert "does not exist" in one_line(run("serve", tmp_path / "none", "--port", "0", code=2, capsys=capsys)[1])
