"""The probe: where, and how far, a simulator may be trusted. Joins one step, many steps and the panel of policies."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.record import make_env
from worldmodel.certificate import Certificate
from worldmodel.corpus.columns import Columns
from worldmodel.corpus.read import Corpus, open_corpus
from worldmodel.fidelity.certify import certify, trust_region_json
from worldmodel.fidelity.effort import QUICK, Effort
from worldmodel.fidelity.estimates import json_safe
from worldmodel.fidelity.gap import explain_gap
from worldmodel.fidelity.invariants import Invariant, check_invariants
from worldmodel.fidelity.policy_panel import panel
from worldmodel.fidelity.rollout import open_loop
from worldmodel.fidelity.single_steps import MAX_EPISODES, one_step
from worldmodel.fidelity.visits import visits
from worldmodel.simulator import Policy
from worldmodel.training.checkpoint import WorldModel, load
from worldmodel.trajectory import Spec, Trajectory

SECTIONS = ("one_step", "rollout", "trust_region", "policies", "ranking", "visits", "attribution")


@dataclasses.dataclass(frozen=True)
class FidelityReport:
    """What a probe found; sections are plain JSON, None where they could not be formed, and `why` says the reason.

    Attributes:
      env_id: the real environment, or None.
      seed: of samples, starts and episodes.
      one_step: see `single_steps.one_step`.
      rollout: see `rollout.open_loop`.
      trust_region: states in which steps may be trusted, see `certify.certify` and `trust_region_json`.
      policies, ranking: see `panel.panel`.
      attribution: where the gap in return of one policy, `policy`, comes from, see `gap.explain_gap`.
      visits: see `visits.visits`.
      real_steps: real steps taken, by phase.
      seconds: wall-clock time by section; sections overlap.
      why: reason by section.
      episodes: the real episodes behind `policies`, by policy (not in the JSON).
      certificate: what is behind `trust_region` (not in the JSON); `save` leaves it with a run.
    """

    env_id: str | None
    seed: int
    one_step: dict[str, Any] | None
    rollout: dict[str, Any] | None
    trust_region: dict[str, Any] | None
    policies: list[dict[str, Any]] | None
    ranking: dict[str, Any] | None
    attribution: dict[str, Any] | None
    visits: dict[str, Any] | None
    real_steps: Mapping[str, int]
    seconds: Mapping[str, float]
    why: Mapping[str, str]
    episodes: Mapping[str, Sequence[Trajectory]] = dataclasses.field(default_factory=dict, repr=False)
    certificate: Certificate | None = dataclasses.field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON of everything but the episodes."""
        names = ("env_id", "seed", *SECTIONS, "real_steps", "seconds", "why")
        return json_safe({name: getattr(self, name) for name in names})


def probe(
    sim: str | os.PathLike[str] | WorldModel,
    real: str | None = None,
    *,
    policies: Mapping[str, Policy] | None = None,
    corpus: str | os.PathLike[str] | Corpus | Columns | None = None,
    episodes: int = 100,
    sim_episodes: int = 300,
    horizon: int = 50,
    starts: int = 250,
    seed: int = 0,
    explain: str | None = None,
    ledger: StepLedger | None = None,
    effort: Effort = QUICK,
    invariants: Mapping[str, Invariant] | None = None,
    optimised: str | None = None,
    tolerance: float = 0.25,
    risk: float = 0.1,
) -> FidelityReport:
    """Compares a world model with reality.

    Args:
      sim: a run folder, or a loaded `WorldModel`.
      real: id of the real environment; None: the one that the model's logs came from.
      policies: JAX policies by name, at least two for a ranking; None: returns are not compared.
      corpus: logs to replay: a folder or a `Corpus`, of which the held-out episodes are used that a model did not
        imagine, or `Columns`, used whole; None: single and open-loop steps are not measured.
      episodes: real episodes of each policy.
      sim_episodes: simulated episodes of each policy.
      horizon: longest open-loop rollout, in steps.
      starts: number of open-loop rollouts.
      seed: of everything drawn.
      explain: name of the policy whose gap in return is attributed; None: the one with the highest simulated return.
      ledger: where real steps are counted; None: a fresh one.
      effort: `QUICK`, or `FULL`, which takes several times as long over single steps.
      invariants: by name, what must hold of every transition: `(obs, action, next_obs) -> bool [N]`, columns of `N`
        rows. How often it does not is counted in the logs, in every policy's real episodes, and in the simulator.
      optimised: name of the policy that was trained in this simulator, if one was.
      tolerance: error of a step that is allowed where states are certified, see `certify.transition_errors`.
      risk: share of steps that may exceed it there.

    Raises:
      ValueError: logs or real environment have other spaces than the model, the logs are synthetic, an unknown
        environment id, no policy at all, a count below one, an invariant that gives no truth value for each transition,
        an unknown `optimised`, or a policy to explain that is not among them.
      FileNotFoundError: no run or no corpus at the path.
    """
    counts = {"episodes": episodes, "sim_episodes": sim_episodes, "horizon": horizon, "starts": starts}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed")
    if policies is not None and not policies:
        raise ValueError("policies is empty; name at least one, or pass None to leave returns out")
    if explain is not None and explain not in (policies or {}):
        raise ValueError(f"there is no policy {explain!r} to explain; there are {sorted(policies or {})}")
    check_invariants(invariants or {})
    if optimised is not None and optimised not in (policies or {}):
        raise ValueError(f"optimised policy {optimised!r} is unknown; known: {', '.join(policies or {}) or 'none'}")
    world = load(sim) if isinstance(sim, (str, os.PathLike)) else sim
    if not isinstance(world, WorldModel):
        raise ValueError(f"sim is a {type(sim).__name__}; a run folder or a WorldModel is needed")
    spec, columns = _real_spec(world.spec, real), _held_out(corpus, world.spec)
    book = StepLedger() if ledger is None else ledger
    seconds: dict[str, float] = {}
    why: dict[str, str] = {}
    found: dict[str, Any] = dict.fromkeys(SECTIONS)
    run: dict[str, list[Trajectory]] = {}

    def timed(name: str, function, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = function(*args, **kwargs)
        seconds[name] = time.perf_counter() - began
        return result

    # Half of the time goes to the compiler, which leaves cores idle: replay beside the panel.
    with ThreadPoolExecutor(2) as pool:
        replayed, certified = {}, None
        if columns is None:
            why |= dict.fromkeys(("one_step", "rollout", "trust_region"), "no corpus was given")
        elif columns.episodes < 2:
            why["trust_region"] = "states are certified from at least 2 held-out episodes"
        else:
            limits = {"tolerance": tolerance, "risk": risk, "seed": seed}
            batch = min(columns.episodes, MAX_EPISODES)
            certified = pool.submit(
                timed, "trust_region", certify, world, columns, max_episodes=effort.certified, batch=batch, **limits
            )
        if columns is not None:
            options = {"horizon": horizon, "starts": starts, "seed": seed, "ledger": book}
            judged = {"effort": effort, "invariants": invariants}
            replayed["one_step"] = pool.submit(timed, "one_step", one_step, world, columns, seed, **judged)
            replayed["rollout"] = pool.submit(timed, "rollout", open_loop, world, columns, **options)
        if policies is None or spec.env_id is None:
            reason = "no policies were given" if policies is None else "the model's logs name no real environment"
            why |= dict.fromkeys(("policies", "ranking", "visits", "attribution"), reason)
        else:
            run = timed("real_episodes", _evaluate, spec, policies, episodes, seed, book)
            batch = None if columns is None else min(columns.episodes, MAX_EPISODES)
            judged = {"seed": seed, "effort": effort, "invariants": invariants, "batch": batch}
            judged["certificate"] = None if certified is None else certified.result()
            replayed["visits"] = pool.submit(timed, "visits", visits, world, run, **judged)
            result = timed(
                "sim_episodes",
                panel,
                world,
                policies,
                sim_episodes=sim_episodes,
                seed=seed,
                ledger=book,
                already_run=run,
                optimised=optimised,
                paired_members=effort.paired_members,
            )
            found["policies"], found["ranking"] = result["policies"], result["ranking"]
            if "why" in result:
                why["ranking"] = result["why"]
            if episodes < 2:
                why["attribution"] = "a gap is attributed from at least 2 real episodes"
            else:
                means = {own["name"]: own["sim_return"]["mean"] for own in found["policies"]}
                best = max(means, key=lambda name: -math.inf if means[name] is None else means[name])
                name = best if explain is None else explain
                own = timed("attribution", explain_gap, world, policies[name], run[name], seed=seed)
                found["attribution"] = {"policy": name, **own}
        found |= {name: future.result() for name, future in replayed.items()}
        certificate = None if certified is None else certified.result()
    if certificate is not None:
        found["trust_region"] = trust_region_json(certificate)
    return FidelityReport(
        env_id=spec.env_id,
        seed=seed,
        real_steps=book.to_json(),
        seconds=seconds,
        why=why,
        episodes=run,
        certificate=certificate,
        **found,
    )


def _evaluate(
    spec: Spec, policies: Mapping[str, Policy], episodes: int, seed: int, ledger: StepLedger
) -> dict[str, list[Trajectory]]:
    return {
        name: real_episodes(spec, policy, episodes=episodes, seed=seed, ledger=ledger)
        for name, policy in policies.items()
    }


def _real_spec(spec: Spec, real: str | None) -> Spec:
    if real is None or real == spec.env_id:
        return spec
    env = make_env(real)
    try:
        other = Spec.from_gymnasium(env)
    finally:
        env.close()
    for role in ("observation_space", "action_space"):
        if getattr(other, role) != getattr(spec, role):
            raise ValueError(
                f"{role.replace('_', ' ')} of {real} is {getattr(other, role)}; the model's is {getattr(spec, role)}"
            )
    return other


def _held_out(corpus: str | os.PathLike[str] | Corpus | Columns | None, spec: Spec) -> Columns | None:
    if corpus is None:
        return None
    if isinstance(corpus, (str, os.PathLike)):
        corpus = open_corpus(corpus)
    if isinstance(corpus, Columns):
        columns, imagined = corpus, corpus.synthetic.any()
    else:
        synthetic, held = corpus.index.synthetic, corpus.split("held_out")
        imagined = held.any() and synthetic[held].all()
        columns = corpus.columns("held_out", keep=None if imagined else ~synthetic)
    if imagined:
        raise ValueError("corpus: its episodes are synthetic; what a model imagined is no evidence of what is real")
    spec.check(columns.observations, "observation", where="corpus")
    spec.check(columns.actions, "action", where="corpus")
    if not np.isfinite(columns.rewards).all():
        raise ValueError("corpus: a reward is not finite")
    return columns
