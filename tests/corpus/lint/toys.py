"""Small worlds whose logs are clean by construction: a cart on a hilly track, a grid, and CartPole."""

import gymnasium as gym
import numpy as np

from worldmodel.corpus.lint.sample import Sample, draw_sample
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

CART = Spec(observation_space=box((3,), "float64"), action_space=box((1,), "float64", -1.0, 1.0))
GRID = Spec(observation_space=box((2,), "int64", 0.0, 4.0), action_space={"type": "Discrete", "n": 4, "start": 0})
CART_LIMIT, GRID_LIMIT = 60, 50


def cart_log(seed: int, episodes: int = 40) -> list[Trajectory]:
    """Observation: place, speed, and their sine; every other driver is reckless and leaves the track (|place| > 1)."""
    rng = np.random.default_rng(seed)
    log = []
    for i in range(episodes):
        place, speed, force = *rng.uniform(-0.1, 0.1, 2), 0.0
        rows, actions, rewards, terminated = [(place, speed, np.sin(3 * place))], [], [], False
        while len(actions) < CART_LIMIT and not terminated:
            force = force if rng.random() < 0.7 else rng.uniform(-1, 1)
            if i % 2:
                force = float(np.clip(-3 * place - 2 * speed + rng.normal(0, 0.3), -1, 1))
            rewards.append(-(place**2) - 0.1 * speed**2 - 0.1 * force**2)
            speed += 0.1 * (force + 0.3 * np.sin(3 * place))
            place += 0.1 * speed
            rows.append((place, speed, np.sin(3 * place)))
            actions.append([force])
            terminated = bool(abs(place) > 1)
        log.append(_trajectory(rows, actions, rewards, terminated, f"{seed}-{i}"))
    return log


def grid_log(seed: int, episodes: int = 40) -> list[Trajectory]:
    """Observation: row and column of 5 by 5; the corner (4, 4) ends the episode and gives the only reward."""
    rng = np.random.default_rng(seed)
    moves = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
    log = []
    for i in range(episodes):
        at = rng.integers(0, 4, 2)
        rows, actions, rewards, terminated = [at], [], [], False
        while len(actions) < GRID_LIMIT and not terminated:
            action = int(rng.choice((1, 2))) if i % 2 and rng.random() < 0.7 else int(rng.integers(4))
            at = np.clip(at + moves[action], 0, 4)
            terminated = bool((at == 4).all())
            rows.append(at)
            actions.append(action)
            rewards.append(float(terminated))
        log.append(_trajectory(rows, actions, rewards, terminated, f"{seed}-{i}"))
    return log


def pole_log(seed: int, episodes: int = 24) -> tuple[Spec, list[Trajectory]]:
    """CartPole-v1; every fourth episode balances to the time limit, the others act at random."""
    env, rng, log = gym.make("CartPole-v1"), np.random.default_rng(seed), []
    for i in range(episodes):
        obs, _ = env.reset(seed=seed * 1000 + i)
        rows, actions, terminated, truncated = [obs], [], False, False
        while not (terminated or truncated):
            balance = int(obs @ [0.05, 0.1, 1.0, 0.3] > 0)
            actions.append(int(rng.integers(2)) if i % 4 else balance)
            obs, _, terminated, truncated, _ = env.step(actions[-1])
            rows.append(obs)
        log.append(_trajectory(rows, actions, np.ones(len(actions)), terminated, f"{seed}-{i}"))
    return Spec.from_gymnasium(env), log


def sample_of(log: list[Trajectory]) -> Sample:
    """The sample of a log of either world."""
    return draw_sample(log, CART if log[0].observations.dtype.kind == "f" else GRID)


def codes_of(findings) -> list[str]:
    """Codes of errors and warnings."""
    return [finding.code for finding in findings if finding.severity != "note"]


def _trajectory(rows, actions, rewards, terminated, name) -> Trajectory:
    return Trajectory(
        np.array(rows), np.array(actions), np.array(rewards, np.float32), terminated, not terminated, info={"id": name}
    )
