"""Small learners for any Gymnasium environment: a table where both spaces are Discrete, a linear policy elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium

Policy = Callable[[Any, np.random.Generator], Any]
"""`(observation, generator) -> action`."""

Begin = Callable[[], tuple[Any, Any]]
"""Starts the next episode of training: `(environment, first observation)`."""

Learn = Callable[[Begin, int, np.random.Generator], Policy]
"""`(begin, steps, generator) -> policy`: takes about that many steps, and episodes by `begin` alone."""

GAMMA = 0.99
POPULATION, ELITE = 16, 4


def learner_for(env: gymnasium.Env) -> Learn:
    """The learner for an environment's spaces; `ValueError` where there is none."""
    from gymnasium.spaces import Box, Discrete

    if isinstance(env.observation_space, Discrete) and isinstance(env.action_space, Discrete):
        return q_learning
    if isinstance(env.observation_space, Box) and isinstance(env.action_space, (Box, Discrete)):
        return linear_search
    kinds = f"{type(env.observation_space).__name__} and {type(env.action_space).__name__}"
    raise ValueError(f"no learner takes observations and actions of {kinds}; give one as `learner`")


def q_learning(begin: Begin, steps: int, rng: np.random.Generator) -> Policy:
    """Q-learning (Watkins 1989) over Discrete spaces; exploration falls from 1 to .1, learning rates as 1 / n^.7."""
    env, obs = begin()
    first, start = int(env.observation_space.start), int(env.action_space.start)
    actions = int(env.action_space.n)
    value = np.zeros((int(env.observation_space.n), actions))
    visited = np.zeros_like(value)
    state = int(obs) - first
    for step in range(steps):
        if rng.random() < max(0.1, 1.0 - 2.0 * step / steps):
            action = int(rng.integers(actions))
        else:
            action = int(rng.choice(np.flatnonzero(value[state] == value[state].max())))
        obs, reward, terminated, truncated, _ = env.step(start + action)
        after = int(obs) - first
        visited[state, action] += 1
        target = float(reward) + (0.0 if terminated else GAMMA * value[after].max())
        value[state, action] += (target - value[state, action]) / visited[state, action] ** 0.7
        state = after
        if terminated or truncated:
            env, obs = begin()
            state = int(obs) - first
    ties = 1e-9 * rng.random(value.shape)
    best = (value + ties).argmax(axis=1)
    return lambda obs, _: start + int(best[int(obs) - first])


def linear_search(begin: Begin, steps: int, rng: np.random.Generator) -> Policy:
    """Cross-entropy search (Rubinstein 1999) of the weights of a linear policy; the best mean is what remains."""
    env, obs = begin()
    space: Any = env.action_space
    discrete = hasattr(space, "n")
    width, size = int(space.n) if discrete else math.prod(space.shape), int(np.size(obs)) + 1
    mean, spread = np.zeros((width, size)), np.ones((width, size))

    def policy_of(weights: np.ndarray) -> Policy:
        def act(obs: Any, _: np.random.Generator) -> Any:
            scores = weights @ np.append(np.ravel(obs), 1.0)
            if discrete:
                return int(space.start) + int(scores.argmax())
            middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
            return (middle + half * np.tanh(scores.reshape(space.shape))).astype(space.dtype)

        return act

    taken = 0
    while taken < steps:
        tried = mean + spread * rng.normal(size=(POPULATION, width, size))
        scores = np.zeros(POPULATION)
        for i, weights in enumerate(tried):
            act, over = policy_of(weights), False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(act(obs, rng))
                scores[i] += float(reward)
                taken += 1
                over = terminated or truncated
            env, obs = begin()
        best = tried[np.argsort(-scores, kind="stable")[:ELITE]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.02
    return policy_of(mean)
