"""`worldmodel probe`: where a world model can be trusted."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import tyro


@dataclasses.dataclass(frozen=True)
class Options:
    """Compares a world model with logs it never saw and, policy by policy, with the real environment.

    The last policy of the ladder, the run's own, is the one that was optimised in the simulator.

    Example: worldmodel probe runs/quickstart --corpus runs/quickstart/corpus
    """

    run: tyro.conf.Positional[pathlib.Path]
    """Run folder of the world model."""
    real: str | None = None
    """Gymnasium id of the real environment; by default the one the logs came from."""
    corpus: pathlib.Path | None = None
    """Corpus whose held-out episodes are replayed."""
    policies: bool = True
    """Compare the returns of the run's own policy (policy.npz), graded by noise, in simulation and in reality."""
    episodes: int = 100
    """Real episodes of each policy."""
    sim_episodes: int = 300
    """Simulated episodes of each policy."""
    horizon: int = 50
    """Longest open-loop rollout, in steps."""
    full: bool = False
    """Judge single steps on more transitions, and the samples under each policy too: several times as long."""
    seed: int = 0
    """Of everything drawn."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> dict[str, Any]:
    """Probes; prints and returns the report."""
    from worldmodel.fidelity import FULL, QUICK, probe
    from worldmodel.report import verdict
    from worldmodel.training.checkpoint import load

    world = load(options.run)
    policies = _policies(options, world)
    report = probe(
        world,
        options.real,
        policies=policies,
        corpus=options.corpus,
        episodes=options.episodes,
        sim_episodes=options.sim_episodes,
        horizon=options.horizon,
        seed=options.seed,
        effort=FULL if options.full else QUICK,
        optimised=None if policies is None else list(policies)[-1],
    ).to_json()
    report["verdict"] = verdict(report)
    print(json.dumps(report, allow_nan=False) if options.json else report["verdict"])
    return report


def _policies(options: Options, world: Any) -> dict[str, Any] | None:
    from worldmodel.agents.batch_env import Interface
    from worldmodel.agents.policies import noise_ladder
    from worldmodel.agents.ppo import load_policy

    path = options.run / "policy.npz"
    if not options.policies or not path.exists():
        return None
    return dict(noise_ladder(load_policy(path, Interface(world.spec, world.dynamics.codec))))
