"""What a state is worth to a policy in a simulator, fitted to the returns of imagined episodes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldmodel._types import Array, ArrayLike

WIDTH, STEPS, BATCH, LEARNING_RATE = 64, 2_000, 512, 3e-3


@dataclasses.dataclass(frozen=True)
class FittedValue:
    """A network of two hidden layers from features and the steps left to the return from there on.

    Attributes:
      params: its weights.
      centre, scale: of the features and the steps left `[F+1]`.
      mean, spread: of the returns.
      explained: share of the variance of returns it explains, on a tenth of them that it was not fitted to.
    """

    params: Any
    centre: ArrayLike
    scale: ArrayLike
    mean: ArrayLike
    spread: ArrayLike
    explained: float

    def __call__(self, features: ArrayLike, left: ArrayLike) -> Array:
        """Value of rows: features `[B, F]` and steps left `[B]` -> `[B]`; 0 where no step is left."""
        left = jnp.asarray(left, jnp.float32)
        x = jnp.concatenate([jnp.asarray(features), left[:, None]], axis=1)
        value = self.mean + self.spread * _network(self.params, (x - self.centre) / self.scale)
        return jnp.where(left > 0, value, 0.0)


def fit_value(features: np.ndarray, left: np.ndarray, returns: np.ndarray, *, seed: int) -> FittedValue:
    """Least squares on `N` states: features `[N, F]`, steps left `[N]`, returns `[N]`."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([features, left[:, None]], axis=1).astype(np.float32)
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale < 1e-6, 1.0, scale)
    mean, spread = float(returns.mean()), float(returns.std()) or 1.0
    x, y = (x - centre) / scale, ((returns - mean) / spread).astype(np.float32)
    sizes = [x.shape[1], WIDTH, WIDTH, 1]
    draws = [rng.normal(size=(a, b)) / np.sqrt(a) for a, b in itertools.pairwise(sizes)]
    params = [(jnp.asarray(w, jnp.float32), jnp.zeros(w.shape[1], jnp.float32)) for w in draws]
    order = rng.permutation(len(x))
    held, shown = np.split(order, [len(x) // 10])
    picks = shown[rng.integers(0, len(shown), (STEPS, min(BATCH, len(shown))))]
    params = _fit(params, x, y, picks)
    error = np.asarray(_network(params, x[held])) - y[held] if len(held) else np.zeros(1)
    explained = 1.0 - float(np.mean(error**2)) / (float(np.var(y[held])) or 1.0) if len(held) else 0.0
    return FittedValue(params, centre, scale, mean, spread, explained)


def _network(params: Any, x: ArrayLike) -> Array:
    h = jnp.asarray(x)
    for weight, bias in params[:-1]:
        h = jax.nn.silu(h @ weight + bias)
    return (h @ params[-1][0] + params[-1][1])[:, 0]


@jax.jit
def _fit(params: Any, x: Array, y: Array, picks: Array) -> Any:
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, STEPS))

    def loss(params, rows):
        return jnp.mean(jnp.square(_network(params, x[rows]) - y[rows]))

    def step(carry, rows):
        params, state = carry
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(jax.grad(loss)(params, rows), state)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), picks)[0][0]
