"""From real logs to a policy that works outside, and a report that says how far to trust what it was trained in.

Records logs of a real environment, trains a world model on them, trains a policy inside it only, deploys the policy
in reality, and probes the world model. Everything a run makes lies in one folder; the same call resumes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from worldmodel.agents.batch_env import Interface, RealBatch, SimulatedBatch
from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.agents.counting import StepLedger, every_step_counted
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.policies import graded_panel
from worldmodel.agents.ppo import PPOConfig, TrainingResult, save_policy, train_ppo
from worldmodel.agents.record import rebuild_env, record
from worldmodel.codec import check_spec
from worldmodel.corpus import Corpus, open_corpus, write_corpus
from worldmodel.corpus.summary import headline
from worldmodel.fidelity import json_safe, mean_interval, paired_rollout, probe, simulated_returns
from worldmodel.fidelity.probing import SECTIONS
from worldmodel.perturbations import Perturbations, PerturbedDynamics
from worldmodel.report import Evidence, verdict, write_hero, write_report
from worldmodel.report.pair import evidence_of
from worldmodel.report.versions import versions
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Dynamics, Simulator
from worldmodel.training import TrainingConfig, WorldModel, train
from worldmodel.training.calibration import calibrated
from worldmodel.trajectory import Spec

AFTER_LOGS = "after_logs"
"""The ledger's name for real steps between the logs and the evaluation."""

DEPLOYMENT_SEED = 1_000_000
"""Added to the run's seed: real episodes of the final evaluation start where no logged episode did. Runs of
neighbouring seeds share most of these starts, as common random numbers."""

PANEL_SEED = 2_000_000
"""The same for the panel of policies."""


@dataclasses.dataclass(frozen=True)
class QuickstartConfig:
    """Everything that decides a quickstart's result.

    `same_budget_envs` is the number of environments that the comparison on few real steps runs in parallel: fewer
    than in simulation, so that it gets enough updates out of them.
    """

    env: str = "CartPole-v1"
    seed: int = 0
    episodes: int = 300
    behaviours: tuple[str, ...] = DEFAULT_BEHAVIOURS
    training: TrainingConfig = TrainingConfig(steps=1_500)
    policy: PPOConfig = PPOConfig()
    same_budget_envs: int = 8
    deployment_episodes: int = 100
    panel_episodes: int = 50
    simulated_episodes: int = 300


def quick(config: QuickstartConfig) -> QuickstartConfig:
    """The same pipeline at a size that takes about a minute: for tests and first tries."""
    return dataclasses.replace(
        config,
        episodes=60,
        training=dataclasses.replace(config.training, steps=200, checkpoint_every=100),
        policy=dataclasses.replace(config.policy, total_steps=24_000, num_envs=24, num_minibatches=4),
        deployment_episodes=10,
        panel_episodes=5,
        simulated_episodes=12,
    )


class Timer:
    """Seconds per phase."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Books the body's seconds on `phase`."""
        started = time.monotonic()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started


Say = Callable[[str], None]
"""Takes one line about what happens next."""


def quickstart(
    config: QuickstartConfig, out: Path, *, say: Say = lambda line: None, training_report: Any = None
) -> dict[str, Any]:
    """Runs the whole, and returns the content of `report.json`; `report.html` and `picture.png` lie beside it in `out`.

    Raises `ValueError` or `FileNotFoundError` with one clear line for an unknown environment, a space that is not
    supported, or a folder made with another configuration.
    """
    timer, ledger = Timer(), StepLedger()
    started = time.monotonic()
    with timer("record"):
        corpus = _logs(config, out / "corpus", ledger, say)
    with _no_real_step(corpus.spec, ledger):
        with timer("train"):
            say(f"training a world model on {corpus.transitions:,} logged transitions")
            training = dataclasses.replace(config.training, seed=config.seed)
            world = train(corpus.columns("train"), corpus.spec, out, training, report=training_report)
            world = calibrated(world, corpus.columns("held_out"))
        with timer("policy"):
            steps = config.policy.iterations * config.policy.iteration_steps
            say(f"training a policy inside it: {steps:,} imagined steps, no real one")
            simulated = train_in_simulation(world, config.policy, seed=config.seed)
            save_policy(out / "policy.npz", simulated.policies[-1])
    with timer("comparison"):
        say("training the same learner in reality, for comparison")
        few = dataclasses.replace(
            config.policy, num_envs=config.same_budget_envs, total_steps=corpus.transitions, evaluations=1
        )
        arms = {
            "real_trained_same_budget_return": train_in_reality(world, few, ledger, seed=config.seed),
            "real_trained_full_return": train_in_reality(world, config.policy, ledger, seed=config.seed),
        }
    with timer("probe"):
        say("deploying the policies in reality and probing the world model")
        report, evidence = _measure(config, corpus, world, simulated, arms, ledger)
    report["transfer"]["real_steps_after_logs"] = ledger.count(AFTER_LOGS)
    report["transfer"]["real_steps"] = ledger.to_json()
    report["timings"] = {**timer.seconds, "total": time.monotonic() - started}
    report["verdict"] = verdict(report)
    report = json_safe(report)
    write_report(out, report, evidence)
    write_hero(out / "picture.png", report, evidence)
    return report


@contextlib.contextmanager
def _no_real_step(spec: Spec, ledger: StepLedger) -> Iterator[None]:
    """Counts, on `AFTER_LOGS`, every real step that the body takes: there should be none."""
    env = rebuild_env(spec)
    try:
        with every_step_counted(env, ledger, AFTER_LOGS):
            yield
    finally:
        env.close()


def train_in_simulation(
    world: WorldModel, config: PPOConfig, *, seed: int, perturb: Perturbations | None = None
) -> TrainingResult:
    """Trains PPO in the world model; each member of the ensemble rules an equal share of the environments.

    `perturb` disturbs them.
    """
    dynamics: Dynamics = dataclasses.replace(world.dynamics, grouped=True)
    if perturb is not None:
        dynamics = PerturbedDynamics(dynamics, perturb, world.dynamics.codec)
    simulator = Simulator(dynamics, world.spec.max_episode_steps or DEFAULT_TIME_LIMIT)
    env = SimulatedBatch(Interface(world.spec, world.dynamics.codec), simulator)
    return train_ppo(env, config, params=world.params, key=jax.random.key(seed))


def train_in_reality(world: WorldModel, config: PPOConfig, ledger: StepLedger, *, seed: int) -> TrainingResult:
    """Trains the same PPO in the real environment; its steps are booked on "comparison"."""
    interface = Interface(world.spec, world.dynamics.codec)
    env = RealBatch(interface, config.num_envs, ledger=ledger, phase="comparison", seed=seed)
    try:
        return train_ppo(env, config, params=None, key=jax.random.key(seed))
    finally:
        env.close()


def _logs(config: QuickstartConfig, path: Path, ledger: StepLedger, say: Say) -> Corpus:
    """Records the logs, or takes those that an earlier start of the same run recorded."""
    wanted = {
        "made_by": "worldmodel quickstart",
        "env_id": config.env,
        "policies": list(config.behaviours),
        "episodes": config.episodes,
        "seed": config.seed,
    }
    if (path / "manifest.json").exists():
        corpus = open_corpus(path)
        found = {name: corpus.provenance.get(name) for name in wanted}
        if found != wanted:
            different = [f"{n} is {found[n]!r} there, {wanted[n]!r} here" for n in wanted if found[n] != wanted[n]]
            raise ValueError(f"{path} holds other logs: {'; '.join(different)}")
        ledger.add("logs", corpus.transitions)
        say(f"taking the {corpus.episodes} logged episodes in {path}")
        return corpus
    say(f"recording {config.episodes} episodes of {config.env} under {', '.join(config.behaviours)}")
    spec, trajectories = record(
        config.env, behaviours=config.behaviours, episodes=config.episodes, seed=config.seed, ledger=ledger
    )
    check_spec(spec)
    return write_corpus(path, spec, trajectories, provenance=wanted)


def _measure(
    config: QuickstartConfig,
    corpus: Corpus,
    world: WorldModel,
    simulated: TrainingResult,
    arms: Mapping[str, TrainingResult],
    ledger: StepLedger,
) -> tuple[dict[str, Any], Evidence]:
    """Every number of the report, and the pair of rollouts that it shows."""
    policies = graded_panel(simulated)
    final = policies["final"]  # the panel's form of it, so that it compiles once for all that follows
    deploy = {"episodes": config.deployment_episodes, "seed": config.seed + DEPLOYMENT_SEED, "ledger": ledger}
    deployed = real_episodes(world.spec, final, **deploy)
    transfer = {
        "behaviour_return": mean_interval(corpus.columns().returns).to_json(),
        "sim_trained_real_return": mean_interval([episode.total_reward for episode in deployed]).to_json(),
        "sim_trained_sim_return": mean_interval(
            simulated_returns(world, final, episodes=config.simulated_episodes, seed=config.seed)
        ).to_json(),
    }
    for name, result in arms.items():
        episodes = real_episodes(world.spec, result.policies[-1], **deploy)
        transfer[name] = mean_interval([episode.total_reward for episode in episodes]).to_json()
    probed = probe(
        world,
        policies=policies,
        corpus=corpus,
        sim_episodes=config.simulated_episodes,
        episodes=config.panel_episodes,
        seed=config.seed + PANEL_SEED,
        ledger=ledger,
        optimised="final",
    )
    found = probed.to_json()
    report = {
        "env_id": config.env,
        "seed": config.seed,
        "versions": versions(),
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "corpus": headline(corpus),
        **{name: found[name] for name in (*SECTIONS, "why")},
        "transfer": transfer,
        "training": _loss_curve(world.run / "metrics.jsonl"),
        "policy_training": {
            "steps": [int(step) for step in simulated.steps],
            "sim_return": [None if math.isnan(value) else float(value) for value in simulated.train_return],
            "note": "Mean return of the imagined episodes that ended in each share of training, while exploring; "
            "null where none ended.",
        },
    }
    return report, evidence_of(world.spec, paired_rollout(world, final, deployed[0], seed=config.seed))


def _loss_curve(path: Path) -> dict[str, list[Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {"steps": [row["step"] for row in rows], "loss": [row["nll"] for row in rows]}
