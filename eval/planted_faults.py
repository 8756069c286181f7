"""A fault is planted in a simulator that is otherwise the real environment: does the report name it?

Command:   python eval/planted_faults.py                 (a try: --faults gravity --seeds 0)
Hardware:  2 CPU cores, 30 seconds a cell when idle.
Expected:  eval/README.md. Of `gravity`, in at least 9 of 10 seeds a region's border lies within .02 of the planted one.

gravity    CartPole-v1, gravity 20% stronger where |pole angle| > 0.1.
reward     Pendulum-v1, half of the cost where the pole stands in the upper right quarter.
none       CartPole-v1, nothing: the perfect simulator, which no region may be accused of.

Real are Gymnasium's own environments; the simulators are the same equations in JAX. Episodes of a policy that visits
both sides are explained, as the probe does it for any simulator. A cell is one line of JSON; what is there is not run
again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.phys2d.cartpole import CartPoleFunctional
from gymnasium.envs.phys2d.pendulum import PendulumFunctional

from worldmodel.agents.record import record
from worldmodel.corpus.columns import Columns
from worldmodel.envs.known_world import known_world
from worldmodel.envs.names import observation_names
from worldmodel.envs.true_dynamics import TrueDynamics, true_dynamics
from worldmodel.fidelity import probe
from worldmodel.fidelity.partition import named_features
from worldmodel.report import findings

RESULTS = Path(__file__).parent / "results" / "planted_faults.jsonl"
BORDER, FACTOR = 0.1, 1.2


class HeavyWhereTilted(CartPoleFunctional):
    """Gravity is stronger where the pole is tilted."""

    def transition(self, state: Any, action: Any, rng: Any, params: Any = None) -> Any:
        """The next state."""
        plain = super().transition(state, action, rng, params)
        heavy = super().transition(state, action, rng, params.replace(gravity=FACTOR * params.gravity))
        return jnp.where(jnp.abs(state[2]) > BORDER, heavy, plain)


class CheapInAQuarter(PendulumFunctional):
    """The cost is half where the pole stands in the upper right quarter."""

    def reward(self, state: Any, action: Any, next_state: Any, rng: Any, params: Any = None) -> Any:
        """The reward of a step."""
        quarter = (jnp.cos(state[0]) > 0) & (jnp.sin(state[0]) > 0)
        return jnp.where(quarter, 0.5, 1.0) * super().reward(state, action, next_state, rng, params)


def balance(noise: float) -> Callable[[Any, Any], Any]:
    """Pushes against the fall, as one that sees its four numbers through noise."""

    def act(obs: Any, keys: Any) -> Any:
        seen = obs @ jnp.array([0.0, 0.1, 1.0, 0.6], jnp.float32)
        return (seen + np.float32(noise) * jax.vmap(jax.random.normal)(keys) > 0).astype(jnp.int32)

    return act


def swing(noise: float) -> Callable[[Any, Any], Any]:
    """Pumps energy until the pole is near the top, and holds it there."""

    def act(obs: Any, keys: Any) -> Any:
        cos, sin, speed = obs[:, 0], obs[:, 1], obs[:, 2]
        angle = jnp.arctan2(sin, cos)
        pump = speed * (10.0 - 10.0 * cos - 0.5 * speed**2)
        torque = jnp.where(cos > 0.9, -10.0 * angle - 2.0 * speed, pump)
        torque = torque + np.float32(noise) * jax.vmap(jax.random.normal)(keys)
        return jnp.clip(torque, -2.0, 2.0)[:, None].astype(jnp.float32)

    return act


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted.

    Attributes:
      env_id: the real environment.
      env: the simulator's equations.
      cause: what is wrong there, by the report's name; None: nothing.
      inside: observations `[N, D]` -> bool `[N]`, where.
      policies: the panel.
      explained: which of them the report explains.
    """

    env_id: str
    env: Any
    cause: str | None
    inside: Callable[[np.ndarray], np.ndarray]
    policies: dict[str, Any]
    explained: str


BALANCING = {"fair": balance(0.2), "weak": balance(0.5), "poor": balance(1.0)}
FAULTS = {
    "gravity": Fault(
        "CartPole-v1", HeavyWhereTilted(), "dynamics", lambda x: np.abs(x[:, 2]) > BORDER, BALANCING, "weak"
    ),
    "reward": Fault(
        "Pendulum-v1",
        CheapInAQuarter(),
        "reward",
        lambda x: (x[:, 0] > 0) & (x[:, 1] > 0),
        {"clean": swing(0.0), "rough": swing(2.0), "wild": swing(6.0)},
        "rough",
    ),
    "none": Fault("CartPole-v1", CartPoleFunctional(), None, lambda x: np.zeros(len(x), bool), BALANCING, "weak"),
}


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    options = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    done = {(row["fault"], row["seed"]): row for row in map(json.loads, RESULTS.open())} if RESULTS.exists() else {}
    for seed in options.seeds:
        for name in options.faults:
            if (name, seed) not in done:
                done[name, seed] = {"fault": name, "seed": seed, **cell(FAULTS[name], seed)}
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[name, seed], allow_nan=False) + "\n")
                print(json.dumps(done[name, seed]), flush=True)
    for name in FAULTS:
        summarise(name, [row for (fault, _), row in done.items() if fault == name])


def cell(fault: Fault, seed: int) -> dict[str, Any]:
    """What the report of one seed says."""
    behaviours = ["random", "linear:0.5"]
    spec, episodes = record(fault.env_id, behaviours=behaviours, episodes=100, seed=seed)
    columns = Columns.from_trajectories(episodes)
    true, params = true_dynamics(spec)
    world = known_world(spec, TrueDynamics(fault.env, true.state_of), params, columns)
    report = probe(world, policies=fault.policies, corpus=columns, explain=fault.explained, seed=seed)
    found = report.to_json()["attribution"]
    flat = np.concatenate([np.asarray(t.observations)[:-1] for t in report.episodes[fault.explained]])
    features, names = named_features(flat, observation_names(spec.env_id, flat.shape[1]))
    accused = [r for r in found["regions"] if r["p_adjusted"] is not None and r["p_adjusted"] < 0.05]
    named = (
        np.any([holds(r["rule"], features, names) for r in accused], axis=0) if accused else np.zeros(len(flat), bool)
    )
    inside = fault.inside(flat)
    causes = {name: abs(c["net"]["mean"] or 0.0) for name, c in found["causes"].items()}
    words = {f.topic: f.text for f in findings(report.to_json())}
    return {
        "gap": found["gap"],
        "accused": [[r["rule"], r["net"]["mean"]] for r in accused],
        "recall": float(named[inside].mean()) if inside.any() else None,
        "precision": float(inside[named].mean()) if named.any() else None,
        "visits_inside": float(inside.mean()),
        "border": min((abs(b - BORDER) for b in borders(found["regions"], "|pole angle|")), default=None),
        "cause": max(causes, key=lambda name: causes[name]) if any(causes.values()) else None,
        "cause_right": fault.cause is not None and max(causes, key=lambda name: causes[name]) == fault.cause,
        "said": words.get("where"),
        "seconds": sum(report.seconds.values()),
    }


_CLAUSE = re.compile(r"(?:(-?[\d.]+) < )?(.+?) (<=|>) (-?[\d.]+)")


def holds(rule: str, features: np.ndarray, names: list[str]) -> np.ndarray:
    """Where a rule in the report's words is true, bool `[N]`; clauses on actions are taken as true."""
    out = np.ones(len(features), bool)
    for clause in rule.split(" and ") if rule != "everywhere" else ():
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError(f"the clause {clause!r} of {rule!r} cannot be read")
        if found[2] in names:
            column = features[:, names.index(found[2])]
            out &= (column > float(found[4])) if found[3] == ">" else (column <= float(found[4]))
            out &= True if found[1] is None else column > float(found[1])
    return out


def borders(regions: list[dict[str, Any]], name: str) -> set[float]:
    """Every threshold that the rules put on a number or on its size."""
    found = set()
    for region in regions:
        for clause in region["rule"].split(" and "):
            match = _CLAUSE.fullmatch(clause)
            if match is not None and match[2].strip("|") == name.strip("|"):
                found |= {abs(float(value)) for value in (match[1], match[4]) if value is not None}
    return found


def summarise(name: str, rows: list[dict[str, Any]]) -> None:
    """One line of the table."""
    if not rows:
        return
    count, accused = len(rows), sum(bool(row["accused"]) for row in rows)
    line = f"{name:8s} {count} seeds: a region accused in {accused}, named in the verdict in "
    line += str(sum(row["said"] is not None for row in rows))
    known = [row for row in rows if row["recall"] is not None and row["precision"] is not None]
    if known:
        recall, precision = (np.mean([row[key] for row in known]) for key in ("recall", "precision"))
        line += f", recall {recall:.3f}, precision {precision:.3f}"
        line += f", cause right in {sum(row['cause_right'] for row in rows)}"
    if name == "gravity":
        near = [row["border"] is not None and row["border"] <= 0.02 for row in rows]
        line += f", border within .02 in {sum(near)}"
    print(line)


if __name__ == "__main__":
    main()
