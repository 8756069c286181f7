"""`worldmodel info`: versions and devices."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """Prints the versions of what matters and the devices JAX sees.

    Example: worldmodel info --json
    """

    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> dict[str, Any]:
    """Prints and returns `{"versions": {...}, "devices": [...]}`."""
    import jax

    from worldmodel.report.versions import versions

    result = {"versions": versions(), "devices": [str(device) for device in jax.devices()]}
    if options.json:
        print(json.dumps(result))
    else:
        for name, version in result["versions"].items():
            print(f"{name:<24}{version}")
        print(f"{'devices':<24}{', '.join(result['devices'])}")
    return result
