"""`worldmodel probe`: where a world model can be trusted."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tyro

from worldmodel.cli.report import Require, hold, read_gates


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
    certify: bool = False
    """Leave what is certified in the run folder, for `trust=` of the simulator."""
    require: Require = ()
    """What the report must show, such as "spearman_lo>=0.8" or "trust_horizon>=50"; exit code 1 where it does not.
    Repeat it for more."""
    out: pathlib.Path | None = None
    """Folder for report.json and, where policies were compared, the page report.html."""
    seed: int = 0
    """Of everything drawn."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> dict[str, Any]:
    """Probes; prints and returns the report. `SystemExit(1)` where it does not show what is required."""
    from worldmodel.corpus import open_corpus
    from worldmodel.corpus.summary import headline
    from worldmodel.fidelity import FULL, QUICK, probe
    from worldmodel.report import verdict
    from worldmodel.training.checkpoint import load

    gates = read_gates(options.require)
    world = load(options.run)
    policies = _policies(options, world)
    found = probe(
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
    )
    report = found.to_json()
    if options.certify:
        if found.certificate is None:
            raise ValueError(f"nothing is certified: {found.why['trust_region']}; name held-out logs with --corpus")
        found.certificate.save(options.run)
    report["verdict"] = verdict(report)
    if not options.json:
        print(report["verdict"])
    passed = True
    if gates:
        report["gates"], passed = hold(report, gates, quiet=options.json)
    if options.out is not None:
        if options.corpus is not None:
            report["corpus"] = headline(open_corpus(options.corpus))
        _write(options.out, world, policies, found.episodes, report, options.seed)
    if options.json:
        print(json.dumps(report, allow_nan=False))
    if not passed:
        raise SystemExit(1)
    return report


def _write(
    out: pathlib.Path,
    world: Any,
    policies: Mapping[str, Any] | None,
    episodes: Mapping[str, Any],
    report: dict[str, Any],
    seed: int,
) -> None:
    """The report's files; the page shows the last policy's first real episode beside an imagined one."""
    from worldmodel.report.pair import evidence_of
    from worldmodel.report.versions import versions
    from worldmodel.report.write import write_json, write_report

    whole = {**report, "versions": versions()}
    if not policies or not episodes:
        write_json(out, whole)
        return
    from worldmodel.fidelity import paired_rollout

    name = list(policies)[-1]
    pair = paired_rollout(world, policies[name], episodes[name][0], seed=seed)
    write_report(out, whole, evidence_of(world.spec, pair))


def _policies(options: Options, world: Any) -> dict[str, Any] | None:
    from worldmodel.agents.batch_env import Interface
    from worldmodel.agents.policies import noise_ladder
    from worldmodel.agents.ppo import load_policy

    path = options.run / "policy.npz"
    if not options.policies or not path.exists():
        return None
    return dict(noise_ladder(load_policy(path, Interface(world.spec, world.dynamics.codec))))
