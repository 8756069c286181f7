"""World models learned from logs: simulators that say where they can be trusted.

wm.read(uri)      trajectories of any supported log format, with their Spec
wm.load(run)      a trained world model
wm.make(run)      the model as a Gymnasium environment (num_envs=N: vectorised)
wm.probe(...)     where and how far the model can be trusted
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from worldmodel.trajectory import Spec, Trajectory

if TYPE_CHECKING:
    from worldmodel.envs import make
    from worldmodel.fidelity import probe
    from worldmodel.simulator import Dynamics, Simulator
    from worldmodel.sources import read
    from worldmodel.training import WorldModel, load

__version__ = "0.1.0"

_HOME = {
    "read": "worldmodel.sources",
    "load": "worldmodel.training",
    "WorldModel": "worldmodel.training",
    "make": "worldmodel.envs",
    "probe": "worldmodel.fidelity",
    "Dynamics": "worldmodel.simulator",
    "Simulator": "worldmodel.simulator",
}
__all__ = ["Spec", "Trajectory", "__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worldmodel' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


def _register() -> None:
    try:
        from gymnasium.envs.registration import register, registry
    except ModuleNotFoundError:  # model and train step run on machines that have no gymnasium
        return
    if "worldmodel/Sim-v0" not in registry:
        register(
            id="worldmodel/Sim-v0",
            entry_point="worldmodel.envs.gymnasium:SimEnv",
            vector_entry_point="worldmodel.envs.vector:SimVectorEnv",
            disable_env_checker=True,
            order_enforce=False,
        )
    if "worldmodel/Text-v0" not in registry:
        register(
            id="worldmodel/Text-v0",
            entry_point="worldmodel.envs:make_text",
            disable_env_checker=True,
            order_enforce=False,
        )


_register()
