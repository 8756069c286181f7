"""Gauges of how well the model can still learn, on one fixed batch of the first member.

Dormant units, effective rank and norms can all look well while plasticity is lost; curvature and the speed at which
fresh targets are fitted see what they miss (Lyle et al. 2023, "Understanding plasticity in neural networks", arXiv
2303.01486).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from worldmodel._types import Array, Float
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import Params, init_params, step_model
from worldmodel.training.step import Batch, member_loss, read

DORMANT = 0.025
"""A unit is dormant below this share of its layer's mean activity (Sokar et al. 2023, arXiv 2302.12902)."""
POWER_STEPS = 12
FIT_STEPS = 20
_FIT = optax.adam(1e-3)


class Plasticity:
    """Measures the first member's parameters on a fixed batch.

    Args:
      dynamics: the model.
      batch: `B` windows that every measurement is taken on; the first member's share of them is used.
      seed: of the first direction of the power iteration and of the fresh targets.
    """

    def __init__(self, dynamics: StepDynamics, batch: Batch, seed: int):
        share = batch.mask.shape[0] // dynamics.config.members
        batch = jax.tree.map(lambda x: x[:share], batch)
        self._fresh = jax.tree.map(lambda leaf: leaf[0], init_params(dynamics.config, dynamics.codec, seed + 1))
        self._key = jax.random.key(seed)

        def gradient(params: Params) -> Params:
            return jax.grad(lambda p: member_loss(dynamics.config, dynamics.codec, p, batch)[0])(params)

        def features(params: Params) -> tuple[Array, list[Array]]:
            return trunk_activity(dynamics, params, batch)

        # A few small programs, called in turn: loops around second derivatives take minutes to compile.
        self._iterate = jax.jit(lambda params, direction: power_step(gradient, params, direction))
        self._still = jax.jit(lambda params: _still(*features(params)) | {"weight_norm": optax.tree.norm(params)})
        self._targets = jax.jit(lambda params: _centred(features(params)[0]))
        self._fit = jax.jit(
            lambda learner, state, targets: _fit_step(lambda p: features(p)[0], learner, state, targets)
        )

    def measure(self, params: Params) -> dict[str, float]:
        """Gauges of members' parameters `[M, ...]`.

        `curvature` (eigenvalue of largest magnitude of the loss's Hessian), `gradient_norm`, `weight_norm`,
        `dormant_units` (share of the MLPs' hidden units), `effective_rank` of the trunk's features, and
        `fresh_target_error`: an untrained trunk's features are fitted for `FIT_STEPS` steps of Adam; the squared error
        that is left, relative to their variance (1: nothing was learned).
        """
        own = jax.tree.map(lambda leaf: leaf[0], params)
        direction = random_direction(own, self._key)
        for _ in range(POWER_STEPS):
            direction, *_ = self._iterate(own, direction)
        _, curvature, gradient_norm = self._iterate(own, direction)
        values = self._still(own) | {"curvature": curvature, "gradient_norm": gradient_norm}
        targets = self._targets(self._fresh)
        learner = {"params": own, "readout": jnp.zeros((targets.shape[-1],) * 2, jnp.float32)}
        state = _FIT.init(learner)
        for _ in range(FIT_STEPS):
            learner, state, _ = self._fit(learner, state, targets)
        *_, error = self._fit(learner, state, targets)
        return {name: float(value) for name, value in (values | {"fresh_target_error": error}).items()}


def random_direction(params: Any, key: Array) -> Any:
    """A unit vector in the space of parameters."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    normal = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return _unit(structure.unflatten(normal))


def power_step(gradient: Callable[[Any], Any], params: Any, direction: Any) -> tuple[Any, Any, Any]:
    """One power iteration: `(next direction, Rayleigh quotient of this one, norm of the gradient)`."""
    slope, product = jax.jvp(gradient, (params,), (direction,))
    return _unit(product), optax.tree.vdot(direction, product), optax.tree.norm(slope)


def trunk_activity(
    dynamics: StepDynamics, params: Params, batch: Batch
) -> tuple[Float[Array, "N width"], list[Float[Array, "N mlp"]]]:
    """At every position: the trunk's output, and what enters the last map of each block's MLP."""
    model = step_model(dynamics.config, dynamics.codec, params)
    hidden: list[Array] = []
    for block in model.trunk.blocks:
        block.down = _Recorder(block.down, hidden)  # pyright: ignore[reportAttributeAccessIssue]
    trunk = model.trunk(model.embed(read(model, batch)))
    return trunk.reshape(-1, trunk.shape[-1]), hidden


def dormant_share(hidden: list[Array]) -> Float[Array, ""]:
    """Share of units whose mean magnitude is below `DORMANT` of their layer's mean; layers `[N, units]`."""
    activity = [jnp.mean(jnp.abs(layer), axis=0) for layer in hidden]
    dormant = [scores <= DORMANT * jnp.mean(scores) for scores in activity]
    return jnp.mean(jnp.concatenate(dormant).astype(jnp.float32))


def effective_rank(features: Float[Array, "N width"]) -> Float[Array, ""]:
    """Exponential of the entropy of the normalised singular values (Roy and Vetterli 2007), of centred features."""
    centred = _centred(features)
    values = jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(centred.T @ centred), 0.0))
    share = values / jnp.maximum(values.sum(), 1e-30)
    return jnp.exp(-jnp.sum(jax.scipy.special.xlogy(share, share)))


def _fit_step(features: Callable[[Any], Array], learner: Any, state: Any, targets: Array) -> tuple[Any, Any, Array]:
    """One step of trunk and readout towards targets `[N, width]`; also the error before it."""

    def loss(learner: Any) -> Array:
        return jnp.mean(jnp.square(features(learner["params"]) @ learner["readout"] - targets))

    error, slope = jax.value_and_grad(loss)(learner)
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types
        updates, state = _FIT.update(slope, state)
    return optax.apply_updates(learner, updates), state, error / jnp.maximum(jnp.mean(jnp.square(targets)), 1e-30)


def _still(features: Array, hidden: list[Array]) -> dict[str, Array]:
    return {"dormant_units": dormant_share(hidden), "effective_rank": effective_rank(features)}


def _centred(features: Array) -> Array:
    return features - features.mean(axis=0)


def _unit(direction: Any) -> Any:
    norm = jnp.maximum(optax.tree.norm(direction), 1e-30)
    return jax.tree.map(lambda x: x / norm, direction)


class _Recorder:
    """A map that remembers what it was given, `[N, features]`."""

    def __init__(self, inner: Callable[[Array], Array], seen: list[Array]):
        self._inner, self._seen = inner, seen

    def __call__(self, x: Array) -> Array:
        self._seen.append(x.reshape(-1, x.shape[-1]))
        return self._inner(x)
