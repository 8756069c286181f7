"""Does the model play Breakout in its head? The next picture, rewards and ends, and imagined frames beside real ones.

Command:   python data/atari_breakout.py corpora/breakout && python eval/breakout.py corpora/breakout
Hardware:  2 CPU cores, about 20 minutes.
Expected:  eval/README.md; the frames are in eval/results/breakout.png.

Pixel error: mean over held-out transitions of the share of pixels whose likeliest colour is wrong, against those that
change (nothing changes). F1 of rewards: of steps that pay, where the expected reward is above one half of the least
logged one; of ends: where their probability is above one half; persistence repeats what the step before had. In the
picture, of every two rows the upper one is real, and the lower one what the model imagines by itself from the first of
these frames on: sampled, under the real actions.

The result is one line of JSON in `--out`; training resumes in `--run`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from worldmodel.corpus import Columns, open_corpus
from worldmodel.fidelity import cluster_mean_interval
from worldmodel.fidelity.replay import draw_starts, gather, same_pixels, single_members
from worldmodel.training import WorldModel, train
from worldmodel.training.recipes import RECIPES

RESULTS = Path(__file__).parent / "results"
CONFIG = RECIPES["breakout"]
STEPS, EPISODES, SHOWN, EVERY = 100, 48, 3, 4


def main() -> None:
    """Trains, measures, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--run", type=Path, default=Path("runs") / "breakout")
    parser.add_argument("--steps", type=int, default=CONFIG.steps, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "breakout.jsonl")
    options = parser.parse_args()
    corpus, start = open_corpus(options.corpus), time.monotonic()
    config = dataclasses.replace(CONFIG, steps=options.steps, seed=options.seed)
    world = train(corpus.held("train"), corpus.spec, options.run, config)
    row = {"steps": options.steps, "seed": options.seed, "seconds": round(time.monotonic() - start, 1)}
    test = corpus.stored("held_out").columns()
    row |= one_step(world, test, options.seed)
    with options.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))
    draw(world, test, options.seed, options.out.with_suffix(".png"))


def one_step(world: WorldModel, test: Columns, seed: int) -> dict[str, Any]:
    """Errors of one step on at most `STEPS` steps of `EPISODES` held-out episodes."""
    chosen = np.random.default_rng(seed).permutation(test.episodes)[:EPISODES]
    replay = gather(test, chosen, np.zeros(len(chosen), np.int64), STEPS)
    dynamics, (params,) = single_members(world)

    @jax.jit
    def run(obs, action, reward, terminated, first):
        def body(state, now):
            obs, action, reward, terminated = now
            said, paid, end = dynamics.predict(params, state, action)
            right = same_pixels(dynamics.codec, said[0], obs)
            still = same_pixels(dynamics.codec, state.observation, obs)
            return dynamics.observe(params, state, action, obs, reward, terminated), (right, still, paid[0], end[0])

        state, _ = dynamics.start_at(params, jax.random.split(jax.random.key(seed), len(first[1])), *first)
        return jax.lax.scan(body, state, (obs[1:], action, reward, terminated))[1]

    logs = (replay.obs, replay.action, replay.reward, replay.terminated, replay.beginning(dynamics))
    right, still, paid, end = map(np.asarray, run(*logs))
    real = replay.real
    ids = np.broadcast_to(replay.episode, real.shape)[real]
    pays, ends = replay.reward > 0, replay.terminated & real
    least = replay.reward[pays].min() if pays.any() else 1.0
    before = np.concatenate([np.zeros_like(pays[:1]), pays[:-1]])
    return {
        "transitions": int(real.sum()),
        "pixel_error": cluster_mean_interval(1.0 - right[real], ids, seed).to_json(),
        "persistence_pixel_error": cluster_mean_interval(1.0 - still[real], ids, seed).to_json(),
        "exact": float((right[real] == 1.0).mean()),
        "persistence_exact": float((still[real] == 1.0).mean()),
        "reward_f1": f1((paid > least / 2)[real], pays[real]),
        "persistence_reward_f1": f1(before[real], pays[real]),
        "rewards": int(pays[real].sum()),
        "end_f1": f1((end > 0.5)[real], ends[real]),
        "persistence_end_f1": 0.0,
        "ends": int(ends.sum()),
    }


def f1(said: np.ndarray, true: np.ndarray) -> float:
    """Harmonic mean of precision and recall; 0 where nothing is found."""
    hit = float((said & true).sum())
    return 2.0 * hit / max(float(said.sum() + true.sum()), 1.0)


def draw(world: WorldModel, test: Columns, seed: int, path: Path) -> None:
    """Real frames above imagined ones, every `EVERY`-th of 41 from three held-out starts."""
    steps = 40
    episodes, first = draw_starts(test, steps, SHOWN, seed)
    dynamics, (params,) = single_members(world)
    window = dynamics.config.trunk.window - 1
    before, after = gather(test, episodes, first - window, window), gather(test, episodes, first, steps)

    @jax.jit
    def run(key, obs, action, reward, real, beginning, actions):
        count = len(beginning[1])
        fresh, _ = dynamics.start_at(params, jax.random.split(key, count), *beginning)

        def live(state, now):
            obs, action, reward, real = now
            seen = dynamics.observe(params, state, action, obs, reward, jnp.zeros(count, bool))
            return dynamics.replace_rows(~real, fresh, seen), None

        def imagine(state, now):
            action, key = now
            state, obs, *_ = dynamics.advance(params, state, action, jax.random.split(key, count))
            return state, obs

        state, _ = jax.lax.scan(live, fresh, (obs[1:], action, reward, real))
        return jax.lax.scan(imagine, state, (actions, jax.random.split(key, steps)))[1]

    shown = (before.obs, before.action, before.reward, before.real, before.beginning(dynamics))
    imagined = np.asarray(run(jax.random.key(seed), *shown, after.action))
    rows = []
    for i in range(len(episodes)):
        real = [after.obs[t, i] for t in range(0, steps + 1, EVERY)]
        own = [after.obs[0, i], *(imagined[t - 1, i] for t in range(EVERY, steps + 1, EVERY))]
        rows += [_strip(real), _strip(own)]
    whole = np.concatenate(rows)
    Image.fromarray(whole).resize((whole.shape[1] * 2, whole.shape[0] * 2), Image.Resampling.NEAREST).save(path)


def _strip(frames: list[np.ndarray]) -> np.ndarray:
    """Frames side by side with a white edge."""
    return np.concatenate([np.pad(frame, ((2, 2), (2, 2), (0, 0)), constant_values=255) for frame in frames], axis=1)


if __name__ == "__main__":
    main()
