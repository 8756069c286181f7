"""How fast does the trunk train, beside the same model of transformers in PyTorch, and beside the matmul ceiling?

Command:   python eval/bench_training.py --torch-python /path/to/python      (torch 2.13, transformers 5.24 in it)
           python eval/bench_training.py --preset debug --rounds 2       (a try of a minute; without torch: ours alone)
Hardware:  2 CPU cores, nothing else running; about 4 minutes.
One GPU:   python eval/bench_training.py --preset 300m --precision bfloat16 --compile --torch-python "$(which python)"
           in an environment of jax[cuda], flax, optax, torch, transformers; under 4 minutes; utilisation is of the data
           sheet's peak.
Expected:  eval/README.md.

Both sides begin with the same weights (one checkpoint folder) and see the same batches; each is a process of its own.
They train in turn, a few steps each, the order changing every round, so that whatever else the machine does hits both
alike; in every round each also times a plain square product in the same precision, and the faster is the ceiling.
Arithmetic is counted as 6 per parameter and position, plus attention (the pairs that causality leaves). Ratios are
medians over rounds. Memory is the peak of the process (VmHWM) while it trains, after everything was compiled, and the
same less what the libraries take alone; on a GPU that of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldmodel.model.language import LanguageConfig, init_params
from worldmodel.model.pretrained import save_pretrained
from worldmodel.training.estimate import DEVICES
from worldmodel.training.presets import PRESETS

RESULTS = Path(__file__).parent / "results" / "bench_training.json"
SIDES = {"ours": "bench_training_jax.py", "torch": "bench_training_torch.py"}
LEAST = {"ratio": 1.0, "share": 0.6, "loss": 0.005}


def main() -> int:
    """Prints the table; 1 where a figure falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", help="interpreter that has torch and transformers; without it ours alone")
    parser.add_argument("--preset", choices=list(PRESETS), default="small", help="whose trunk is trained")
    parser.add_argument("--window", type=int, help="of the attention; by default all that came before")
    parser.add_argument("--vocabulary", type=int, default=1_024)
    parser.add_argument("--batch", type=int, default=16, help="rows")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of the products")
    parser.add_argument("--compile", action="store_true", help="torch.compile the other side")
    parser.add_argument("--steps", type=int, default=4, help="train steps of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--out", type=Path, default=None, help=f"file for the result; {RESULTS.name} for the default size"
    )
    options = parser.parse_args()
    trunk = dataclasses.replace(PRESETS[options.preset].model.trunk, window=options.window)
    config = LanguageConfig(options.vocabulary, trunk)
    with tempfile.TemporaryDirectory() as folder:
        parameters = prepare(Path(folder), config, options)
        rounds = measure(Path(folder), options)
    result = {
        "options": {name: value for name, value in vars(options).items() if name not in ("out", "torch_python")},
        "parameters": parameters,
        **summary(rounds, step_flops(config, parameters, options), options),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(table(result))
    return 0 if all(result["passes"].values()) else 1


def prepare(folder: Path, config: LanguageConfig, options: argparse.Namespace) -> int:
    """Writes weights, batches and options for both sides; returns the number of parameters."""
    params = init_params(config, 0)
    save_pretrained(folder / "model", config, params)
    np.save(folder / "batches.npy", batches(options))
    settings = {name: getattr(options, name) for name in ("precision", "compile")}
    settings |= {"learning_rate": 1e-3, "weight_decay": 0.01}
    (folder / "options.json").write_text(json.dumps(settings))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def batches(options: argparse.Namespace) -> np.ndarray:
    """Tokens int32 `[steps, B, T]`: each row a walk with its own stride and some noise."""
    rng = np.random.default_rng(0)
    shape = (options.steps * (options.rounds + 1), options.batch, options.length)
    stride = rng.integers(1, 8, (*shape[:2], 1))
    noise = rng.integers(0, 4, shape) * (rng.random(shape) < 0.2)
    return (np.cumsum(stride + noise, axis=-1) % options.vocabulary).astype(np.int32)


def step_flops(config: LanguageConfig, parameters: int, options: argparse.Namespace) -> float:
    """Floating-point operations of a step: 6 per parameter and position, of attention 12 per channel and pair seen."""
    trunk = config.trunk
    attention = 12.0 * trunk.layers * trunk.query_width * trunk.seen(options.length)
    return options.batch * (6.0 * parameters * options.length + attention)


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Of every round what each side said; the first one compiles."""
    pythons = {"ours": sys.executable} | ({"torch": options.torch_python} if options.torch_python else {})
    rounds = []
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(side(python, SIDES[name], folder)) for name, python in pythons.items()}
        for number in range(options.rounds + 1):
            found: dict[str, Any] = {}
            for name in sorted(sides, reverse=number % 2 == 1):
                found[name] = {**ask(sides[name], f"train {options.steps}"), "ceiling": ask(sides[name], "ceiling")}
            rounds.append(found)
            said = ", ".join(f"{name} {each['seconds'] / options.steps:.3f} s a step" for name, each in found.items())
            print(f"round {number} of {options.rounds}: {said}", file=sys.stderr, flush=True)
    return rounds


@contextlib.contextmanager
def side(python: str, script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of one side, ready to train; ends with the block."""
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "HF_HUB_OFFLINE": "1"}
    command = [python, os.fspath(Path(__file__).with_name(script)), os.fspath(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | quiet
    ) as process:
        try:
            answer(process)
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], question: str) -> dict[str, Any]:
    """Sends a line and waits for the line that answers it."""
    assert process.stdin is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return answer(process)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON; `SystemExit` where the process ended instead."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit(f"{process.args}: ended with code {process.wait()}")


def summary(rounds: list[dict[str, Any]], flops: float, options: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds after the first, and what is needed."""
    timed, names = rounds[1:], list(rounds[0])
    seconds = {name: np.array([each[name]["seconds"] for each in timed]) / options.steps for name in names}
    ceiling = np.array([max(each[name]["ceiling"]["flops"] for name in names) for each in timed])
    device = rounds[0]["ours"]["ceiling"]["device"]
    peak = next((kind for name, kind in DEVICES.items() if name in device.lower()), None)
    result: dict[str, Any] = {"device": device, "cores": len(os.sched_getaffinity(0)), "flops_per_step": flops}
    for name in names:
        last = timed[-1][name]
        result[name] = {
            "tokens_per_second": float(options.batch * options.length / np.median(seconds[name])),
            "share_of_ceiling": float(np.median(flops / seconds[name] / ceiling)),
            "peak_mb": max(each[name]["peak_mb"] for each in timed),
            "without_libraries_mb": max(each[name]["peak_mb"] for each in timed) - last["libraries_mb"],
            "first_peak_mb": rounds[0][name]["peak_mb"],
            "device_mb": last["device_mb"],
            "losses": [loss for each in rounds for loss in each[name]["losses"]],
        }
        if peak is not None:
            rate = getattr(peak, options.precision)
            result[name]["utilisation"] = float(flops / np.median(seconds[name]) / rate)
    result["ceiling_flops"] = float(np.median(ceiling))
    result["passes"] = {"share": result["ours"]["share_of_ceiling"] >= LEAST["share"]}
    if "torch" in names:
        ratio = seconds["torch"] / seconds["ours"]
        ours, torch = (np.array(result[name]["losses"]) for name in ("ours", "torch"))
        result["ratio"] = {"median": float(np.median(ratio)), "least": float(ratio.min()), "most": float(ratio.max())}
        result["loss_difference"] = float(np.max(np.abs(ours - torch) / torch))
        result["passes"] |= {
            "ratio": result["ratio"]["median"] >= LEAST["ratio"],
            "loss": result["loss_difference"] <= LEAST["loss"],
            "memory": all(result["ours"][kind] <= result["torch"][kind] for kind in ("peak_mb", "device_mb")),
        }
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    names = [name for name in SIDES if name in result]
    lines = [
        f"| {result['device']}, {result['parameters'] / 1e6:.1f} M | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    rows = {
        "tokens/s": ("tokens_per_second", "{:,.0f}"),
        "share of the matmul ceiling": ("share_of_ceiling", "{:.2f}"),
        "utilisation of the data sheet's peak": ("utilisation", "{:.2f}"),
        "peak memory while training, MB": ("peak_mb", "{:,.0f}"),
        "the same without the libraries": ("without_libraries_mb", "{:,.0f}"),
        "peak while compiling, MB": ("first_peak_mb", "{:,.0f}"),
        "on the device, MB": ("device_mb", "{:,.0f}"),
    }
    for title, (key, form) in rows.items():
        if all(result[name].get(key) for name in names):
            lines.append(f"| {title} | {' | '.join(form.format(result[name][key]) for name in names)} |")
    losses = " | ".join(f"{result[name]['losses'][0]:.4f}, {result[name]['losses'][-1]:.4f}" for name in names)
    lines += [f"| first and last loss | {losses} |", "", f"ceiling: {result['ceiling_flops'] / 1e9:,.0f} GFLOP/s"]
    if "ratio" in result:
        ratio = result["ratio"]
        lines.append(
            f"tokens/s over torch's: {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f} by round)"
        )
        lines.append(f"largest difference of a loss: {100 * result['loss_difference']:.3f}%")
    lines.append("; ".join(f"{name} {'holds' if held else 'FALLS SHORT'}" for name, held in result["passes"].items()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
