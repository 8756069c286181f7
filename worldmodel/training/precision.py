"""Products in bfloat16 inside a function written for float32; everything between them stays float32.

As in mixed-precision training (Micikevicius et al. 2018, arXiv 1710.03740): parameters, norms, softmax and sums are
float32, and the backward pass multiplies in bfloat16 too, since it is derived from the forward one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_INLINED = ("jit", "pjit", "closed_call")
_CHECKPOINTED = ("checkpoint", "remat2")
"""Each primitive by its names in the releases of JAX that this runs on."""


def bfloat16_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with every float32 `dot_general` computed on bfloat16 operands, its result rounded to bfloat16."""

    def wrapped(*args: Any) -> Any:
        traced, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return wrapped


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        results = _apply(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _retraced(inner: ClosedJaxpr) -> ClosedJaxpr:
    return jax.make_jaxpr(lambda *args: _evaluate(inner.jaxpr, inner.consts, args))(*inner.in_avals)


def _apply(equation: Any, inputs: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, dict(equation.params)
    if name == "dot_general" and all(x.dtype == jnp.float32 for x in inputs):
        params["preferred_element_type"] = jnp.dtype(jnp.bfloat16)
        product = equation.primitive.bind(*(x.astype(jnp.bfloat16) for x in inputs), **params)
        return [product.astype(jnp.float32)]
    if name in _INLINED and isinstance(inner := params.get("jaxpr"), ClosedJaxpr):
        return _evaluate(inner.jaxpr, inner.consts, inputs)
    if name == "scan":
        params["jaxpr"] = _retraced(params["jaxpr"])
    elif name in _CHECKPOINTED:
        params["jaxpr"] = _retraced(ClosedJaxpr(params["jaxpr"], ())).jaxpr
    bound = equation.primitive.get_bind_params(params)
    subfunctions, params = bound if isinstance(bound, tuple) else ((), bound)  # JAX before 0.10 gives a pair
    results = equation.primitive.bind(*subfunctions, *inputs, **params)
    return list(results) if equation.primitive.multiple_results else [results]
