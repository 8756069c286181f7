"""A PETS-style ensemble of Gaussian networks (Chua et al. 2018, arXiv 1805.12114), with mbrl-lib's settings.

Inputs are observation and action (categories one-hot), standardised; the target is the change of the observation as it
is; the logarithm of the variance lies between bounds that are learned, from -10 to 0.5 at the start. Every member sees
the transitions in its own order. Training stops where the error on held-back episodes has not fallen for `PATIENCE`
epochs, or when the time is up; the best epoch's weights are kept.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldmodel._types import ArrayLike

MEMBERS, LAYERS, WIDTH, BATCH = 5, 4, 200, 256
LEARNING_RATE, WEIGHT_DECAY, BOUND_WEIGHT = 1e-3, 3e-5, 0.01
PATIENCE, IMPROVEMENT = 25, 0.01
HELD_BACK = 0.1


@dataclasses.dataclass(frozen=True)
class Pets:
    """A trained ensemble. `params`: weights of every member; `mean`, `scale` `[F]` of the inputs."""

    params: Any
    mean: np.ndarray
    scale: np.ndarray
    epochs: int

    def predict(self, inputs: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Mean and standard deviation of the change, `[M, N, D]` each, from inputs `[N, F]`."""
        standardised = (jnp.asarray(inputs) - self.mean) / self.scale
        each = [_forward(p, standardised) for p in self.params]
        mean, log_variance = (jnp.stack(side) for side in zip(*each, strict=True))
        return mean, jnp.exp(0.5 * log_variance)


def fit(
    inputs: np.ndarray,
    changes: np.ndarray,
    episode: np.ndarray,
    seed: int,
    seconds: float = math.inf,
    epochs: int | None = None,
) -> Pets:
    """Trains on `N` transitions: inputs `[N, F]`, changes `[N, D]`, episode `[N]`; for so many seconds or epochs."""
    start, rng = time.monotonic(), np.random.default_rng(seed)
    held = rng.permutation(np.unique(episode))
    held = np.isin(episode, held[: max(int(HELD_BACK * len(held)), 1)])
    mean, scale = inputs[~held].mean(axis=0), inputs[~held].std(axis=0)
    scale = np.where(scale < 1e-12, 1.0, scale)
    x, y = ((inputs - mean) / scale).astype(np.float32), changes.astype(np.float32)
    sizes = [x.shape[1], *[WIDTH] * LAYERS, 2 * y.shape[1]]
    params = [_initial(rng, sizes) for _ in range(MEMBERS)]
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    state = jax.jit(optimizer.init)(params)
    step = _step(optimizer)
    shown, judged = np.flatnonzero(~held), (jnp.asarray(x[held]), jnp.asarray(y[held]))
    best, kept, waited, epoch = np.full(MEMBERS, np.inf), params, 0, 0
    while waited < PATIENCE and epoch != epochs and time.monotonic() - start < seconds:
        orders = np.stack([rng.permutation(shown) for _ in range(MEMBERS)])
        for first in range(0, len(shown) - BATCH + 1, BATCH):
            rows = orders[:, first : first + BATCH]
            params, state = step(params, state, x[rows], y[rows])
            if time.monotonic() - start > seconds:
                break
        error = np.asarray(_errors(params, *judged))
        better = error < best * (1.0 - IMPROVEMENT)
        kept = [new if b else old for new, old, b in zip(params, kept, error < best, strict=True)]
        best, waited, epoch = np.minimum(best, error), 0 if better.any() else waited + 1, epoch + 1
    return Pets(kept, mean.astype(np.float32), scale.astype(np.float32), epoch)


def _initial(rng: np.random.Generator, sizes: list[int]) -> dict[str, Any]:
    layers = []
    for width, following in itertools.pairwise(sizes):
        deviation = 1.0 / (2.0 * np.sqrt(width))
        draw = np.clip(rng.normal(size=(width, following)), -2, 2) * deviation
        layers.append((jnp.asarray(draw, jnp.float32), jnp.zeros(following, jnp.float32)))
    bounds = (jnp.full(sizes[-1] // 2, -10.0, jnp.float32), jnp.full(sizes[-1] // 2, 0.5, jnp.float32))
    return {"layers": layers, "bounds": bounds}


def _forward(params: dict[str, Any], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    for weight, bias in params["layers"][:-1]:
        x = jax.nn.silu(x @ weight + bias)
    weight, bias = params["layers"][-1]
    mean, raw = jnp.split(x @ weight + bias, 2, axis=-1)
    low, high = params["bounds"]
    raw = high - jax.nn.softplus(high - raw)
    return mean, low + jax.nn.softplus(raw - low)


def _loss(params: dict[str, Any], x: jax.Array, y: jax.Array) -> jax.Array:
    mean, log_variance = _forward(params, x)
    low, high = params["bounds"]
    nll = jnp.square(mean - y) * jnp.exp(-log_variance) + log_variance
    return nll.mean() + BOUND_WEIGHT * (high.sum() - low.sum())


def _step(optimizer: optax.GradientTransformation):
    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, y):
        def total(params):
            return sum(_loss(p, x[m], y[m]) for m, p in enumerate(params))

        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(jax.grad(total)(params), state, params)
        return optax.apply_updates(params, updates), state

    def keeping(params, state, x, y):
        return step(jax.tree.map(jnp.copy, params), state, x, y)

    return keeping


@jax.jit
def _errors(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.stack([jnp.mean(jnp.square(_forward(p, x)[0] - y)) for p in params])
