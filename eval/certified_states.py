"""Do certified states keep the risk they promise, on other episodes and on those of a policy that never made a log?

Command:   python eval/certified_states.py runs/quickstart
Hardware:  2 CPU cores, a few minutes.
Expected:  eval/README.md. Steps that err too much in certified states are at most the risk, and the bounds of regions
           hold for a share of at least 1 - risk of steps, to 2 points.

Fresh episodes of the quickstart's behaviours are divided at random, 200 times: half of them certify, the others test.
Then the same regions are put to the run's own policy, graded by noise: as they are, and judged anew by half of its
episodes. What is counted is a step drawn from an episode that visits the region, as `certify` promises it; a violation
is a certificate whose share, over all its certified regions, is above the risk by more than 2 points.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from worldmodel.agents.batch_env import Interface
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.policies import noise_ladder
from worldmodel.agents.ppo import load_policy
from worldmodel.agents.record import record
from worldmodel.certificate import Certificate
from worldmodel.corpus import Columns
from worldmodel.envs.names import observation_names
from worldmodel.fidelity.certified_states import judge_regions, replayed, state_numbers, transition_errors
from worldmodel.quickstart import QuickstartConfig
from worldmodel.training import WorldModel, load

SPLITS = 200
RISKS = (0.1, 0.2)


class Errors(NamedTuple):
    """Errors float `[N]` of steps of episodes int `[N]`, from states `[N, D]`."""

    error: np.ndarray
    episode: np.ndarray
    flat: np.ndarray

    def of(self, episodes: np.ndarray) -> Errors:
        """Those of some episodes."""
        own = np.isin(self.episode, episodes)
        return Errors(*(column[own] for column in self))


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--tolerance", type=float, default=0.006)
    parser.add_argument("--seed", type=int, default=4_321)
    options = parser.parse_args()
    world = load(options.run)
    spec, tolerance = world.spec, options.tolerance
    if spec.env_id is None:
        raise SystemExit("this run's logs are of no known environment")
    behaviours = QuickstartConfig().behaviours
    logs = errors_of(
        world, list(record(spec.env_id, behaviours=behaviours, episodes=options.episodes, seed=options.seed)[1])
    )
    final = load_policy(options.run / "policy.npz", Interface(spec, world.dynamics.codec))
    policies = {
        name: errors_of(world, real_episodes(spec, policy, episodes=100, seed=options.seed + 1, ledger=StepLedger()))
        for name, policy in list(noise_ladder(final).items())[::3]
    }
    names = observation_names(spec.env_id, logs.flat.shape[1])
    print("| risk | tested on | certified share | err too much there | violations | bounds hold | regions |")
    print("|---|---|---|---|---|---|---|")
    for risk in RISKS:
        asked = {"tolerance": tolerance, "risk": risk, "confidence": 0.9}
        rows: dict[str, list[tuple[float, float, float, int]]] = {}
        for split in range(SPLITS):
            rng = np.random.default_rng([split, round(100 * risk)])
            fit, test = halves(logs, rng)
            found = judge_regions(*fit, names, **asked, seed=split)
            rows.setdefault("the same behaviours", []).append(judged(found, test))
            for name, errors in policies.items():
                own, others = halves(errors, rng)
                rows.setdefault(f"policy {name}, as it is", []).append(judged(found, others))
                again = judge_regions(*own, names, **asked, rules=found)
                rows.setdefault(f"policy {name}, judged anew", []).append(judged(again, others))
        for name, values in rows.items():
            share, over, holds, regions = (np.array(column, float) for column in zip(*values, strict=True))
            print(
                f"| {risk} | {name} | {share.mean():.3f} | {np.nanmean(over):.4f} "
                f"| {np.mean(np.nan_to_num(over) > risk + 0.02):.3f} | {np.nanmean(holds):.4f} | {regions.mean():.1f} |"
            )


def errors_of(world: WorldModel, episodes: list) -> Errors:
    """Every step of the episodes, as the model predicts it."""
    columns = Columns.from_trajectories(episodes)
    steps = replayed(world, columns, np.arange(columns.episodes))
    return Errors(transition_errors(world, steps), steps.episode, state_numbers(world, steps))


def halves(errors: Errors, rng: np.random.Generator) -> tuple[Errors, Errors]:
    """A random half of the episodes, and the others."""
    ids = rng.permutation(np.unique(errors.episode))
    return errors.of(ids[: len(ids) // 2]), errors.of(ids[len(ids) // 2 :])


def judged(found: Certificate, test: Errors) -> tuple[float, float, float, int]:
    """Share of steps in certified states, how many of those err too much, how often bounds hold, number of regions.

    The second and third are means over regions, each by its share of steps, of means over episodes.
    """
    label = found.label(test.flat)
    over, holds, weight, kept = [], [], [], []
    for number, region in enumerate(found.regions):
        own = label == number
        if not own.any():
            continue
        ids = test.episode[own]
        weight.append(own.mean())
        kept.append(region.certified)
        over.append(by_episode(test.error[own] > found.tolerance, ids))
        holds.append(np.nan if region.bound is None else by_episode(test.error[own] <= region.bound, ids))
    w, k, h = np.array(weight), np.array(kept), np.array(holds)
    bounded = np.isfinite(h)
    return (
        float(w[k].sum()),
        float(np.average(np.array(over)[k], weights=w[k])) if k.any() else float("nan"),
        float(np.average(h[bounded], weights=w[bounded])) if bounded.any() else float("nan"),
        len(w),
    )


def by_episode(values: np.ndarray, episode: np.ndarray) -> float:
    """Mean over episodes of their means."""
    _, group, count = np.unique(episode, return_inverse=True, return_counts=True)
    return float((np.bincount(group, values) / count).mean())


if __name__ == "__main__":
    main()
