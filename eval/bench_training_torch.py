"""The other side of `eval/bench_training.py`: transformers' model in PyTorch. Imports torch, transformers, numpy.

Command:   python eval/bench_training_torch.py FOLDER, then lines on stdin: `train N` or `ceiling`; JSON answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM


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
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cpu":
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.backends.cuda.matmul.allow_tf32 = True
        self.bfloat16 = options["precision"] == "bfloat16"
        model = AutoModelForCausalLM.from_pretrained(
            folder / "model", attn_implementation="sdpa", dtype=torch.float32, use_cache=False
        )
        self.model = model.to(self.device).train()
        self.run = torch.compile(self.model) if options["compile"] else self.model
        self.batches = np.load(folder / "batches.npy", mmap_mode="r")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=options["learning_rate"],
            weight_decay=options["weight_decay"],
            fused=True,
        )
        self.step = 0

    def train(self, steps: int) -> dict[str, Any]:
        """Seconds and losses of the next steps."""
        losses, began = [], time.perf_counter()
        for _ in range(steps):
            tokens = torch.from_numpy(self.batches[self.step].astype(np.int64)).to(self.device)
            self.step += 1
            rounded = torch.autocast(self.device, torch.bfloat16) if self.bfloat16 else contextlib.nullcontext()
            with rounded:
                loss = self.run(input_ids=tokens, labels=tokens).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        losses = [float(loss) for loss in losses]
        return {"seconds": time.perf_counter() - began, "losses": losses, **self.peak()}

    def peak(self) -> dict[str, float]:
        """Megabytes: the most of this process since it was last asked, the libraries alone, the most on the device."""
        device = torch.cuda.max_memory_allocated() / 1e6 if self.device == "cuda" else 0.0
        found = {"peak_mb": memory("VmHWM"), "libraries_mb": self.libraries, "device_mb": device}
        if Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
        return found

    def ceiling(self) -> dict[str, Any]:
        """Floating-point operations a second of a plain square product in the same precision."""
        size = 2_048 if self.device == "cpu" else 8_192
        dtype, seconds = torch.bfloat16 if self.bfloat16 else torch.float32, []
        square = torch.ones((size, size), dtype=dtype, device=self.device)
        for _ in range(4):
            began = time.perf_counter()
            product = square @ square
            float(product[0, 0])  # waits
            seconds.append(time.perf_counter() - began)
        kind = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        return {"flops": 2 * size**3 / min(seconds), "device": kind}


if __name__ == "__main__":
    training = Training(Path(sys.argv[1]))
    print(json.dumps({"ready": torch.__version__}), flush=True)
    for line in sys.stdin:
        word, *count = line.split()
        print(json.dumps(training.train(int(count[0])) if word == "train" else training.ceiling()), flush=True)
