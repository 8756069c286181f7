"""Does the model infer what it is not told? Episodes with a hidden parameter, against the exact Bayesian predictor.

Command:   python eval/hidden_physics.py                  (a try: --families gain --seeds 0 --steps 300)
Hardware:  2 CPU cores, about 5 minutes a cell: 4 families x 3 seeds.
Expected:  eval/README.md. Excess falls with context; at most .02 nats per dimension at full context.

Every episode draws one parameter, keeps it for 32 steps and never shows it. `gain`: how far an action pushes; `decay`:
what is left of the state; `wind`: a constant push; `turn`: the angle by which the plane is rotated. Noise is normal.
The Bayesian predictor knows the family, its prior (uniform) and its noise, and weighs 2,001 values of the parameter by
the likelihood of the episode so far: no predictor can do better on average. Excess is the model's negative
log-likelihood less the predictor's, in nats per dimension, over 1,000 new episodes; intervals resample episodes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from worldmodel.codec import BIN_FRACTION
from worldmodel.corpus import Columns
from worldmodel.fidelity.replay import gather, teacher_forced
from worldmodel.model.step import StepConfig
from worldmodel.model.transformer import TrunkConfig
from worldmodel.spaces import box
from worldmodel.training import TrainingConfig, WorldModel, train
from worldmodel.trajectory import Spec, Trajectory

RESULTS = Path(__file__).parent / "results" / "hidden_physics.jsonl"
LENGTH, EPISODES, TESTED = 32, 16_000, 1_000
PLACES = (1, 2, 4, 8, 16, 32)


class Family(NamedTuple):
    """`mean(state [..., D], action [...], parameter [...])` of the next state, range of the parameter, noise, `D`."""

    mean: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    low: float
    high: float
    noise: float
    size: int


def _turned(state: np.ndarray, action: np.ndarray, angle: np.ndarray) -> np.ndarray:
    x, y = state[..., 0], state[..., 1]
    cos, sin = np.cos(angle), np.sin(angle)
    return 0.95 * np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1) + 0.3 * action[..., None]


FAMILIES = {
    "gain": Family(lambda s, a, p: 0.9 * s + (p * a)[..., None], -1.0, 1.0, 0.1, 1),
    "decay": Family(lambda s, a, p: p[..., None] * s + a[..., None], 0.0, 0.98, 0.1, 1),
    "wind": Family(lambda s, a, p: 0.8 * s + (0.5 * a + p)[..., None], -0.5, 0.5, 0.1, 1),
    "turn": Family(_turned, -1.0, 1.0, 0.1, 2),
}


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=8_000, help="of training")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for seed in options.seeds:
        for name in options.families:
            key = {"family": name, "seed": seed, "steps": options.steps}
            if any(key.items() <= cell.items() for cell in done):
                continue
            cell = {**key, **excess(FAMILIES[name], seed, options.steps)}
            with options.out.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(json.dumps(cell), flush=True)
            done.append(cell)
    print(table([c for c in done if c["family"] in options.families and c["steps"] == options.steps]))


def episodes(family: Family, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """States float64 `[count, LENGTH+1, D]` and actions `[count, LENGTH]`."""
    parameter = rng.uniform(family.low, family.high, count)
    actions = rng.uniform(-1, 1, (count, LENGTH))
    states = [rng.normal(size=(count, family.size))]
    for t in range(LENGTH):
        mean = family.mean(states[-1], actions[:, t], parameter)
        states.append(mean + family.noise * rng.normal(size=mean.shape))
    return np.stack(states, axis=1), actions


def bayes(family: Family, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Negative log-likelihood of each next state given the episode before it, nats per dimension `[E, LENGTH]`."""
    grid = np.linspace(family.low, family.high, 2_001)
    weight = np.full((len(states), len(grid)), -np.log(len(grid)))
    nats = []
    for t in range(LENGTH):
        mean = family.mean(states[:, t, None], actions[:, t, None], np.broadcast_to(grid, weight.shape))
        apart = (states[:, t + 1, None] - mean) / family.noise
        likelihood = -0.5 * (apart**2).sum(axis=-1) - family.size * np.log(family.noise * np.sqrt(2 * np.pi))
        joint = weight + likelihood
        nats.append(-logsumexp(joint, axis=1))
        weight = joint - logsumexp(joint, axis=1, keepdims=True)
    return np.stack(nats, axis=1) / family.size


def excess(family: Family, seed: int, steps: int) -> dict[str, Any]:
    """Excess in nats per dimension over the steps up to each of `PLACES`, from halfway there; the predictor's nats."""
    rng = np.random.default_rng([seed, 7])
    world = trained(family, rng, seed, steps)
    states, actions = episodes(family, rng, TESTED)
    states = states.astype(np.float32).astype(np.float64)  # what the log holds
    columns = _columns(states, actions)
    replay = gather(columns, np.arange(TESTED), np.zeros(TESTED, np.int64), LENGTH)
    said = logsumexp(teacher_forced(world, replay, seed).log_prob.astype(np.float64), axis=1)
    said -= np.log(world.dynamics.members)
    codec: Any = world.dynamics.codec.observation
    width = np.log(BIN_FRACTION * np.asarray(codec.scale)).sum()
    model = (width - said.T) / family.size
    best = bayes(family, states, actions.astype(np.float32).astype(np.float64))
    apart = model - best
    draws = rng.integers(0, TESTED, (1_000, TESTED))
    out: dict[str, Any] = {"steps_seen": list(PLACES), "excess": [], "excess_lo": [], "excess_hi": [], "bayes": []}
    for place in PLACES:
        # One place alone is noisy: the mean over it and the ones before it back to halfway.
        own = apart[:, place // 2 : place].mean(axis=1)
        low, high = np.quantile(own[draws].mean(axis=1), [0.025, 0.975])
        values = (own.mean(), low, high, best[:, place // 2 : place].mean())
        for name, value in zip(("excess", "excess_lo", "excess_hi", "bayes"), values, strict=True):
            out[name].append(round(float(value), 4))
    return out


def trained(family: Family, rng: np.random.Generator, seed: int, steps: int) -> WorldModel:
    """A model that attends over a whole episode."""
    states, actions = episodes(family, rng, EPISODES)
    model = StepConfig(TrunkConfig(window=LENGTH), members=1)
    config = TrainingConfig(model=model, steps=steps, length=LENGTH, batch_size=64, learning_rate=3e-3, seed=seed)
    spec = Spec(box((family.size,), "float32"), box((1,), "float32", -1.0, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        return train(_columns(states, actions), spec, Path(folder) / "run", config)


def _columns(states: np.ndarray, actions: np.ndarray) -> Columns:
    return Columns.from_trajectories(
        Trajectory(
            observations=state.astype(np.float32),
            actions=action[:, None].astype(np.float32),
            rewards=np.zeros(LENGTH, np.float32),
            terminated=False,
            truncated=True,
            info={"id": f"{i}"},
        )
        for i, (state, action) in enumerate(zip(states, actions, strict=True))
    )


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: the excess by context of every cell."""
    lines = [f"| family | seed | {' | '.join(f'steps {p // 2 + 1}-{p}' for p in PLACES)} |", "|---" * 8 + "|"]
    for cell in sorted(cells, key=lambda cell: (cell["family"], cell["seed"])):
        entries = [
            f"{e:.3f} [{low:.3f}, {high:.3f}]"
            for e, low, high in zip(cell["excess"], cell["excess_lo"], cell["excess_hi"], strict=True)
        ]
        lines.append(f"| {cell['family']} | {cell['seed']} | {' | '.join(entries)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
