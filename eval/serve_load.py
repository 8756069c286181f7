"""How long does a served step take under load, what do batches gain, and does anything cross between sessions?

Command:   python eval/serve_load.py runs/quickstart         (pip install 'worldmodel[serve]')
Hardware:  2 CPU cores, which clients and server share; about three minutes.
Expected:  eval/README.md.

For each number of rows a call of the simulator takes (1: unbatched) and each number of sessions, a server of its own is
started; every session is a client of OpenEnv, which steps as fast as it is answered, and starts a new episode where one
ends. Latency is what a client waits for a step. Afterwards the first episode of every session is played again in one
environment without any server: `crossed` counts sessions that were told anything else, to the last bit. One line of
JSON per cell is appended to eval/results/serve_load.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from openenv.core import GenericEnvClient  # pyright: ignore[reportMissingImports]

from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.server.wire import plain
from worldmodel.training import load

RESULTS = Path(__file__).parent / "results" / "serve_load.jsonl"
SEED = 100_000


async def client(url: str, seed: int, end: float, first: float, actions: list[Any]) -> dict[str, Any]:
    """Steps until the time `end`; waits of the steps since `first`, and what its first episode told."""
    rng, waits, told, over = np.random.default_rng(seed), [], [], False
    async with GenericEnvClient(base_url=url) as env:
        result = await env.reset(seed=seed)
        told.append(result.observation["observation"])
        taken: list[Any] = []
        while time.monotonic() < end:
            action = actions[rng.integers(len(actions))]
            asked = time.monotonic()
            result = await env.step({"action": action})
            if asked >= first:
                waits.append(time.monotonic() - asked)
            if not over:
                taken.append(action)
                told.append(result.observation["observation"])
                over = result.done
            if result.done:
                await env.reset()
    return {"seed": seed, "waits": waits, "actions": taken, "told": told}


async def load_of(url: str, sessions: int, seconds: float, actions: list[Any]) -> list[dict[str, Any]]:
    """All clients at once; the first seconds, in which they connect, do not count."""
    first = time.monotonic() + 2.0 + sessions / 16
    clients = (client(url, SEED + i, first + seconds, first, actions) for i in range(sessions))
    return list(await asyncio.gather(*clients))


def crossed(world: Any, seen: list[dict[str, Any]]) -> int:
    """Sessions whose first episode is not what the environment alone gives."""
    env, wrong = SimEnv(world), 0
    for one in seen:
        alone = [plain(np.asarray(env.reset(seed=one["seed"])[0]))]
        alone += [plain(np.asarray(env.step(np.asarray(action))[0])) for action in one["actions"]]
        wrong += alone != one["told"]
    return wrong


def cell(run: Path, world: Any, rows: int, sessions: int, seconds: float, actions: list[Any]) -> dict[str, Any]:
    """One server, one load."""
    with tempfile.TemporaryDirectory() as store:
        words = ["serve", str(run), "--port", "0", "--json", "--rows", str(rows), "--store", store]
        words += ["--max-sessions", str(sessions)]
        server = subprocess.Popen([sys.executable, "-m", "worldmodel.cli", *words], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            seen = asyncio.run(load_of(url, sessions, seconds, actions))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    waits = np.concatenate([one["waits"] for one in seen])
    p50, p99 = (float(1000 * q) for q in np.quantile(waits, (0.5, 0.99)))
    return {
        "env": world.spec.env_id,
        "rows": rows,
        "sessions": sessions,
        "seconds": seconds,
        "steps": len(waits),
        "steps_per_second": round(len(waits) / seconds, 1),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "crossed": crossed(world, seen) if rows <= 8 else None,
        "why": None if rows <= 8 else "with more than 8 rows a call bits differ from those of one environment",
    }


def main() -> None:
    """Prints and appends one JSON object per cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="rows of a call")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 64], help="concurrent sessions")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    options = parser.parse_args()
    world = load(options.run)
    space = world.spec.to_gymnasium()[1]
    space.seed(0)
    actions = [plain(np.asarray(space.sample())) for _ in range(64)]
    for sessions in options.sessions:
        for rows in options.rows:
            line = json.dumps(cell(options.run, world, rows, sessions, options.seconds, actions))
            print(line, flush=True)
            with open(RESULTS, "a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
