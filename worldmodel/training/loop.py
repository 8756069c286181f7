"""The training loop: a run folder that fills, survives a kill, and continues in the same bits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from worldmodel.codec import fit_codec
from worldmodel.corpus import Columns, window_batches
from worldmodel.corpus.lock import only_writer
from worldmodel.model.step import init_params
from worldmodel.training.checkpoint import (
    Checkpoints,
    WorldModel,
    describe,
    load,
    model_from_config,
    read_config,
    write_json,
    write_starts,
)
from worldmodel.training.config import TrainingConfig
from worldmodel.training.step import TrainState, as_batch, make_optimizer, make_train_step
from worldmodel.trajectory import Spec

Report = Callable[[int, Mapping[str, float]], None]
"""Called with the step and its metrics every `log_every` steps."""


def train(
    columns: Columns, spec: Spec, run: str | Path, config: TrainingConfig | None = None, *, report: Report | None = None
) -> WorldModel:
    """Trains a world model on logged transitions; called again on the same folder, it resumes.

    Args:
      columns: the transitions to learn from.
      spec: their spaces.
      run: the run folder; it gets `config.json`, `starts.npy`, `metrics.jsonl`, `checkpoints/`.
      config: sizes and schedule; None for the defaults.
      report: sees progress.

    Raises:
      ValueError: an episode has no rewards, the folder was made with another configuration or from other logs (the
        difference is named), or another process trains in it.
      FloatingPointError: the loss is no longer finite; the last checkpoint stays.
    """
    if not columns.has_rewards:
        raise ValueError("an episode of these logs has no rewards; training needs them in every episode")
    config = config or TrainingConfig()
    run = Path(run)
    run.mkdir(parents=True, exist_ok=True)
    with only_writer(run):
        _claim(run, columns, spec, config)
        _train(columns, run, config, report or (lambda step, metrics: None))
    return load(run)


def _claim(run: Path, columns: Columns, spec: Spec, config: TrainingConfig) -> None:
    """Writes `config.json`, or checks that the one there asks for the same."""
    t = columns.transitions()
    codec = fit_codec(spec, t.obs, t.next_obs, t.actions, t.rewards, t.terminated)
    training = dataclasses.asdict(config) | {"logs": _fingerprint(columns)}
    model = config.model
    del training["model"]
    wanted = describe(spec, codec, model, training)
    if not (run / "config.json").exists():
        write_starts(run, columns.observations[columns.observation_starts])
        write_json(run / "config.json", wanted)
        return
    found = read_config(run)
    different = _differences(found, wanted)
    if different:
        raise ValueError(f"{run} was made with another configuration: {'; '.join(different)}")


def _train(columns: Columns, run: Path, config: TrainingConfig, report: Report) -> None:
    _, dynamics = model_from_config(read_config(run))
    optimizer = make_optimizer(
        learning_rate=config.learning_rate,
        warmup=config.warmup,
        steps=config.steps,
        weight_decay=config.weight_decay,
        clip=config.clip,
    )
    params = init_params(dynamics.config, dynamics.codec, config.seed)
    state = TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    batches = window_batches(columns, length=config.length, batch_size=config.batch_size, seed=config.seed)
    train_step = make_train_step(dynamics.config, dynamics.codec, optimizer)
    checkpoints = Checkpoints(run)
    try:
        step = checkpoints.latest() or 0
        if step:
            state, position = checkpoints.restore(step, state)
            batches.set_state(position)
        metrics_path = run / "metrics.jsonl"
        _drop_after(metrics_path, step)
        with open(metrics_path, "a", encoding="utf-8") as log:
            started = time.monotonic()
            first = step
            while step < config.steps:
                state, metrics = train_step(state, as_batch(next(batches)))
                step += 1
                last = step == config.steps
                if step % config.log_every == 0 or last:
                    values = {name: float(value) for name, value in metrics.items()}
                    _check_finite(values, step, run)
                    elapsed = time.monotonic() - started
                    values["steps_per_second"] = (step - first) / elapsed
                    log.write(json.dumps({"step": step, **values}) + "\n")
                    log.flush()
                    report(step, values)
                if step % config.checkpoint_every == 0 or last:
                    _check_finite({"loss": float(metrics["loss"])}, step, run)
                    checkpoints.save(step, state, batches.get_state())
    finally:
        checkpoints.close()


def _check_finite(values: Mapping[str, float], step: int, run: Path) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is {value} at step {step}; the last checkpoint in {run} is unharmed")


def _drop_after(path: Path, step: int) -> None:
    """Removes lines of steps that will be taken again, and a line that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if entry["step"] <= step:
            kept.append(line + "\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(path)


def _fingerprint(columns: Columns) -> dict[str, Any]:
    """Counts and a hash of the logs' arrays, so that a run never resumes on other data."""
    digest = hashlib.sha256()
    for array in (columns.observations, columns.actions, columns.rewards, columns.lengths, columns.terminated):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {"transitions": len(columns), "episodes": columns.episodes, "sha256": digest.hexdigest()[:16]}


def _differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        lines = []
        for key in sorted({*found, *wanted}):
            lines += _differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
        return lines
    if name.startswith("codec."):
        return []  # follows from the logs, which are compared by their hash
    return [] if found == wanted else [f"{name} is {json.dumps(found)} there, {json.dumps(wanted)} here"]
