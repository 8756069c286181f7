"""What the numbers of known environments' observations mean, as Gymnasium documents them."""

from __future__ import annotations

_HOPPER = ("thigh", "leg", "foot")
_CHEETAH = ("back thigh", "back shin", "back foot", "front thigh", "front shin", "front foot")
_WALKER = ("right thigh", "right leg", "right foot", "left thigh", "left leg", "left foot")


def _planar(body: str, height: str, joints: tuple[str, ...]) -> tuple[str, ...]:
    """MuJoCo's planar bodies: height and pitch, joint angles, then the speeds of all, forward first."""
    places = (height, f"{body} pitch", *(f"{joint} angle" for joint in joints))
    return (*places, "forward speed", "vertical speed", f"{body} pitch rate", *(f"{joint} rate" for joint in joints))


# Environment family (the id without namespace and version) -> names of the flat observation.
NAMES: dict[str, tuple[str, ...]] = {
    "CartPole": ("cart position", "cart speed", "pole angle", "pole speed"),
    "Pendulum": ("cos angle", "sin angle", "angular speed"),
    "MountainCar": ("position", "speed"),
    "MountainCarContinuous": ("position", "speed"),
    "Acrobot": ("cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "speed 1", "speed 2"),
    "Hopper": _planar("torso", "torso height", _HOPPER),
    "HalfCheetah": _planar("torso", "torso height", _CHEETAH),
    "Walker2d": _planar("torso", "torso height", _WALKER),
}


def family(env_id: str) -> str:
    """An environment's id without namespace and version: `CartPole` of `CartPole-v1`."""
    return env_id.rsplit("/", 1)[-1].rsplit(":", 1)[-1].rsplit("-v", 1)[0]


def observation_names(env_id: str | None, size: int) -> tuple[str, ...]:
    """Names of the `size` numbers of an environment's observation; `obs[i]` where they are not known."""
    known = NAMES.get(family(env_id)) if env_id else None
    return known if known is not None and len(known) == size else tuple(f"obs[{i}]" for i in range(size))
