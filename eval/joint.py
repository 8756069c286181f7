"""Is what one step holds drawn together? A classifier tries to tell imagined next states from true ones.

Command:   python eval/joint.py                  (a try: --seeds 0 --steps 200)
Hardware:  2 CPU cores, about 1 minute a cell: 2 worlds x 2 models x 3 seeds.
Expected:  eval/README.md. AUC near .5 with the chain, far above without it.

Worlds: `points`, where the next state is one of two equally likely points, and `circle`, where it is anywhere on a
noisy circle, whatever state and action are. The classifier is scikit-learn's gradient boosting on the next state; a
true next state and the imagined one from the same place are on the same side of the split. 8,000 places, half of them
for testing. Without the chain the same model draws each number of the next state independently of the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from worldmodel.corpus import Columns
from worldmodel.model.step import StepConfig
from worldmodel.spaces import box
from worldmodel.training import TrainingConfig, WorldModel, train
from worldmodel.trajectory import Spec, Trajectory

RESULTS = Path(__file__).parent / "results" / "joint.jsonl"
SPEC = Spec(box((2,), "float32"), box((1,), "float32", -1.0, 1.0))
NOISE, LENGTH, PLACES = 0.05, 20, 8_000


def points(rng: np.random.Generator, count: int) -> np.ndarray:
    """(1, 1) or (-1, -1), with noise."""
    side = 2.0 * rng.integers(0, 2, (count, 1)) - 1.0
    return side + NOISE * rng.normal(size=(count, 2))


def circle(rng: np.random.Generator, count: int) -> np.ndarray:
    """Anywhere on the circle of radius 1, with noise."""
    angle = rng.uniform(0, 2 * np.pi, count)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) + NOISE * rng.normal(size=(count, 2))


WORLDS = {"points": points, "circle": circle}


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=8_000, help="of training")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for seed in options.seeds:
        for world in WORLDS:
            for chain in (True, False):
                key = {"world": world, "chain": chain, "seed": seed, "steps": options.steps}
                if any(key.items() <= cell.items() for cell in done):
                    continue
                cell = {**key, "auc": auc(world, chain, seed, options.steps)}
                with options.out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(json.dumps(cell), flush=True)
                done.append(cell)
    print(table([cell for cell in done if cell["seed"] in options.seeds and cell["steps"] == options.steps]))


def auc(world: str, chain: bool, seed: int, steps: int) -> float:
    """Area under the curve of the classifier on places that it was not trained on."""
    rng = np.random.default_rng([seed, len(world)])
    model = trained(world, chain, seed, steps)
    true = WORLDS[world](rng, PLACES).astype(np.float32)
    before = WORLDS[world](rng, PLACES).astype(np.float32)
    actions = rng.uniform(-1, 1, (PLACES, 1)).astype(np.float32)
    keys = jax.random.split(jax.random.key(seed), (2, PLACES))
    state, _ = model.dynamics.start_at(model.params, keys[0], before)
    imagined = np.asarray(model.dynamics.advance(model.params, state, actions, keys[1])[1])
    half = PLACES // 2
    features = [np.concatenate([true[side], imagined[side]]) for side in (slice(None, half), slice(half, None))]
    labels = np.repeat([1, 0], half)
    judge = HistGradientBoostingClassifier(random_state=seed).fit(features[0], labels)
    return round(float(roc_auc_score(labels, judge.predict_proba(features[1])[:, 1])), 4)


def trained(world: str, chain: bool, seed: int, steps: int) -> WorldModel:
    """A model of one member that has seen 1,000 episodes."""
    rng = np.random.default_rng([seed, len(world), 1])
    episodes = [
        Trajectory(
            observations=WORLDS[world](rng, LENGTH + 1).astype(np.float32),
            actions=rng.uniform(-1, 1, (LENGTH, 1)).astype(np.float32),
            rewards=np.zeros(LENGTH, np.float32),
            terminated=False,
            truncated=True,
            info={"id": f"{world}-{i}"},
        )
        for i in range(1_000)
    ]
    model = dataclasses.replace(StepConfig(), members=1, components=8, chain=chain)
    config = TrainingConfig(model=model, steps=steps, batch_size=12, length=LENGTH, seed=seed, checkpoint_every=steps)
    with tempfile.TemporaryDirectory() as folder:
        return train(Columns.from_trajectories(episodes), SPEC, Path(folder) / "run", config)


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: mean and extremes of the AUC over seeds."""
    lines = ["| world | with the chain | without |", "|---|---|---|"]
    for world in WORLDS:
        entries = []
        for chain in (True, False):
            found = [cell["auc"] for cell in cells if (cell["world"], cell["chain"]) == (world, chain)]
            entries.append(f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})" if found else "-")
        lines.append(f"| {world} | {' | '.join(entries)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
