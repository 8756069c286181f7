"""What the tests of scale run in processes of their own, on virtual devices: `python -m` with a name and arguments."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from tests.support import text_corpus, tiny_columns
from worldmodel.corpus import window_batches
from worldmodel.model.step import StepConfig, init_params
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training import TrainingConfig, train
from worldmodel.training.claim import codec_of
from worldmodel.training.loop import initial_state
from worldmodel.training.sharding import Layout
from worldmodel.training.step import as_batch, make_optimizer, make_train_step
from worldmodel.training.text import TEXT_PRESETS, train_texts

DEBUG = StepConfig(
    trunk=TrunkConfig(width=16, layers=1, heads=4, kv_heads=2, mlp=16, window=3),
    chain_hidden=4,
    components=1,
    head_hidden=8,
    members=2,
)
CONFIG = TrainingConfig(
    model=DEBUG, steps=12, batch_size=32, length=7, warmup=3, checkpoint_every=6, log_every=1, evaluation_batches=1
)
ROOT = Path(__file__).parents[2]


def python(name: str, *arguments: str, devices: int = 8, **environment: str) -> subprocess.Popen:
    """Starts `name(*arguments)` of this module on so many virtual devices; optimised less, it compiles sooner."""
    command = [sys.executable, "-c", f"from tests.training.many_devices import *; {name}(*sys.argv[1:])", *arguments]
    flags = "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false"
    environment |= {"JAX_NUM_CPU_DEVICES": str(devices), "XLA_FLAGS": flags}
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen, timeout: float = 900) -> str:
    """The last line that a process printed; it must have ended well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()[-1] if out else ""


def losses(*meshes: str) -> None:
    """Prints the loss of 50 steps on every mesh, as JSON."""
    spec, columns = tiny_columns("Pendulum-v1", episodes=4, seed=3)
    codec = codec_of(spec, columns)
    optimizer = make_optimizer(learning_rate=2e-3, warmup=3, steps=50, weight_decay=1e-4, clip=1.0)
    curves = {}
    for mesh in meshes:
        layout = Layout.of(mesh) if mesh else None
        step = make_train_step(DEBUG, codec, optimizer, layout=layout)
        state = initial_state(init_params(DEBUG, codec, 0), optimizer, layout)
        batches = window_batches(columns, length=7, batch_size=32, seed=0)
        curves[mesh] = []
        for _ in range(50):
            batch = as_batch(next(batches), codec)
            state, metrics = step(state, batch if layout is None else layout.put_batch(batch))
            curves[mesh].append(float(metrics["loss"]))
        assert step._cache_size() == 1, f"{mesh}: compiled {step._cache_size()} times"
        if layout is not None:
            expected = layout.state(state)
            jax.tree.map(lambda x, sharding: x.sharding.is_equivalent_to(sharding, x.ndim) or 1 / 0, state, expected)
    print(json.dumps(curves))


def texts(folder: str, *meshes: str) -> None:
    """Trains on texts on every mesh; prints the largest difference from the first one's weights."""
    small = {"steps": 6, "checkpoint_every": 3, "log_every": 3, "batch_size": 8, "evaluation_batches": 1}
    config = dataclasses.replace(TEXT_PRESETS["debug"], **small)
    corpus = text_corpus(Path(folder) / "corpus", 30)
    weights = []
    for number, mesh in enumerate(meshes):
        world = train_texts(corpus, Path(folder) / str(number), dataclasses.replace(config, mesh=mesh))
        weights.append(jax.tree.leaves(world.dynamics.params))
    pairs = [pair for other in weights[1:] for pair in zip(weights[0], other, strict=True)]
    print(json.dumps(max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)))


def trained(run: str, mesh: str, steps: str = "12", stop: str = "0") -> None:
    """Trains or resumes `run` on a mesh; killed by SIGKILL at step `stop`."""
    spec, columns = tiny_columns("Pendulum-v1", episodes=4, seed=3)
    config = dataclasses.replace(CONFIG, mesh=mesh, steps=int(steps))

    def report(step, values):
        if step == int(stop):
            os.kill(os.getpid(), 9)

    world = train(columns, spec, run, config, held_out=columns, report=report)
    print(json.dumps({"step": world.step, "bits": digest(world.params["members"])}))


def joined(run: str, port: str, process: str, stop: str = "0") -> None:
    """The same as one of two processes, each with its own devices."""
    from worldmodel.training import processes

    processes.start(f"127.0.0.1:{port}", 2, int(process))
    trained(run, "data=2,fsdp=2,tensor=2", stop=stop)


def digest(params) -> list[float]:
    """Numbers that change with any bit."""
    return [float(np.asarray(leaf, np.float64).sum()) for leaf in jax.tree.leaves(params)]
