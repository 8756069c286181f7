"""Names for annotations that carry shapes: `Float[Array, "B T D"]`.

They are jaxtyping's where it is installed. A machine that only trains may hold nothing but jax, flax, optax and numpy;
there each of these names stands for "anything", and annotations built from them still evaluate. A name is looked up
when first asked for: a module that holds NumPy arrays only (`Float[np.ndarray, "T"]`) does not load jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import (
        Array,
        ArrayLike,
        Bool,
        Float,
        Inexact,
        Int,
        Integer,
        Key,
        Num,
        PRNGKeyArray,
        PyTree,
        Scalar,
        Shaped,
        UInt,
        UInt8,
        UInt32,
    )

__all__ = [
    "Array",
    "ArrayLike",
    "Bool",
    "Float",
    "Inexact",
    "Int",
    "Integer",
    "Key",
    "Num",
    "PRNGKeyArray",
    "PyTree",
    "Scalar",
    "Shaped",
    "UInt",
    "UInt8",
    "UInt32",
]


class _Anything:
    """Stands where jaxtyping is not installed: `Float[Array, "B"]`, `PyTree[Array]` and the like evaluate to `Any`."""

    def __class_getitem__(cls, item: object) -> Any:
        return Any


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import jaxtyping
    except ModuleNotFoundError:
        value = _without_jaxtyping(name)
    else:
        value = getattr(jaxtyping, name)
    globals()[name] = value
    return value


def _without_jaxtyping(name: str) -> Any:
    """What `name` stands for on a machine without jaxtyping."""
    if name in ("Array", "PRNGKeyArray", "Scalar"):
        import jax

        return jax.Array
    return Any if name == "ArrayLike" else _Anything
