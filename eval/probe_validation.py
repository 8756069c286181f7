"""Does the probe recover a truth that was planted? Attribution of the gap in return, in processes with exact answers.

Command:   python eval/probe_validation.py                 (a try: --blocks 1 --repetitions 20)
Data:      random processes of 30 states, 3 actions and 10 steps; made by the script.
Hardware:  2 CPU cores; about 4 minutes a block of 250 repetitions with fitted values, 1 with imagined.
Expected:  eval/README.md.

Every repetition draws a process, a policy and a fault, makes the fault as large as its share of the return asks for,
samples 200 real episodes, and runs the probe's own estimators on the faulty simulator: with values fitted to imagined
returns, and with four imagined pairs per visited step. States lie in three regions of equal size. The fault is in the
first:

`dynamics`  the next state is sometimes the best; `everywhere` the same in all states; `reward` too much is paid;
`end`       episodes end that should not; `certain` the likeliest next state becomes likelier;
`wormhole`  a single action of a single state leads to the best state; `none` no fault at all.

In the third region every state has a twin of the same future, and the simulator always goes to the same one of the two:
a difference that every density sees and no return does.

`covered`: share of 95% intervals that hold the exact contribution, by region, for the sum, and for beginnings. `first`:
share of runs whose largest region is the faulty one, among the given regions, and among those that the tree finds (most
of its visits in the faulty one). `accused`: share of runs with a region below .05 after correction. `distractor`: mean
share of the gap that the third region gets; with its standard error.

Every block is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.optimize import brentq

from worldmodel.agents.policies import PureFunction
from worldmodel.fidelity.attribution import attribute, benjamini_hochberg, slices
from worldmodel.fidelity.fitted_value import fit_value
from worldmodel.fidelity.imagined import imagine
from worldmodel.fidelity.partition import find_regions
from worldmodel.fidelity.step_residuals import Transition, fitted_residuals, imagined_residuals
from worldmodel.fidelity.tabular import TabularDynamics, TabularMDP, exact_attribution, random_mdp, sample_episodes
from worldmodel.fidelity.value_residuals import Residuals, Visits

RESULTS = Path(__file__).parent / "results" / "probe_validation.jsonl"
BASE, ACTIONS, HORIZON, EPISODES, TWINS, ROLLOUTS = 25, 3, 10, 200, 5, 4
MILESTONES = np.arange(0, HORIZON + 1, 2)
REGION = np.repeat([0, 1, 2], 10)
COUNTED = ("covered_sum", "covered_initial", "first", "first_of_tree", "accused")
SHARES = {"dynamics": (0.02, 0.05, 0.1, 0.2)}
"""Of the return, that a fault is worth; one tenth where nothing else is said."""


def main() -> None:
    """Runs the blocks that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=[*FAULTS, "none"], default=[*FAULTS, "none"])
    parser.add_argument("--values", nargs="+", choices=["fitted", "imagined"], default=["fitted", "imagined"])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=250, help="in a block")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for block, values, kind in itertools.product(range(options.blocks), options.values, options.kinds):
        for share in SHARES.get(kind, (0.1,)):
            key = {"kind": kind, "share": share, "values": values, "block": block, "repetitions": options.repetitions}
            if any(key.items() <= cell.items() for cell in done):
                continue
            runs = [repetition(kind, share, values, [block, i]) for i in range(options.repetitions)]
            cell = {**key, **counted(runs)}
            with options.out.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(json.dumps(cell), flush=True)
            done.append(cell)
    print(table([cell for cell in done if cell["repetitions"] == options.repetitions]))


def process(rng: np.random.Generator) -> TabularMDP:
    """A random process without ends, in whose third region every second state is the twin of the one before it."""
    base = random_mdp(rng, BASE, ACTIONS, HORIZON)
    twin = np.concatenate([np.arange(BASE), np.arange(BASE - TWINS, BASE)])
    halves = np.where(twin >= BASE - TWINS, 0.5, 1.0)
    return TabularMDP(
        transition=base.transition[twin][:, :, twin] * halves,
        reward=base.reward[twin],
        end=np.zeros((len(twin), ACTIONS)),
        start=base.start[twin] * halves,
        horizon=HORIZON,
    )


def always_one_twin(sim: TabularMDP) -> TabularMDP:
    """The simulator goes to the first of two twins, where reality goes to either."""
    transition = sim.transition.copy()
    first, second = slice(BASE - TWINS, BASE), slice(BASE, BASE + TWINS)
    transition[:, :, first] += transition[:, :, second]
    transition[:, :, second] = 0.0
    return dataclasses.replace(sim, transition=transition)


def _best(real: TabularMDP, policy: np.ndarray) -> np.ndarray:
    return np.eye(len(real.start))[real.values(policy)[0][1].argmax()]


def _dynamics(real: TabularMDP, where: np.ndarray, size: float, policy: np.ndarray) -> TabularMDP:
    amount = size * where[:, None, None]
    return dataclasses.replace(real, transition=(1 - amount) * real.transition + amount * _best(real, policy))


def _everywhere(real: TabularMDP, where: np.ndarray, size: float, policy: np.ndarray) -> TabularMDP:
    return _dynamics(real, np.ones_like(where), size, policy)


def _reward(real: TabularMDP, where: np.ndarray, size: float, policy: np.ndarray) -> TabularMDP:
    return dataclasses.replace(real, reward=real.reward + size * where[:, None])


def _end(real: TabularMDP, where: np.ndarray, size: float, policy: np.ndarray) -> TabularMDP:
    return dataclasses.replace(real, end=size * np.repeat(where[:, None], ACTIONS, axis=1).astype(float))


def _certain(real: TabularMDP, where: np.ndarray, size: float, policy: np.ndarray) -> TabularMDP:
    likeliest = np.eye(len(real.start))[real.transition.argmax(axis=-1)]
    amount = size * where[:, None, None]
    return dataclasses.replace(real, transition=(1 - amount) * real.transition + amount * likeliest)


def _wormhole(real: TabularMDP, where: np.ndarray, size: float, policy: np.ndarray) -> TabularMDP:
    here = int(np.flatnonzero(where)[0])
    transition = real.transition.copy()
    transition[here, 0] = (1 - size) * transition[here, 0] + size * _best(real, policy)
    return dataclasses.replace(real, transition=transition)


FAULTS: dict[str, Callable[[TabularMDP, np.ndarray, float, np.ndarray], TabularMDP]] = {
    "dynamics": _dynamics,
    "everywhere": _everywhere,
    "reward": _reward,
    "end": _end,
    "certain": _certain,
    "wormhole": _wormhole,
}


def planted(kind: str, share: float, rng: np.random.Generator) -> tuple[TabularMDP, TabularMDP, np.ndarray]:
    """Real process, faulty simulator and policy; the fault is worth `share` of the return, or all it can be worth."""
    where = (REGION == 0).astype(float)
    for _ in range(1_000):
        real, policy = process(rng), rng.dirichlet(np.ones(ACTIONS), len(REGION))
        policy[BASE:] = policy[BASE - TWINS : BASE]
        if kind == "none":
            return real, real, policy
        wanted = share * real.expected_return(policy)

        def worth(size: float, real: TabularMDP = real, policy: np.ndarray = policy, wanted: float = wanted) -> float:
            sim = FAULTS[kind](real, where, size, policy)
            return abs(exact_attribution(real, sim, policy)[1].sum()) - wanted

        if kind == "wormhole":
            return real, always_one_twin(FAULTS[kind](real, where, 1.0, policy)), policy
        if worth(1.0) > 0:
            size = float(brentq(worth, 0.0, 1.0, xtol=1e-4))
            return real, always_one_twin(FAULTS[kind](real, where, size, policy)), policy
    raise RuntimeError(f"no process in which the fault {kind} is worth {share:.0%} of the return")


def repetition(kind: str, share: float, values: str, seed: list[int]) -> dict[str, Any]:
    """One process, fault and sample: what was covered, found and accused."""
    rng = np.random.default_rng([*seed, sum(map(ord, kind)), round(1000 * share)])
    real, sim, policy = planted(kind, share, rng)
    initial, exact = exact_attribution(real, sim, policy)
    by_region = np.array([exact[:, k == REGION].sum() for k in range(3)])
    found, here, sim_returns = observed(real, sim, policy, rng, values)
    total = found.parts.sum(axis=1)
    given = slices(found, total, REGION[here], 3)
    waterfall = attribute(found, sim_returns)
    where = np.stack([REGION[here] + 0.5 * rng.uniform(size=len(here)), rng.uniform(size=len(here))], axis=1)
    visits, names, own = found.visits, ["x", "y"], int(rng.integers(2**31))
    regions = find_regions(where, total, visits.weight, visits.episode, names, hint=found.distance, seed=own)
    label, judges = regions.label(where), ~np.isin(found.visits.episode, regions.held_in)
    nets = np.array([total[judges & (label == k)].sum() for k in range(len(regions.rules))])
    worst = judges & (label == np.abs(nets).argmax())
    adjusted = benjamini_hochberg([s.p for s in given])
    return {
        "covered": [_holds(s.net.to_json(), c) for s, c in zip(given, by_region, strict=True)],
        "covered_sum": _holds(waterfall["net"], by_region.sum()),
        "covered_initial": _holds(waterfall["initial"], initial),
        "first": int(np.argmax([abs(s.net.mean or 0.0) for s in given])) == 0,
        "first_of_tree": bool((REGION[here][worst] == 0).mean() > 0.5),
        "accused": any(p is not None and p < 0.05 for p in adjusted),
        "distractor": (given[2].net.mean or 0.0) / exact.sum() if kind != "none" else 0.0,
        "identity": abs(initial + exact.sum() - sim.expected_return(policy) + real.expected_return(policy)),
    }


def observed(
    real: TabularMDP, sim: TabularMDP, policy: np.ndarray, rng: np.random.Generator, values: str
) -> tuple[Residuals, np.ndarray, np.ndarray]:
    """Residuals at every step of the real episodes, the states there, and returns of simulated episodes."""
    states, actions, _, _ = sample_episodes(real, policy, rng, EPISODES)
    step, episode = np.divmod(np.arange(HORIZON * EPISODES), EPISODES)
    here, action, after = (x.reshape(-1).astype(np.int32) for x in (states[:-1], actions, states[1:]))
    reward, left = real.reward[here, action].astype(np.float32), (HORIZON - step - 1).astype(np.int32)
    tables = TabularDynamics(), TABLE, TabularDynamics.of(sim), np.log(np.maximum(policy, 1e-30)).astype(np.float32)
    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))))
    transition = Transition(action, reward, after, np.zeros(len(step), bool), left)
    passed = states[MILESTONES[:-1]].reshape(-1).astype(np.int32)
    whole = np.repeat(HORIZON - MILESTONES[:-1], EPISODES).astype(np.int32)
    begin = (passed,), _no_history(len(passed))
    imagined = imagine(*tables, keys[1], begin, whole, rollouts=ROLLOUTS, features=one_hot)
    visited = (here,), _no_history(len(step))
    if values == "fitted":
        value, taken = fit_value(imagined.features, imagined.left, imagined.rest, seed=0), 0
        parts, distance = fitted_residuals(tables[0], value, one_hot, tables[2], keys[0], visited, transition)
    else:
        parts, taken = imagined_residuals(*tables, keys[0], visited, transition, rollouts=ROLLOUTS)
        distance = None
    own, acted, alive, _ = sample_episodes(sim, policy, rng, EPISODES)
    promised = np.concatenate([imagined.returns, np.zeros(EPISODES)]).reshape(-1, EPISODES).T
    earned = np.add.reduceat(reward.reshape(HORIZON, EPISODES), MILESTONES[:-1], axis=0).T.astype(float)
    visits = Visits(episode, step, np.ones(len(step)))
    found = Residuals(visits, parts, MILESTONES, promised, earned, taken + imagined.steps, distance=distance)
    return found, here, (sim.reward[own[:-1], acted] * alive).sum(axis=0)


def one_hot(obs: jax.Array) -> jax.Array:
    """States as what values are fitted to."""
    return jax.nn.one_hot(obs, len(REGION))


def _no_history(count: int) -> tuple[np.ndarray, ...]:
    return tuple(np.zeros((0, count), dtype) for dtype in (np.int32, np.int32, np.float32, bool))


TABLE = PureFunction(lambda params, obs, keys: jax.vmap(jax.random.categorical)(keys, params[obs]), "table")


def counted(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over repetitions."""
    shares = np.array([run["distractor"] for run in runs])
    return {
        "covered": np.sum([run["covered"] for run in runs], axis=0).tolist(),
        **{name: int(sum(run[name] for run in runs)) for name in COUNTED},
        "distractor_sum": float(shares.sum()),
        "distractor_squares": float((shares**2).sum()),
        "identity": float(max(run["identity"] for run in runs)),
    }


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: a row per fault and size, all blocks together."""
    lines = [
        "| values | fault | share of return | runs | covered: faulty, other, twins | sum | beginnings | first "
        "| first of tree | accused | distractor |",
        "|---" * 11 + "|",
    ]
    for values, kind, share in sorted({(cell["values"], cell["kind"], cell["share"]) for cell in cells}):
        own = [cell for cell in cells if (cell["values"], cell["kind"], cell["share"]) == (values, kind, share)]
        runs = sum(cell["repetitions"] for cell in own)
        rate = {name: sum(cell[name] for cell in own) / runs for name in COUNTED}
        covered = ", ".join(f"{v:.3f}" for v in np.sum([cell["covered"] for cell in own], axis=0) / runs)
        mean = sum(cell["distractor_sum"] for cell in own) / runs
        error = np.sqrt(max(sum(cell["distractor_squares"] for cell in own) / runs - mean**2, 0.0) / runs)
        size = "as it is" if kind == "wormhole" else "0" if kind == "none" else f"{share:.0%}"
        lines.append(
            f"| {values} | {kind} | {size} | {runs} | {covered} | {rate['covered_sum']:.3f} "
            f"| {rate['covered_initial']:.3f} | {rate['first']:.3f} | {rate['first_of_tree']:.3f} "
            f"| {rate['accused']:.3f} | {mean:+.4f} ({error:.4f}) |"
        )
    return "\n".join(lines)


def _holds(estimate: dict[str, Any], truth: float) -> bool:
    return estimate["lo"] <= truth <= estimate["hi"]


if __name__ == "__main__":
    main()
