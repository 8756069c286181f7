"""How many planted faults does the lint find, and how often does it accuse a clean log?

Command:   python eval/lint_power.py                                    # 200 seeds of every cell
           python eval/lint_power.py --env CartPole-v1 --fault action+1 --seeds 0 50 --jobs 2
Hardware:  1 CPU core, 2 to 3 hours; `--jobs` divides it. Stop and start it as you like.
Expected:  eval/README.md.

A cell is an environment and a fault, with one log per seed: 40 episodes of four behaviours, from random to good,
without the environment's name or time limit. Logs are made once and kept in `--cache`. Every finished block of 25
seeds of a cell is one line of JSON in `--out`, and is not run again; the first blocks of all cells come first. A fault
counts as found if the lint names it; an error or a warning of any kind in a clean log is a false alarm. `changed`
counts the planted logs that differ from the clean one at all: where they do not (a constant reward moved by a step), no
detector can find anything, whatever it knows.

The lint was developed on seeds of 10,000 and more.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import scipy.stats

from worldmodel.corpus.lint import planted
from worldmodel.corpus.lint.power import examined, summary
from worldmodel.spaces import column_list, map_columns
from worldmodel.trajectory import Spec, Trajectory

ENVS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "MiniGrid-Empty-Random-6x6-v0")
LIMITS = {"Hopper-v5": 100}
SKILLS = ("random", "sticky", "weak", "good")
EPISODES = 40
BLOCK = 25
Log = list[Trajectory]

# Each fault: what plants it (log, generator, spec), and the code that names it.
FAULTS: dict[str, tuple[Callable[[Log, np.random.Generator, Spec], Log], str]] = {
    "clean": (lambda log, rng, spec: log, ""),
    "action+1": (lambda log, rng, spec: planted.shift_actions(log, 1), "action-shifted"),
    "action-1": (lambda log, rng, spec: planted.shift_actions(log, -1), "action-shifted"),
    "reward+1": (lambda log, rng, spec: planted.shift_rewards(log, 1), "reward-shifted"),
    "reward-1": (lambda log, rng, spec: planted.shift_rewards(log, -1), "reward-shifted"),
    "end+1": (lambda log, rng, spec: planted.shift_ends(log), "end-late"),
    "reset-kept": (lambda log, rng, spec: planted.keep_reset(log), "end-late"),
    "T-observations": (lambda log, rng, spec: planted.drop_last_observation(log), "observations-T"),
    "last-repeated": (lambda log, rng, spec: planted.repeat_last_observation(log), "last-repeated"),
    "limit-terminal": (lambda log, rng, spec: planted.limits_as_terminals(log), "time-limit-terminal"),
    "glued": (lambda log, rng, spec: planted.glue_pairs(log, keep_last=False), "glued"),
    "glued-last-kept": (lambda log, rng, spec: planted.glue_pairs(log, keep_last=True), "glued"),
    "duplicate": (lambda log, rng, spec: planted.duplicate(log, rng), "duplicate"),
    "unit": (lambda log, rng, spec: planted.change_unit(log, rng, within=False), "unit-changed"),
    "unit-within": (lambda log, rng, spec: planted.change_unit(log, rng, within=True), "unit-changed"),
    "nan": (planted.plant_nan, "nan"),
    "action-outside": (planted.plant_outside, "action-outside"),
    "leak": (lambda log, rng, spec: planted.leak(log, rng), "leak-duplicate"),
}


def main() -> None:
    """Runs the cells that are missing and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=ENVS, nargs="*", default=ENVS)
    parser.add_argument("--fault", choices=list(FAULTS), nargs="*", default=list(FAULTS))
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), help="first, and one past the last")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/lint_power"), help="folder of the clean logs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lint_power.jsonl")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.cache.mkdir(parents=True, exist_ok=True)
    first, last = options.seeds
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(cell["env"], cell["fault"], cell["seeds"][0]): cell for cell in lines}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for start, env_id, fault in itertools.product(range(first, last, BLOCK), options.env, options.fault):
            if (env_id, fault, start) in done:
                continue
            seeds = [start, min(start + BLOCK, last)]
            work = [(env_id, fault, seed, options.cache) for seed in range(*seeds)]
            cell = {"env": env_id, "fault": fault, "seeds": seeds, **summary(pool.map(trial, work, chunksize=1))}
            done[env_id, fault, start] = cell
            with options.out.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(f"{env_id:30} {fault:16} {seeds} {cell['found']}/{cell['n']}", flush=True)
    cells = [cell for cell in done.values() if first <= cell["seeds"][0] < last]
    print(table(cells, options.env, options.fault))


def trial(work: tuple[str, str, int, Path]) -> dict[str, Any]:
    """One log with one fault: the codes found, whether the log is changed at all, and CPU seconds of the lint."""
    env_id, fault, seed, cache = work
    spec, clean = cached_log(env_id, seed, cache)
    plant, code = FAULTS[fault]
    log = plant(clean, np.random.default_rng([seed, len(fault)]), spec)
    return examined(seed, log, spec, code, changed=not same(clean, log))


def table(cells: list[dict[str, Any]], envs: tuple[str, ...], faults: list[str]) -> str:
    """Markdown: a row per fault, a column per environment; false alarms with exact 95% intervals."""
    lines = ["| planted | " + " | ".join(envs) + " |", "|---" * (len(envs) + 1) + "|"]
    for fault in faults:
        entries = [_entry([c for c in cells if (c["env"], c["fault"]) == (env_id, fault)], fault) for env_id in envs]
        lines.append(f"| {'clean: false alarms' if fault == 'clean' else fault} | " + " | ".join(entries) + " |")
    return "\n".join(lines)


def _entry(blocks: list[dict[str, Any]], fault: str) -> str:
    if not blocks:
        return "-"
    found, n, changed = (sum(block[name] for block in blocks) for name in ("found", "n", "changed"))
    if fault == "clean":
        low, high = interval(found, n)
        return f"{found}/{n} [{low:.1%}, {high:.1%}]"
    if changed < n:
        return f"{found}/{n} (at most {changed} can be seen)"
    return f"{found}/{n}"


def interval(count: int, n: int) -> tuple[float, float]:
    """Exact (Clopper-Pearson) 95% interval of a share."""
    low = scipy.stats.beta.ppf(0.025, count, n - count + 1) if count else 0.0
    high = scipy.stats.beta.ppf(0.975, count + 1, n - count) if count < n else 1.0
    return float(low), float(high)


def same(first: Log, second: Log) -> bool:
    """Whether two logs hold the same episodes, bit for bit."""
    return len(first) == len(second) and all(
        a.info == b.info
        and (a.terminated, a.truncated) == (b.terminated, b.truncated)
        and all(
            np.array_equal(x, y)
            for name in ("observations", "actions", "rewards")
            for x, y in zip(column_list(getattr(a, name)), column_list(getattr(b, name)), strict=True)
        )
        for a, b in zip(first, second, strict=True)
    )


def cached_log(env_id: str, seed: int, cache: Path) -> tuple[Spec, Log]:
    """The clean log of a seed, from `cache` or made now."""
    path = cache / f"{env_id}-{seed}.npz"
    if not path.exists():
        spec, log = clean_log(env_id, seed)
        columns: dict[str, Any] = {"spec": json.dumps(spec.to_json()), "info": json.dumps([dict(t.info) for t in log])}
        columns["lengths"] = [len(t) for t in log]
        columns["ends"] = [(t.terminated, t.truncated) for t in log]
        for name in ("observations", "actions", "rewards"):
            parts = [column_list(getattr(t, name)) for t in log]
            columns |= {f"{name}.{i}": np.concatenate(leaf) for i, leaf in enumerate(zip(*parts, strict=True))}
        partial = path.with_suffix(f".{multiprocessing.current_process().pid}.npz")
        np.savez_compressed(partial, **columns)
        partial.rename(path)
        return spec, log
    with np.load(path, allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    spec = Spec.from_json(json.loads(str(columns["spec"])))
    stops = np.cumsum(columns["lengths"])
    log = []
    for i, info in enumerate(json.loads(str(columns["info"]))):
        start, stop = stops[i] - columns["lengths"][i], stops[i]
        rows = slice(start + i, stop + i + 1)
        observations = columns["observations.0"][rows]
        if spec.observation_space["type"] == "Dict":
            names = spec.observation_space["spaces"]
            observations = {name: columns[f"observations.{j}"][rows] for j, name in enumerate(names)}
        terminated, truncated = (bool(end) for end in columns["ends"][i])
        actions, rewards = columns["actions.0"][start:stop], columns["rewards.0"][start:stop]
        log.append(Trajectory(observations, actions, rewards, terminated, truncated, info=info))
    return spec, log


def clean_log(env_id: str, seed: int) -> tuple[Spec, Log]:
    """Episodes of four behaviours in random order, as the environment gave them."""
    if env_id.startswith("MiniGrid"):
        import minigrid  # noqa: F401  # registers its environments
    env = gym.make(env_id, max_episode_steps=LIMITS.get(env_id))
    rng = np.random.default_rng([seed, ENVS.index(env_id)])
    log = []
    for episode, skill in enumerate(rng.permutation(np.resize(SKILLS, EPISODES))):
        info = {"id": f"{seed}-{episode}", "policy": str(skill), "source": env_id}
        log.append(_play(env, env_id, str(skill), rng, info))
    spec = Spec.from_gymnasium(_WithoutText(env) if isinstance(env.observation_space, gym.spaces.Dict) else env)
    env.close()
    return dataclasses.replace(spec, env_id=None, env_kwargs={}, max_episode_steps=None), log


class _WithoutText(gym.ObservationWrapper):
    """Grid and direction alone: the mission never changes."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        whole: Any = env.observation_space
        self.names = [name for name in whole.spaces if name != "mission"]
        self.observation_space = gym.spaces.Dict({name: whole[name] for name in self.names})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {name: observation[name] for name in self.names}


def _play(env: gym.Env, env_id: str, skill: str, rng: np.random.Generator, info: dict[str, Any]) -> Trajectory:
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    draw, control = BEHAVIOURS[env_id]
    last, strength = draw(rng), rng.uniform(0.2, 1.0)
    rows, actions, rewards = [obs], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = draw(rng)
        if skill == "random" and isinstance(action, np.ndarray):
            action = (strength * action).astype(np.float32)
        elif skill == "sticky":
            action = last if rng.random() < 0.8 else action
        elif skill in ("weak", "good"):
            action = control(env, obs, action, skill == "good", rng)
        last = action
        obs, reward, terminated, truncated, _ = env.step(action)
        rows.append(obs)
        actions.append(action)
        rewards.append(reward)
    if isinstance(obs, dict):
        rows = [{"direction": np.int64(row["direction"]), "image": row["image"]} for row in rows]
    observations = map_columns(lambda *columns: np.stack(columns), rows[0], *rows[1:])
    return Trajectory(
        observations, np.asarray(actions), np.asarray(rewards, np.float32), bool(terminated), not terminated, info=info
    )


def _cartpole(env: gym.Env, obs: np.ndarray, choice: int, good: bool, rng: np.random.Generator) -> int:
    if rng.random() < (0.03 if good else 0.6):
        return choice
    return int(3 * obs[2] + obs[3] + 0.1 * obs[0] + 0.25 * obs[1] > 0)


def _pendulum(env: gym.Env, obs: np.ndarray, choice: np.ndarray, good: bool, rng: np.random.Generator) -> np.ndarray:
    cos, sin, speed = obs
    force = np.sign(speed)
    if good and cos > 0.8:
        force = -10 * np.arctan2(sin, cos) - 2 * speed
    elif good:  # energy of the upright rest: 10 (1 - cos) and speed^2 / 6 make 0 there
        force = 2 * np.sign(speed * (10 * (1 - cos) + 5 - speed**2 / 6))
    return np.clip(force + (0.1 if good else 0.8) * rng.standard_normal(1), -2, 2).astype(np.float32)


def _hopper(env: gym.Env, obs: np.ndarray, choice: np.ndarray, good: bool, rng: np.random.Generator) -> np.ndarray:
    noise = (0.2 if good else 0.6) * rng.standard_normal(3)
    return np.clip(-obs[2:5] - 0.3 * obs[8:11] + noise, -1, 1).astype(np.float32)


def _minigrid(env: gym.Env, obs: Any, choice: int, good: bool, rng: np.random.Generator) -> int:
    if rng.random() < (0.1 if good else 0.5):
        return choice
    grid: Any = env.unwrapped
    wanted = 0 if grid.width - 2 > grid.agent_pos[0] else 1
    if grid.agent_dir == wanted:
        return 2
    return 1 if (wanted - grid.agent_dir) % 4 < 3 else 0


# What a random action is, and the controller of the weak and the good behaviour.
BEHAVIOURS: dict[str, tuple[Callable[[np.random.Generator], Any], Callable[..., Any]]] = {
    "CartPole-v1": (lambda rng: int(rng.integers(2)), _cartpole),
    "Pendulum-v1": (lambda rng: rng.uniform(-2, 2, 1).astype(np.float32), _pendulum),
    "Hopper-v5": (lambda rng: rng.uniform(-1, 1, 3).astype(np.float32), _hopper),
    "MiniGrid-Empty-Random-6x6-v0": (
        lambda rng: int(rng.choice(7, p=(0.22, 0.22, 0.44, 0.03, 0.03, 0.03, 0.03))),
        _minigrid,
    ),
}


if __name__ == "__main__":
    main()
