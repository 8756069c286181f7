"""What a training run will cost before it is begun: parameters, arithmetic, memory per device, time.

Memory of a device is XLA's own analysis of the train step, compiled ahead of time for a mesh of virtual devices in a
process of its own. Arithmetic is counted, as 6 N per position plus attention (Kaplan et al. 2020, arXiv 2001.08361,
section 2.1). Of a run on this machine, time and the memory of the whole process are measured in its first steps.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from worldmodel.codec import column_shapes
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig, abstract_params
from worldmodel.training.checkpoint import model_from_config
from worldmodel.training.config import TrainingConfig
from worldmodel.training.program import program
from worldmodel.training.rehearsal import rehearse
from worldmodel.training.sharding import Layout
from worldmodel.training.step import Batch, TrainState
from worldmodel.trajectory import Spec, suggest


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of accelerator: its peak in bfloat16 and in float32, FLOP/s (dense), and its memory in bytes."""

    bfloat16: float
    float32: float
    memory: float


DEVICES = {
    "t4": Device(8.1e12, 8.1e12, 16e9),
    "v100": Device(15.7e12, 15.7e12, 32e9),
    "l4": Device(121e12, 60e12, 24e9),
    "a100-40gb": Device(312e12, 156e12, 40e9),
    "a100-80gb": Device(312e12, 156e12, 80e9),
    "h100": Device(989e12, 494e12, 80e9),
    "h200": Device(989e12, 494e12, 141e9),
    "b200": Device(2250e12, 1100e12, 180e9),
    "tpu-v4": Device(275e12, 275e12, 32e9),
    "tpu-v5e": Device(197e12, 197e12, 16e9),
    "tpu-v5p": Device(459e12, 459e12, 95e9),
    "tpu-v6e": Device(918e12, 918e12, 32e9),
}
"""What products in each precision reach as JAX computes them by default (docs.jax.dev, "Matmul precision"): float32 in
one bfloat16 pass on TPUs, in TF32 from Ampere on; T4 and V100 have no units for bfloat16, and are taken to compute both
in float32 (not measured). TPUs are from Google's pages on each (docs.cloud.google.com/tpu/docs). GPUs are the SXM
models, dense, and were compared with tables of the data sheets that others publish, not with the makers' own sheets;
b200 is that of HGX boards, whose usable memory (180 of 192 GB) is from memory, unchecked."""

HERE = "cpu"
"""The kind whose time is not computed but measured, on this machine, in a few steps."""
UTILISATION = 0.4
"""Share of the peak that a run is assumed to reach on an accelerator."""


def parameters_per_member(params: Any) -> int:
    """Numbers in one member of `[M, ...]` parameters, arrays or their shapes."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(params))


def step_flops(model: StepConfig, parameters: int, batch_size: int, length: int) -> float:
    """Floating-point operations of one step: 6 per parameter and position, and of attention 12 per width and key seen.

    Each position passes through one member. `parameters` are one member's.
    """
    trunk = model.trunk
    attention = 12.0 * trunk.layers * trunk.query_width * trunk.seen(length)
    return batch_size * (6.0 * parameters * length + attention)


def estimate(
    described: Mapping[str, Any],
    config: TrainingConfig,
    *,
    devices: int = 1,
    device_kind: str = HERE,
    utilisation: float = UTILISATION,
    price_per_hour: float | None = None,
    corpus: str | Path | None = None,
) -> dict[str, Any]:
    """The cost of a run, plain JSON.

    Args:
      described: as `config.json`, with spec, model and codec.
      config: of the run; its mesh, or data over all devices where it names none.
      devices: how many.
      device_kind: a key of `DEVICES`, or "cpu" for this machine.
      utilisation: share of the device's peak that is reached.
      price_per_hour: of one device, in any currency.
      corpus: folder of the logs, on which the first steps of a run on this machine are taken and measured.

    Raises:
      ValueError: the kind is unknown, or the mesh or the batch does not fit the devices.
    """
    kinds = [HERE, *DEVICES]
    if device_kind not in kinds:
        raise ValueError(
            f"device kind {device_kind!r} is unknown{suggest(device_kind, kinds)}; known are {', '.join(kinds)}"
        )
    if devices < 1 or not 0 < utilisation <= 1:
        raise ValueError(f"{devices} devices at utilisation {utilisation}; at least 1 and a share of 1 are needed")
    mesh = config.mesh or ("" if devices == 1 else f"data={devices}")
    question = {"described": described, "training": _plain(config), "mesh": mesh}
    answer = _ask(question, devices)
    flops = step_flops(config.model, answer["parameters_per_member"], config.batch_size, config.length)
    kind = DEVICES.get(device_kind)
    peak = None if kind is None else kind.bfloat16 if config.precision == "bfloat16" else kind.float32
    here = rehearse(corpus, config, flops) if peak is None and devices == 1 and corpus is not None else {}
    seconds = flops / (devices * peak * utilisation) if peak is not None else here.get("seconds_per_step")
    hours = None if seconds is None else (here.get("start_seconds", 0.0) + seconds * config.steps) / 3600.0
    result: dict[str, Any] = {
        "parameters": answer["parameters_per_member"] * config.model.members,
        **{name: answer[name] for name in ("parameters_per_member", "memory_per_device", "largest_whole_array")},
        "device_memory": None if kind is None else kind.memory,
        "fits": None if kind is None else answer["memory_per_device"]["total"] < 0.9 * kind.memory,
        "flops_per_step": flops,
        "flops": flops * config.steps,
        "transitions_per_step": config.batch_size * config.length,
        "mesh": mesh,
        "devices": devices,
        "device_kind": device_kind,
        "utilisation": None if kind is None else utilisation,
        "seconds_per_step": seconds,
        **{name: here.get(name) for name in ("cpu_seconds_per_step", "start_seconds")},
        "host_memory": here.get("peak_memory"),
        "days": None if hours is None else hours / 24.0,
        "device_hours": None if hours is None else hours * devices,
        "cost": None if hours is None or price_per_hour is None else hours * devices * price_per_hour,
    }
    if hours is None:
        several = "the speed of several CPU devices is not known; name an accelerator as device kind"
        result["why"] = several if devices > 1 else "no corpus was given to take the first steps on"
    elif price_per_hour is None:
        result["why"] = "no price per device and hour was given"
    return result


def _plain(config: TrainingConfig) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    del fields["model"]
    return fields


def _ask(question: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """Runs `answer` in a process that sees so many virtual devices."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, "-m", "worldmodel.training.estimate"]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ValueError(f"the train step could not be compiled: {lines[-1].removeprefix('ValueError: ')}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Compiles the step for the mesh asked for, without an array in memory, and reads XLA's analysis."""
    spec, dynamics = model_from_config(question["described"])
    config = TrainingConfig(model=dynamics.config, **question["training"])
    layout = Layout.of(question["mesh"]) if question["mesh"] else None
    if layout is not None:
        layout.check(config.batch_size, config.model.members, config.accumulate)
    optimizer, step = program(config, dynamics.codec, layout)
    state, batch = abstract_arguments(spec, dynamics, optimizer, config, layout)
    compiled = step.lower(state, batch).compile()
    memory = compiled.memory_analysis()
    parts = {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
    }
    return {
        "parameters_per_member": parameters_per_member(state.params),
        "memory_per_device": {**parts, "total": sum(parts.values())},
        "largest_whole_array": _largest_whole(state),
    }


def abstract_arguments(
    spec: Spec, dynamics: StepDynamics, optimizer: Any, config: TrainingConfig, layout: Layout | None
) -> tuple[TrainState, Batch]:
    """State and batch as shapes with shardings: what the step is lowered with where no array exists."""
    params: Any = abstract_params(dynamics.config, dynamics.codec)
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)
    state = TrainState(params, jax.eval_shape(optimizer.init, params), number)
    rows, length = config.batch_size, config.length
    each: Any = jax.ShapeDtypeStruct((rows, length), jnp.float32)
    once: Any = jax.ShapeDtypeStruct((rows,), jnp.float32)
    observations = column_shapes(spec.observation_space, (rows, length + 1))
    context: Any = jax.ShapeDtypeStruct((rows, dynamics.codec.context.size), jnp.float32)
    batch = Batch(observations, column_shapes(spec.action_space, (rows, length)), each, each, each, once, context)
    if layout is None:
        return state, batch

    def placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, state, layout.state(state)), jax.tree.map(lambda x: placed(x, layout.batch), batch)


def _largest_whole(state: TrainState) -> int:
    """Bytes of the largest array of which every device holds all."""

    def whole(leaf: Any) -> bool:
        return leaf.sharding is None or leaf.sharding.shard_shape(leaf.shape) == leaf.shape

    return max((math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state) if whole(x)), default=0)


if __name__ == "__main__":
    try:
        print(json.dumps(answer(json.load(sys.stdin))))
    except ValueError as error:
        sys.exit(f"ValueError: {error}")
