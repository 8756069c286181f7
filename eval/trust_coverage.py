"""Is a step outside the trusted region as rare as its coverage says, and is what lies elsewhere outside more often?

Command:   python eval/trust_coverage.py runs/quickstart
Hardware:  2 CPU cores, about a minute.
Expected:  eval/README.md. Every interval holds one less the coverage, and shares grow with the distance from the logs.

The region is fitted to fresh episodes of the quickstart's behaviours and tested on others; intervals resample episodes.
Then states of those are moved away from the logs' mean, each the first of an episode, under the actions logged there.
One that was logged in an episode's midst is a new thing as a first one already: compare with the share at factor 1.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.agents.record import record
from worldmodel.corpus import Columns
from worldmodel.fidelity.estimates import cluster_mean_interval
from worldmodel.quickstart import QuickstartConfig
from worldmodel.training import WorldModel, load, measure_trust

COVERAGES, FACTORS, STATES = (0.9, 0.99, 0.999), (1.0, 2.0, 3.0, 5.0), 1_024


def main() -> None:
    """Prints both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=60, help="to fit on, and as many to test on")
    parser.add_argument("--seed", type=int, default=777)
    options = parser.parse_args()
    world = load(options.run)
    fitted, tested = (fresh(world, options.episodes, options.seed + i) for i in range(2))
    region = measure_trust(world, Columns.from_trajectories(fitted))
    each = [measure_trust(world, Columns.from_trajectories([episode])).disagreement for episode in tested]
    values, ids = np.concatenate(each), np.repeat(np.arange(len(each)), [len(one) for one in each])
    print("| coverage | threshold | steps outside [95%] | steps |\n|---|---|---|---|")
    for coverage in COVERAGES:
        bound = region.threshold(coverage)
        found = cluster_mean_interval((values > bound).astype(float), ids, 0)
        print(f"| {coverage} | {bound:.4f} | {found.mean:.4f} [{found.lo:.4f}, {found.hi:.4f}] | {len(values):,} |")
    print("\n| states as far from the logs' mean | outside, at coverage 0.99 |\n|---|---|")
    for factor, share in moved(world, Columns.from_trajectories(tested), region.threshold(0.99)):
        print(f"| {factor:g} times | {share:.3f} |")


def fresh(world: WorldModel, episodes: int, seed: int) -> list[Any]:
    """Episodes of the quickstart's behaviours in the environment that the world model stands for."""
    if world.spec.env_id is None:
        raise SystemExit("this run's logs are of no known environment")
    return list(record(world.spec.env_id, behaviours=QuickstartConfig().behaviours, episodes=episodes, seed=seed)[1])


def moved(world: WorldModel, columns: Columns, bound: float) -> list[tuple[float, float]]:
    """Share of first steps outside for every factor."""
    transitions = columns.transitions()
    rows = np.random.default_rng(0).choice(len(transitions.obs), STATES)
    keys, codec = jax.random.split(jax.random.key(0), STATES), world.dynamics.codec.observation
    actions = transitions.actions[rows]
    actions = jnp.asarray(actions.astype(jax.dtypes.canonicalize_dtype(actions.dtype)))
    middle = np.asarray(getattr(codec, "mean", 0.0), np.float32)

    @jax.jit
    def outside(obs: jax.Array) -> jax.Array:
        state, _ = world.dynamics.start_at(world.params, keys, obs)
        return jnp.mean(world.dynamics.disagreement(world.params, state, actions) > bound)

    states = transitions.obs[rows]
    return [(f, float(outside(jnp.asarray((middle + f * (states - middle)).astype(states.dtype))))) for f in FACTORS]


if __name__ == "__main__":
    main()
