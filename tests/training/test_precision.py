"""Products in bfloat16: which ones, and nothing else."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.training.precision import bfloat16_products


def operands(seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(5, 7), (7, 3)]]


def rounded(x):
    return x.astype(jnp.bfloat16)


def product_types(function, *args):
    """Of the results of every product, however deep."""
    lines = str(jax.make_jaxpr(function)(*args)).splitlines()
    return {re.search(r":(\w+)\[", line).group(1) for line in lines if "= dot_general[" in line}


def test_a_product_has_the_bits_of_bfloat16():
    x, y = operands()
    product = bfloat16_products(jnp.matmul)(x, y)
    assert product.dtype == jnp.float32
    np.testing.assert_array_equal(product, jnp.matmul(rounded(x), rounded(y)).astype(jnp.float32))
    assert (product != x @ y).any()


def test_what_is_no_product_keeps_its_bits():
    x, _ = operands()

    def function(x):
        return {"a": jax.nn.softplus(x) / jnp.sum(x), "b": jax.nn.relu(x), "c": jnp.arange(3)}

    expected, found = jax.jit(function)(x), jax.jit(bfloat16_products(function))(x)
    jax.tree.map(np.testing.assert_array_equal, expected, found)


def test_the_backward_pass_multiplies_in_bfloat16_too():
    x, y = operands()
    gradient = jax.grad(lambda x, y: jnp.sum(bfloat16_products(jnp.matmul)(x, y)))
    assert product_types(gradient, x, y) == {"bf16"}
    assert gradient(x, y).dtype == jnp.float32


def test_products_inside_jit_scan_and_checkpoint_are_found():
    x, _ = operands()
    square = x @ x.T

    def steps(square):
        body = jax.checkpoint(lambda carry: jax.jit(jnp.matmul)(carry, square))
        return jax.lax.scan(lambda carry, _: (body(carry) / 7.0, None), square, None, length=3)[0]

    assert product_types(steps, square) == {"f32"}
    assert product_types(bfloat16_products(steps), square) == {"bf16"}
    # XLA may leave out a rounding between two products: equal to the precision of one, not in every bit.
    np.testing.assert_allclose(bfloat16_products(steps)(square), steps(square), rtol=0.03)
