"""`gymnasium:ENV_ID`: a real Gymnasium environment, recorded while it is read.

Nothing is kept: each reading makes the environment anew and steps it, with the same seeds. It gives the same episodes
as far as the environment and the policy depend on nothing but them.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from worldmodel.images import EncodedImages, encode_png
from worldmodel.sources.hdf5 import as_kept
from worldmodel.spaces import assemble, at, dtype_of, is_image, shape_of, walk
from worldmodel.trajectory import Spec, Trajectory, suggest

if TYPE_CHECKING:
    import gymnasium

MAX_STEPS = 10_000
UNIFORM = "uniform"
LONGEST_TEXT = 10_000
"""Characters of a text that is drawn letter by letter."""


@dataclasses.dataclass(frozen=True)
class GymnasiumSource:
    """Episodes of an environment under one policy, stepped as they are read.

    Attributes:
      act: makes an action and its log-probability (None: unknown) of an observation and a generator; None: uniform.
    """

    spec: Spec
    provenance: Mapping[str, Any]
    env_id: str
    env_kwargs: Mapping[str, Any]
    episodes: int
    seed: int
    max_steps: int
    policy: str
    act: Callable[[Any, np.random.Generator], tuple[Any, float | None]] | None

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode; `ValueError` names the episode and the step where a value is not as its space says."""
        env = make_env(self.env_id, self.env_kwargs)
        try:
            for index in range(self.episodes):
                yield self._run(env, index)
        finally:
            env.close()

    def _run(self, env: Any, index: int) -> Trajectory:
        name = f"{self.env_id}/{self.seed}/{index:06d}"
        env_seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") // 2
        rng = np.random.default_rng([self.seed % 2**63, index])
        spaces = self.spec.observation_space, self.spec.action_space
        act = _uniform(env.action_space, rng) if self.act is None else self.act
        obs, _ = env.reset(seed=env_seed)
        observations, actions, rewards, log_probs = [_snapshot(spaces[0], obs, f"{name}: observation 0")], [], [], []
        terminated = truncated = False
        while not (terminated or truncated) and len(actions) < self.max_steps:
            action, log_prob = act(obs, rng)
            actions.append(_snapshot(spaces[1], action, f"{name}: action {len(actions)}"))
            log_probs.append(log_prob)
            obs, reward, terminated, truncated, _ = env.step(action)
            observations.append(_snapshot(spaces[0], obs, f"{name}: observation {len(actions)}"))
            rewards.append(reward)
        return Trajectory(
            observations=_columns(spaces[0], observations),
            actions=_columns(spaces[1], actions),
            rewards=np.array(rewards, np.float32),
            terminated=bool(terminated),
            # A step can be both; what the task said outweighs the clock.
            truncated=bool(truncated and not terminated),
            action_log_prob=None if None in log_probs else np.array(log_probs, np.float32),
            info={"id": name, "source": "recorded", "policy": self.policy, "seed": env_seed},
        )


def open_source(
    place: str,
    *,
    episodes: int = 100,
    seed: int = 0,
    policy: Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    max_steps: int = MAX_STEPS,
) -> GymnasiumSource:
    """Makes the environment once, to see its spaces; it is stepped when the source is read.

    Args:
      place: its Gymnasium id.
      episodes: how many are recorded.
      seed: of environment and policy.
      policy: `policy(obs) -> action`, or `policy(obs, rng) -> (action, log_prob)` with a `numpy.random.Generator` and
        the natural log of the probability (density) of the action; None: uniform, with its log-probability.
      env_kwargs: of `gymnasium.make`.
      max_steps: steps after which an episode without an end is cut: neither terminated nor truncated.

    Raises:
      ValueError: unknown id or bad arguments, a space that is not supported, or one that nothing is uniform in.
    """
    for name, number in (("episodes", episodes), ("max_steps", max_steps)):
        if number < 1:
            raise ValueError(f"gymnasium:{place}: {name} is {number}; at least 1 is needed")
    kwargs = dict(env_kwargs or {})
    env = make_env(place, kwargs)
    try:
        # The id as it was given: with "module:" in front, another process finds it, too.
        spec = dataclasses.replace(Spec.from_gymnasium(env), env_id=place)
        if policy is None:
            _check_bounded(env.action_space)
            act, name = None, UNIFORM
        else:
            act, name = _adapt(policy)
    except ValueError as error:
        raise ValueError(f"gymnasium:{place}: {error}") from None
    finally:
        env.close()
    provenance = {
        "format": "gymnasium",
        "place": place,
        "episodes": episodes,
        "seed": seed,
        "policy": name,
        "env_kwargs": dict(spec.env_kwargs),
        "max_steps": max_steps,
        "left_out": ["info of each step: a trajectory has no place for it"],
    }
    return GymnasiumSource(spec, provenance, place, kwargs, episodes, seed, max_steps, name, act)


def recognise(path: pathlib.Path) -> bool:
    """Never: an environment is no path."""
    return False


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> gymnasium.Env:
    """`gymnasium.make`; an unknown id or a bad argument is a `ValueError` of one line, with the nearest known id."""
    import gymnasium

    try:
        return gymnasium.make(env_id, **(env_kwargs or {}))
    except gymnasium.error.UnregisteredEnv:
        # Nearest by name, then the newest version of it: "did you mean CartPole-v0" would send people backwards.
        names = {spec_id.rpartition("-v")[0]: spec_id for spec_id in sorted(gymnasium.registry, key=_by_version)}
        near = suggest(env_id.rpartition("-v")[0] or env_id, names)
        for name, spec_id in names.items():
            near = near.replace(f"{name!r}?", f"{spec_id!r}?")
        raise ValueError(f"environment {env_id!r} is not registered with Gymnasium{near}") from None
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise ValueError(f"environment {env_id!r} cannot be made: {' '.join(str(error).split())}") from error


def _by_version(env_id: str) -> tuple[str, int]:
    name, _, version = env_id.rpartition("-v")
    return name, int(version) if version.isdigit() else -1


# --- Policies ---------------------------------------------------------------------------------------------------------


def _adapt(policy: Callable[..., Any]) -> tuple[Callable[..., tuple[Any, float | None]], str]:
    """A policy of either form as `act`, and its name."""
    name = getattr(policy, "__name__", type(policy).__name__)
    try:
        parameters = inspect.signature(policy).parameters.values()
    except (TypeError, ValueError):  # something compiled, which does not say
        raise ValueError(f"policy {name!r} does not say what it takes; wrap it as lambda obs: ...") from None
    free = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(p.kind in free and p.default is inspect.Parameter.empty for p in parameters)
    if needed not in (1, 2):
        raise ValueError(f"policy {name!r} takes {needed} arguments; (obs) or (obs, rng) are needed")

    def act(obs: Any, rng: np.random.Generator) -> tuple[Any, float | None]:
        if needed == 1:
            return policy(obs), None
        made = policy(obs, rng)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ValueError(f"policy {name!r} made a {type(made).__name__}; (action, log_prob) is needed")
        return made[0], float(made[1])

    return act, name


def _uniform(space: Any, rng: np.random.Generator) -> Callable[..., tuple[Any, float]]:
    """Uniform over an action space during one episode, by a generator of its own."""
    own = copy.deepcopy(space)
    own.seed(int(rng.integers(2**31)))

    def act(obs: Any, rng: np.random.Generator) -> tuple[Any, float]:
        action = own.sample()
        return action, _log_prob(own, action)

    return act


def _check_bounded(space: Any) -> None:
    """Raises `ValueError` for a space that has no bounds to be uniform within."""
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        for part in space.spaces.values() if kind == "Dict" else space.spaces:
            _check_bounded(part)
    if kind == "Box" and not space.is_bounded("both"):
        raise ValueError("its action Box has no finite bounds to be uniform within; give a policy")
    if kind == "Text" and space.max_length > LONGEST_TEXT:
        raise ValueError(f"its action Text is longer than {LONGEST_TEXT} characters; give a policy")


def _log_prob(space: Any, action: Any) -> float:
    """Natural log of the probability (of the density, for a Box of floats) with which `space.sample` gives `action`."""
    kind = type(space).__name__
    if kind == "Dict":
        return sum(_log_prob(part, action[name]) for name, part in space.spaces.items())
    if kind == "Tuple":
        return sum(_log_prob(part, value) for part, value in zip(space.spaces, action, strict=True))
    if kind == "Discrete":
        return -math.log(space.n)
    if kind == "MultiDiscrete":
        return -float(np.log(space.nvec).sum())
    if kind == "MultiBinary":
        return -math.log(2) * math.prod(space.shape)
    if kind == "Text":
        lengths = space.max_length - space.min_length + 1
        return -math.log(lengths) - len(action) * math.log(len(space.character_list))
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    width = high - low + (1 if np.issubdtype(space.dtype, np.integer) else 0)
    return -float(np.log(width[width > 0]).sum())  # an action that can have but one value has no density


# --- From values to columns -------------------------------------------------------------------------------------------


def _snapshot(space: Mapping[str, Any], value: Any, where: str) -> Any:
    """A copy of one value (an environment may hand out one buffer again and again), built as its space is."""
    kind = space["type"]
    if kind == "Dict":
        if not isinstance(value, Mapping) or set(value) != set(space["spaces"]):
            found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{where} is {found}; its space has the keys {sorted(space['spaces'])}")
        return {name: _snapshot(part, value[name], f"{where}, {name!r}") for name, part in space["spaces"].items()}
    if kind == "Tuple":
        if not isinstance(value, (tuple, list)) or len(value) != len(space["spaces"]):
            raise ValueError(f"{where} is a {type(value).__name__}; its space is a tuple of {len(space['spaces'])}")
        return tuple(
            _snapshot(p, v, f"{where}, {i}") for i, (p, v) in enumerate(zip(space["spaces"], value, strict=True))
        )
    if kind == "Text":
        if not isinstance(value, str):
            raise ValueError(f"{where} is a {type(value).__name__}; its space is text")
        return str(value)
    copied = np.array(value)
    if copied.shape != shape_of(space) or copied.dtype.kind not in "biuf":
        raise ValueError(f"{where} has shape {copied.shape} and dtype {copied.dtype}; its space has {shape_of(space)}")
    return encode_png(copied) if is_image(space) and copied.dtype == np.uint8 else copied


def _columns(space: Mapping[str, Any], values: list[Any]) -> Any:
    """Values of `N` steps as columns."""
    return assemble([(path, _column(leaf, [at(value, path) for value in values])) for path, leaf in walk(space)])


def _column(space: Mapping[str, Any], values: list[Any]) -> Any:
    if space["type"] == "Text":
        texts = np.empty(len(values), object)
        texts[:] = values
        return texts
    if is_image(space) and all(isinstance(value, bytes) for value in values):
        height, width, channels = space["shape"]
        return EncodedImages(values, (height, width, channels))
    return as_kept(np.array(values), dtype_of(space))
