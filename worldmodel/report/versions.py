"""Which versions made a result."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = (
    "worldmodel",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "tensorflow-datasets",
    "grain",
    "gymnasium",
    "rejax",
    "numpy",
)


def versions() -> dict[str, str]:
    """Name -> version of Python and of the packages that decide a result; "absent" where not installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
