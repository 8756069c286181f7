"""The model against its peers on equal data: likelihood, calibration, and how long an open loop holds.

Command:   python eval/bench_model.py                     (a try: --env CartPole-v1 --seeds 0 --seconds 30)
Data:      100,000 logged transitions of each environment under the default mixture of weak policies, and held-out
           episodes beside them; recorded once, into `--logs`.
Hardware:  2 CPU cores; about 5 minutes a cell: 6 environments x 5 seeds x 2 trained models.
Expected:  eval/README.md.

`ours` is the step model, `pets` an ensemble of five 4x200 Gaussian networks (`worldmodel.fidelity.pets`), `linear` a
ridge regression with normal errors, `persistence` no change with normal errors. The two trained ones get equal seconds,
and one configuration for all environments: no model is tuned to one of them.

NLL: nats per dimension, in units of the observation, of bins of 1e-3 standard deviations, for all models alike. CRPS:
mean over dimensions, in standard deviations, from 19 samples. Coverage: share of truths within the central 90% of the
samples, by dimension. Horizon: mean steps until the open loop of the central prediction, under the logged actions, is
more than half a standard deviation (root mean square over dimensions) away, at most `--horizon`. Intervals of 95%
resample episodes. Rewards and ends are the step model's alone: its peers do not predict ends.

Every cell is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.agents.record import record
from worldmodel.codec import BIN_FRACTION
from worldmodel.corpus import Columns, open_corpus, write_corpus
from worldmodel.fidelity import cluster_mean_interval, crps_fair, divergence_horizon, rmst_interval
from worldmodel.fidelity.pets import fit
from worldmodel.fidelity.replay import draw_starts, gather, open_loop_paths, teacher_forced
from worldmodel.fidelity.single_steps import one_step
from worldmodel.training import WorldModel, train
from worldmodel.training.claim import codec_of
from worldmodel.training.recipes import VECTORS
from worldmodel.trajectory import Spec

RESULTS = Path(__file__).parent / "results" / "bench_model.jsonl"
ENVS = {
    "CartPole-v1": (2_000, 9_000),
    "Acrobot-v1": (330, 8_500),
    "Pendulum-v1": (660, 9_000),
    "Hopper-v5": (4_500, 8_000),
    "HalfCheetah-v5": (132, 6_500),
    "Walker2d-v5": (6_000, 6_500),
}
"""Of each environment: episodes that hold more than enough transitions, and train steps that fit into three minutes."""
MODELS = ("ours", "pets", "linear", "persistence")
TRANSITIONS, HELD_OUT = 100_000, 10_000
OWN = ("termination", "reward_mae", "reward_scale")
SAMPLES, STARTS, TESTED, THRESHOLD = 19, 250, 200, 0.5
CONFIG = dataclasses.replace(VECTORS, checkpoint_every=100_000)


class Rows(NamedTuple):
    """Transitions of `T` steps of `E` episodes: obs `[T+1, E, D]`, inputs `[T, E, F]`, real bool `[T, E]`."""

    obs: np.ndarray
    inputs: np.ndarray
    real: np.ndarray


class Said(NamedTuple):
    """What a model said of `N` transitions: nats `[N]`, samples `[SAMPLES, N, D]`, central `[N, D]`."""

    nats: np.ndarray
    samples: np.ndarray
    central: np.ndarray


def main() -> None:
    """Runs the cells that are missing and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=list(ENVS), default=list(ENVS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=180.0, help="of training a model")
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--logs", type=Path, default=Path("corpora") / "bench_model")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for seed in options.seeds:
        for env in options.env:
            for model in options.models:
                key = {"env": env, "model": model, "seed": seed, "seconds": options.seconds}
                if any(key.items() <= row.items() for row in done):
                    continue
                row = {**key, **cell(env, model, seed, options.seconds, options.horizon, options.logs)}
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
                done.append(row)
    print(table([row for row in done if row["seconds"] == options.seconds]))


def logs_of(env: str, folder: Path) -> tuple[Spec, Columns, Columns]:
    """The spec, `TRANSITIONS` logged transitions, and `HELD_OUT` of other episodes."""
    path = folder / env
    if not (path / "manifest.json").exists():
        spec, episodes = record(env, behaviours=DEFAULT_BEHAVIOURS, episodes=ENVS[env][0], seed=0)
        write_corpus(path, spec, episodes, provenance={"made_by": "bench_model"})
    corpus = open_corpus(path)
    everything = corpus.stored().columns()
    order = np.random.default_rng(0).permutation(everything.episodes)
    ends = np.cumsum(everything.lengths[order])
    test, shown = order[ends <= HELD_OUT], order[(ends > HELD_OUT) & (ends <= HELD_OUT + TRANSITIONS)]
    if ends[-1] < HELD_OUT + TRANSITIONS:
        raise SystemExit(f"{path} holds {ends[-1]} transitions; {HELD_OUT + TRANSITIONS} are needed")
    shown, test = (Columns.from_trajectories(everything.episode(int(i)) for i in side) for side in (shown, test))
    return corpus.spec, shown, test


def cell(env: str, model: str, seed: int, seconds: float, horizon: int, folder: Path) -> dict[str, Any]:
    """Trains one model and measures it."""
    spec, shown, test = logs_of(env, folder)
    codec = codec_of(spec, shown)
    active = np.array(codec.observation.active)
    scale = shown.observations.astype(np.float64).std(axis=0)
    rng = np.random.default_rng([seed, 5])
    picked = np.sort(rng.choice(test.episodes, min(TESTED, test.episodes), replace=False))
    steps = int(min(test.lengths[picked].max(), horizon))
    replay = gather(test, picked, np.zeros(len(picked), np.int64), steps)
    lengths = np.sort(test.lengths)
    reach = int(min(horizon, lengths[-max(len(lengths) // 10, 2)]))
    starts, first = draw_starts(test, reach, STARTS, seed)
    after = gather(test, starts, first, reach)

    def rows(replay: Any) -> Rows:
        features = np.asarray(codec.action.features(replay.action), np.float32)
        return Rows(replay.obs, np.concatenate([replay.obs[:-1], features], axis=-1), replay.real)

    begun, extra = time.monotonic(), {}
    if model == "ours":
        with tempfile.TemporaryDirectory() as run:
            config = dataclasses.replace(CONFIG, steps=ENVS[env][1], seed=seed)
            world = train(shown, spec, Path(run) / "run", config)
            spent, window = time.monotonic() - begun, world.dynamics.config.trunk.window - 1
            before = gather(test, starts, first - window, window)
            said, paths = ours(world, replay, seed), open_loop_paths(world, before, after, seed)[0].mean(axis=1)
            report = one_step(world, test, seed)
            extra = {"steps": world.step, **{name: report[name] for name in OWN}}
    else:
        t = shown.transitions()
        inputs = np.concatenate([t.obs, np.asarray(codec.action.features(t.actions))], axis=-1).astype(np.float32)
        change = (t.next_obs.astype(np.float64) - t.obs).astype(np.float32)
        predict = peer(model, inputs, change, t.episode, seed, seconds)
        spent = time.monotonic() - begun
        said, paths = peers(predict, rows(replay), scale, seed), looped(predict, rows(after))
    found = measures(said, replay, scale, active) | loop(paths, after, scale, seed)
    return {"train_seconds": round(spent, 1), **found, **extra}


def ours(world: WorldModel, replay: Any, seed: int) -> Said:
    """The step model's nats under the members' mixture, samples of random members, and central prediction."""
    forced, real = teacher_forced(world, replay, seed), replay.real
    nats = np.asarray(logsumexp(jnp.asarray(forced.log_prob), axis=1)) - np.log(world.dynamics.members)
    return Said(nats[real], _drawn(world, replay, seed)[:, real], forced.prediction.mean(axis=1)[real])


def _drawn(world: WorldModel, replay: Any, seed: int) -> np.ndarray:
    """Samples `[SAMPLES, T, E, D]` of each transition, each of a member drawn at random."""
    dynamics, params, count = world.dynamics, world.params, replay.real.shape[1]

    @jax.jit
    def run(key, obs, action, reward, terminated, first):
        def body(state, now):
            action, obs, reward, terminated, key = now

            def draw(key):
                member_key, step_key = jax.random.split(key)
                member = jax.random.randint(member_key, (count,), 0, dynamics.members)
                chosen = dataclasses.replace(state, member=member)
                return dynamics.advance(params, chosen, action, jax.random.split(step_key, count))[1]

            drawn = jax.vmap(draw)(jax.random.split(key, SAMPLES))
            return dynamics.observe(params, state, action, obs, reward, terminated), drawn

        state, _ = dynamics.start_at(params, jax.random.split(key, count), *first)
        keys = jax.random.split(key, len(reward))
        return jax.lax.scan(body, state, (action, obs[1:], reward, terminated, keys))[1]

    first = replay.beginning(dynamics)
    drawn = run(jax.random.key(seed), replay.obs, replay.action, replay.reward, replay.terminated, first)
    return np.swapaxes(np.asarray(drawn), 0, 1)


def peer(
    model: str, inputs: np.ndarray, change: np.ndarray, episode: np.ndarray, seed: int, seconds: float
) -> Callable:
    """`inputs [N, F] -> mean, deviation` of the change, `[M, N, D]` each."""
    if model == "pets":
        return jax.jit(fit(inputs, change, episode, seed, seconds).predict)
    ones = np.ones((len(inputs), 1))
    if model == "persistence":
        weights = np.zeros((inputs.shape[1] + 1, change.shape[1]))
        weights[-1] = change.mean(axis=0)
    else:
        whole = np.concatenate([inputs, ones], axis=1).astype(np.float64)
        ridge = 1e-6 * len(whole) * np.eye(whole.shape[1])
        weights = np.linalg.solve(whole.T @ whole + ridge, whole.T @ change)
    weights = weights.astype(np.float32)
    spread = (change - (inputs @ weights[:-1] + weights[-1])).std(axis=0) + 1e-12

    def predict(inputs):
        mean = (jnp.asarray(inputs) @ weights[:-1] + weights[-1])[None]
        return mean, jnp.broadcast_to(jnp.asarray(spread), mean.shape)

    return jax.jit(predict)


def peers(predict: Callable, rows: Rows, scale: np.ndarray, seed: int) -> Said:
    """The same of a model of normal distributions, mixed over its members."""
    real = rows.real
    mean, deviation = map(np.asarray, predict(rows.inputs[real]))
    before, after = rows.obs[:-1][real], rows.obs[1:][real]
    half, apart = 0.5 * BIN_FRACTION * scale, np.abs((after - before).astype(np.float64) - mean)
    low, high = -(apart + half) / deviation, -(apart - half) / deviation
    upper, lower = log_ndtr(jnp.asarray(high)), log_ndtr(jnp.asarray(low))
    nats = upper + jnp.log(-jnp.expm1(jnp.minimum(lower - upper, -1e-12)))
    nats = logsumexp(nats.sum(axis=-1), axis=0) - np.log(len(mean))
    rng = np.random.default_rng(seed)
    member = rng.integers(0, len(mean), size=(SAMPLES, mean.shape[1]))
    place = np.arange(mean.shape[1])
    drawn = mean[member, place] + deviation[member, place] * rng.normal(size=(SAMPLES, *mean.shape[1:]))
    return Said(np.asarray(nats), before + drawn, before + mean.mean(axis=0))


def looped(predict: Callable, rows: Rows) -> np.ndarray:
    """The open loop `[H, E, D]` of the members' average path, each fed with its own central predictions."""
    size = rows.obs.shape[-1]
    members = len(predict(rows.inputs[0])[0])
    state = np.repeat(rows.obs[:1], members, axis=0)
    path = []
    for inputs in rows.inputs:
        means = [
            predict(np.concatenate([s, inputs[:, size:]], axis=1).astype(np.float32))[0][m] for m, s in enumerate(state)
        ]
        state = state + np.stack(means)
        path.append(state.mean(axis=0))
    return np.stack(path)


def measures(said: Said, replay: Any, scale: np.ndarray, active: np.ndarray) -> dict[str, Any]:
    """One-step measures of the dimensions that change, with intervals over episodes."""
    real = replay.real
    ids = np.broadcast_to(replay.episode, real.shape)[real]
    truth, before = replay.obs[1:][real].astype(np.float64), replay.obs[:-1][real].astype(np.float64)
    width = np.log(BIN_FRACTION * scale[active]).mean()
    nll = cluster_mean_interval(width - said.nats / active.sum(), ids, 0)
    crps = np.mean([crps_fair(said.samples[:, :, d], truth[:, d]) / scale[d] for d in np.flatnonzero(active)], axis=0)
    chance = np.random.default_rng(0).uniform(size=truth.shape)
    below, equal = (said.samples < truth).sum(axis=0), (said.samples == truth).sum(axis=0)
    inside = np.abs((below + chance * (1 + equal)) / (SAMPLES + 1) - 0.5) <= 0.45
    spread = (truth - before).std(axis=0)[active]
    error = np.sqrt(np.mean((said.central - truth)[:, active] ** 2, axis=0)) / spread
    return {
        "nll": nll.to_json(),
        "crps": cluster_mean_interval(crps, ids, 0).to_json(),
        "coverage": inside.mean(axis=0)[active].round(4).tolist(),
        "nrmse": round(float(error.mean()), 5),
        "transitions": int(real.sum()),
    }


def loop(paths: np.ndarray, after: Any, scale: np.ndarray, seed: int) -> dict[str, Any]:
    """How long the open loop holds."""
    moving = scale > 1e-9
    apart = (paths - after.obs[1:])[..., moving] / scale[moving]
    errors = np.nan_to_num(np.sqrt(np.mean(apart**2, axis=-1)), nan=np.inf).T
    held = rmst_interval(*divergence_horizon(errors, THRESHOLD), after.episode, seed)
    return {"horizon": held.to_json(), "horizon_at_most": errors.shape[1]}


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: means over seeds, and their extremes."""
    lines = [
        "| environment | model | seeds | NLL per dim | CRPS | 90% intervals cover (least, most) | NRMSE | horizon |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def spread(values: list[float], digits: int) -> str:
        return f"{np.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    for env in ENVS:
        for model in MODELS:
            own = [c for c in cells if (c["env"], c["model"]) == (env, model)]
            if not own:
                continue
            cover = np.array([c["coverage"] for c in own])
            lines.append(
                f"| {env} | {model} | {len(own)} | {spread([c['nll']['mean'] for c in own], 2)} | "
                f"{spread([c['crps']['mean'] for c in own], 4)} | "
                f"{cover.mean():.3f} ({cover.mean(axis=0).min():.3f}, {cover.mean(axis=0).max():.3f}) | "
                f"{spread([c['nrmse'] for c in own], 3)} | {spread([c['horizon']['mean'] for c in own], 1)} of "
                f"{own[0]['horizon_at_most']} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
