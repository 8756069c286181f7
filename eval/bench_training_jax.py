"""This project's side of `eval/bench_training.py`: a process that trains when told to; jax, flax, optax, numpy.

Command:   python eval/bench_training_jax.py FOLDER, then lines on stdin: `train N` or `ceiling`; JSON answers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldmodel.model.language import language_model
from worldmodel.model.pretrained import load_pretrained
from worldmodel.training.memory import keep_freed_memory
from worldmodel.training.precision import bfloat16_products


def memory(name: str) -> float:
    """A line of /proc/self/status in megabytes; NaN where there is no such file."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{name}:")), float("nan"))


class Training:
    """The model, its optimiser and the batches."""

    def __init__(self, folder: Path):
        options = json.loads((folder / "options.json").read_text())
        self.libraries = memory("VmRSS")
        self.bfloat16 = options["precision"] == "bfloat16"
        self.config, self.params = load_pretrained(folder / "model")
        self.batches = np.load(folder / "batches.npy", mmap_mode="r")
        optimizer = optax.adamw(options["learning_rate"], weight_decay=options["weight_decay"])
        self.state, self.step = jax.jit(optimizer.init)(self.params), 0

        def loss(params: Any, tokens: jax.Array) -> jax.Array:
            model = language_model(self.config, params)
            if self.bfloat16:
                rounded = bfloat16_products(lambda params: language_model(self.config, params).hidden(tokens))
                model.hidden = lambda tokens, segments=None: rounded(params)
            return model.loss(tokens, jnp.ones(tokens.shape, jnp.float32))[0]

        def train_step(params: Any, state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
            value, gradients = jax.value_and_grad(loss)(params, tokens)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        self._train_step = jax.jit(train_step, donate_argnums=(0, 1))

    def train(self, steps: int) -> dict[str, Any]:
        """Seconds and losses of the next steps."""
        losses, began = [], time.perf_counter()
        for _ in range(steps):
            self.params, self.state, loss = self._train_step(self.params, self.state, self.batches[self.step])
            self.step += 1
            losses.append(loss)
        losses = [float(loss) for loss in losses]
        return {"seconds": time.perf_counter() - began, "losses": losses, **self.peak()}

    def peak(self) -> dict[str, float]:
        """Megabytes: the most of this process since it was last asked, the libraries alone, the most on the device."""
        device = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6
        found = {"peak_mb": memory("VmHWM"), "libraries_mb": self.libraries, "device_mb": device}
        if Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
        return found

    def ceiling(self) -> dict[str, Any]:
        """Floating-point operations a second of a plain square product in the same precision."""
        size = 2_048 if jax.default_backend() == "cpu" else 8_192
        square = jnp.ones((size, size), jnp.bfloat16 if self.bfloat16 else jnp.float32)
        product, seconds = jax.jit(jnp.matmul), []
        for _ in range(4):
            began = time.perf_counter()
            jax.block_until_ready(product(square, square))
            seconds.append(time.perf_counter() - began)
        return {"flops": 2 * size**3 / min(seconds), "device": jax.local_devices()[0].device_kind}


if __name__ == "__main__":
    keep_freed_memory()  # as `worldmodel train` does
    training = Training(Path(sys.argv[1]))
    print(json.dumps({"ready": jax.__version__}), flush=True)
    for line in sys.stdin:
        word, *count = line.split()
        print(json.dumps(training.train(int(count[0])) if word == "train" else training.ceiling()), flush=True)
