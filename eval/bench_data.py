"""How fast is a corpus read and fed to training, and does memory stay where it is while corpora grow?

Command:   python eval/bench_data.py            (a try of a minute: --small-gb 0.02 --large-gb 0.1 --batches 50)
Hardware:  2 CPU cores, 7 GB of free disk below --work.
Time:      about 15 minutes, most of them to write the 5 GB.
Expected:  eval/results/bench_data.json, in words in eval/README.md.

One corpus of episodes of 500 steps, a 17-d observation and a 6-d action (the sizes of HalfCheetah), of float32 noise,
which does not compress. `read`: every episode of it, its checksum included, against the steps of plain TFDS. `feed`:
batches of 64 shuffled windows of 64 steps from disk, against train steps of the small model (width 256, 4 layers, 3.3 M
parameters) on such batches. `memory`: a process that does nothing but run the pipeline, over the end of an epoch, on
this corpus and on one of 5 GB: `peak` is the largest resident set (VmHWM; ru_maxrss would begin at the parent's, and
mapped files are in both), `anonymous` the part of it that is no file (RssAnon).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.corpus import Corpus, open_corpus, window_batches, write_corpus
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

RESULTS = Path(__file__).parent / "results" / "bench_data.json"
STEPS, OBSERVATION, ACTION = 500, 17, 6
LENGTH, BATCH = 64, 64
EPISODE_BYTES = 45_600  # as stored, measured
SPEC = Spec(box((OBSERVATION,), "float32"), box((ACTION,), "float32", -1, 1))


def main() -> int:
    """Prints the table, or with --json the object; 1 where a figure falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small-gb", type=float, default=0.2, help="size of the first corpus, 10^9 bytes")
    parser.add_argument("--large-gb", type=float, default=5.0, help="size of the second")
    parser.add_argument("--plain-episodes", type=int, default=200, help="episodes that plain TFDS reads")
    parser.add_argument("--batches", type=int, default=1_000, help="of the pipeline, timed and in each memory process")
    parser.add_argument("--train-steps", type=int, default=5, help="timed train steps")
    parser.add_argument("--work", type=Path, default=None, help="folder for the corpora, removed afterwards")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the result")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--memory-of", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    if options.memory_of is not None:
        print(json.dumps(memory_of(options.memory_of, options.batches)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        result = measure(Path(folder), options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result) if options.json else table(result))
    return 0 if all(result[name]["passes"] for name in ("read", "feed", "memory")) else 1


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Writes the corpora below `folder` and measures on them."""
    needed = 1.2e9 * (options.small_gb + options.large_gb)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(f"{folder}: has {free / 1e9:.1f} GB free; {needed / 1e9:.1f} GB are needed")
    small, small_write = write(folder / "small", options.small_gb)
    say(f"wrote {small_write['gigabytes']:.2f} GB")
    result: dict[str, Any] = {"hardware": hardware(), "corpus": small_write}
    result["read"] = read(small, options.plain_episodes)
    say(f"read: {result['read']['ratio']:.0f} times plain TFDS")
    result["feed"] = feed(small, options.batches, options.train_steps)
    say(f"feed: {result['feed']['ratio']:.0f} times what training consumes")
    before = measured_apart(small.path, options.batches)
    _, large_write = write(folder / "large", options.large_gb)
    say(f"wrote {large_write['gigabytes']:.2f} GB")
    after = measured_apart(folder / "large", options.batches)
    growth = {name: after[name] / before[name] - 1 for name in ("peak", "anonymous")}
    result["memory"] = {
        "small": {"gigabytes": small_write["gigabytes"], **before},
        "large": {"gigabytes": large_write["gigabytes"], **after},
        "growth": growth,
        "most": 0.1,
        "passes": max(growth.values()) < 0.1,
    }
    return result


def write(path: Path, gigabytes: float) -> tuple[Corpus, dict[str, Any]]:
    """A corpus of about this size, and how long it took."""
    episodes = max(20, round(gigabytes * 1e9 / EPISODE_BYTES))
    start = time.perf_counter()
    corpus = write_corpus(path, SPEC, noise(episodes), provenance={"made_by": "eval/bench_data.py"})
    seconds = time.perf_counter() - start
    size = sum(part.bytes for part in corpus.manifest.parts)
    return corpus, {
        "episodes": episodes,
        "transitions": corpus.transitions,
        "gigabytes": size / 1e9,
        "write_steps_per_second": corpus.transitions / seconds,
    }


def noise(episodes: int) -> Iterator[Trajectory]:
    """Episodes of noise, by two policies in turn."""
    for index in range(episodes):
        rng = np.random.default_rng(index)
        yield Trajectory(
            observations=rng.standard_normal((STEPS + 1, OBSERVATION), np.float32),
            actions=rng.random((STEPS, ACTION), np.float32) * 2 - 1,
            rewards=rng.standard_normal(STEPS, np.float32),
            terminated=False,
            truncated=True,
            info={"id": f"noise-{index:07d}", "policy": f"noise-{index % 2}", "seed": index},
        )


def read(corpus: Corpus, plain_episodes: int) -> dict[str, Any]:
    """Transitions a second of iterating the corpus, and of plain TFDS, both from the page cache."""
    start = time.perf_counter()
    steps = sum(len(episode) for episode in open_corpus(corpus.path))
    ours = steps / (time.perf_counter() - start)

    import tensorflow_datasets as tfds

    part = corpus.path / "parts" / corpus.manifest.parts[0].name
    builder: Any = tfds.builder_from_directory(os.fspath(part))
    source = builder.as_data_source(split="train")
    next(iter(source[0]["steps"]))  # imports and first uses are not timed
    start = time.perf_counter()
    rows = sum(1 for i in range(min(plain_episodes, len(source))) for _ in source[i]["steps"])
    plain = rows / (time.perf_counter() - start)
    ratio = ours / plain
    return {"steps_per_second": ours, "plain_tfds": plain, "ratio": ratio, "least": 10, "passes": ratio >= 10}


def feed(corpus: Corpus, batches: int, train_steps: int) -> dict[str, Any]:
    """Batches a second of the pipeline from disk, and train steps a second of the small model on such a batch."""
    from worldmodel.model.step import StepConfig, init_params
    from worldmodel.model.transformer import TrunkConfig
    from worldmodel.training import TrainingConfig
    from worldmodel.training.claim import codec_of
    from worldmodel.training.program import program
    from worldmodel.training.step import TrainState, as_batch

    iterator = pipeline(corpus)
    batch = next(iterator)
    start = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    delivered = batches / (time.perf_counter() - start)
    del iterator

    import jax
    import jax.numpy as jnp

    trunk = TrunkConfig(width=256, layers=4, heads=8, kv_heads=4, mlp=736, window=LENGTH)
    config = TrainingConfig(model=StepConfig(trunk=trunk, members=1), batch_size=BATCH, length=LENGTH)
    codec = codec_of(SPEC, corpus.stored(keep=np.arange(corpus.episodes) < 20).columns())
    params = init_params(config.model, codec, config.seed)
    optimizer, train_step = program(config, codec)
    state = TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    state, metrics = train_step(state, as_batch(batch, codec))  # compiles
    jax.block_until_ready(metrics)
    start = time.perf_counter()
    for _ in range(train_steps):
        state, metrics = train_step(state, as_batch(batch, codec))
        jax.block_until_ready(metrics)
    consumed = train_steps / (time.perf_counter() - start)
    ratio = delivered / consumed
    return {
        "batches_per_second": delivered,
        "transitions_per_second": delivered * LENGTH * BATCH,
        "train_steps_per_second": consumed,
        "parameters": parameters,
        "window": LENGTH,
        "batch": BATCH,
        "ratio": ratio,
        "least": 5,
        "passes": ratio >= 5,
    }


def pipeline(corpus: Corpus) -> Any:
    """What training reads: shuffled windows of the train split, from disk."""
    return window_batches(corpus.stored("train"), length=LENGTH, batch_size=BATCH, seed=0)


def measured_apart(path: Path, batches: int) -> dict[str, float]:
    """`memory_of` in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", os.fspath(path), "--batches", str(batches)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def memory_of(path: Path, batches: int) -> dict[str, float]:
    """Most memory of this process, in megabytes, while it reads half of the batches on each side of an epoch's end."""
    iterator = pipeline(open_corpus(path))
    next(iterator)
    state = iterator.get_state()
    windows = np.ceil((open_corpus(path).stored("train").lengths + LENGTH / 2) / LENGTH).sum()  # on average
    state["next_index"] = max(0, int(windows / BATCH) - batches // 2)
    iterator.set_state(state)
    anonymous = 0.0
    for index in range(batches):
        next(iterator)
        if index % 10 == 0:
            anonymous = max(anonymous, resident("RssAnon"))
    return {"peak": resident("VmHWM"), "anonymous": max(anonymous, resident("RssAnon"))}


def resident(name: str) -> float:
    """A line of /proc/self/status, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) / 1e3
    raise SystemExit(f"/proc/self/status has no {name}; memory is measured on Linux")


def hardware() -> dict[str, Any]:
    """What it ran on."""
    return {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}


def table(result: dict[str, Any]) -> str:
    """The result as lines of text."""
    read_, feed_, memory = result["read"], result["feed"], result["memory"]
    small, large = memory["small"], memory["large"]
    rows = [
        ("", "ours", "against", "ratio", "needed"),
        (
            "read, steps/s",
            f"{read_['steps_per_second']:,.0f}",
            f"plain TFDS {read_['plain_tfds']:,.0f}",
            f"{read_['ratio']:.1f}",
            f">= {read_['least']}",
        ),
        (
            "feed, batches/s",
            f"{feed_['batches_per_second']:,.1f}",
            f"train steps {feed_['train_steps_per_second']:,.2f} ({feed_['parameters'] / 1e6:.1f} M)",
            f"{feed_['ratio']:.1f}",
            f">= {feed_['least']}",
        ),
        *[
            (
                f"memory, {name}, MB",
                f"{large[name]:,.0f} at {large['gigabytes']:.2f} GB",
                f"{small[name]:,.0f} at {small['gigabytes']:.2f} GB",
                f"{1 + memory['growth'][name]:.3f}",
                f"< {1 + memory['most']:.1f}",
            )
            for name in ("peak", "anonymous")
        ],
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
