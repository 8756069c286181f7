"""The training loop: a run folder that fills, survives a kill, and continues in the same bits."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from worldmodel.codec import StepCodec
from worldmodel.corpus import Episodes, mixed_batches, window_batches
from worldmodel.corpus.lock import only_writer
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import Params
from worldmodel.training.calibration import calibrated
from worldmodel.training.checkpoint import (
    WorldModel,
    load,
    model_from_config,
    read_config,
    world_folder,
)
from worldmodel.training.claim import check_worlds, claim, claim_together
from worldmodel.training.config import TrainingConfig
from worldmodel.training.continuation import Continuation
from worldmodel.training.held_out import HeldOut
from worldmodel.training.loggers import check_loggers
from worldmodel.training.plasticity import Plasticity
from worldmodel.training.processes import leader_first
from worldmodel.training.program import program
from worldmodel.training.running import Report, Running
from worldmodel.training.sharding import Layout
from worldmodel.training.step import Batch, TrainState, as_batch
from worldmodel.training.worlds import ONLY, Streams, init_worlds, map_worlds
from worldmodel.trajectory import Spec


def train(
    episodes: Episodes,
    spec: Spec,
    run: str | Path,
    config: TrainingConfig | None = None,
    *,
    held_out: Episodes | None = None,
    continuation: Continuation | None = None,
    loggers: Sequence[str] = (),
    report: Report | None = None,
) -> WorldModel:
    """Trains a world model on logged transitions; called again on the same folder, it resumes.

    Args:
      episodes: what to learn from, in memory (`Corpus.columns`) or on disk (`Corpus.stored`).
      spec: their spaces.
      run: the run folder; it gets `config.json`, `starts.npy`, `metrics.jsonl`, `checkpoints/`.
      config: sizes and schedule; None for the defaults.
      held_out: others; at every checkpoint the model is measured on them, and the best one is kept; in the end they
        say how much the members may disagree where the model can be trusted (`trust.npz`).
      continuation: begin with another run's parameters, and replay some of its logs; None to begin afresh.
      loggers: of `worldmodel.training.loggers.LOGGERS`, beside `metrics.jsonl`.
      report: sees progress.

    Raises:
      ValueError: an episode has no rewards, the folder was made with another configuration or from other logs (the
        difference is named), or another process trains in it.
      OSError: the disk is full; the last checkpoint stays.
      FloatingPointError: the loss is no longer finite; the last checkpoint stays.
      Stopped: SIGTERM came; everything is saved.
    """
    if not episodes.has_rewards:
        raise ValueError("an episode of these logs has no rewards; training needs them in every episode")
    check_loggers(loggers)
    config = config or TrainingConfig()
    run = Path(run)
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            run.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_writer(run))
            claim(run, episodes, spec, config, continuation)

        leader_first(begin)
        worlds = _World(episodes, held_out, model_from_config(read_config(run))[1].codec)
        _Run({ONLY: worlds}, run, config, continuation).go(loggers, report or (lambda step, metrics: None))
    return load(run) if held_out is None else calibrated(load(run), held_out)


def train_together(
    worlds: Mapping[str, tuple[Episodes, Spec]],
    run: str | Path,
    config: TrainingConfig | None = None,
    *,
    held_out: Mapping[str, Episodes] | None = None,
    loggers: Sequence[str] = (),
    report: Report | None = None,
) -> dict[str, WorldModel]:
    """Trains one model of several environments: they share the trunk, and each has its own codec and heads.

    Every step takes a batch of each. The folder gets `worlds/NAME/` for each of them, which everything that reads a run
    folder takes; see `train` for the rest.

    Args:
      worlds: episodes and spaces of each, by a name that can be a folder's.
      run: the run folder.
      config: sizes and schedule, of every world alike.
      held_out: other episodes of every world.
      loggers: as in `train`.
      report: sees progress.

    Returns:
      The model of each world.

    Raises:
      ValueError: fewer than two worlds, a name is no folder's, or as `train`.
      OSError, FloatingPointError, Stopped: as `train`.
    """
    check_worlds(worlds)
    check_loggers(loggers)
    config, run = config or TrainingConfig(), Path(run)
    if config.gauge_every:
        raise ValueError("gauges of plasticity are of a single world; leave gauge_every at 0")
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            run.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_writer(run))
            claim_together(run, worlds, config)

        leader_first(begin)
        sides = {
            name: _World(
                episodes,
                None if held_out is None else held_out[name],
                model_from_config(read_config(world_folder(run, name)))[1].codec,
            )
            for name, (episodes, _) in worlds.items()
        }
        _Run(sides, run, config, None).go(loggers, report or (lambda step, metrics: None))
    made = {name: load(world_folder(run, name)) for name in worlds}
    return made if held_out is None else {name: calibrated(world, held_out[name]) for name, world in made.items()}


class _World(NamedTuple):
    episodes: Episodes
    held_out: Episodes | None
    codec: StepCodec


class _Run(Running):
    """The steps of one call, of one world or several."""

    def __init__(
        self, worlds: Mapping[str, _World], run: Path, config: TrainingConfig, continuation: Continuation | None
    ):
        self._worlds = worlds
        model = config.model
        codecs = {name: world.codec for name, world in worlds.items()}
        self._layout = layout = Layout.of(config.mesh) if config.mesh else None
        if layout is not None:
            layout.check(config.batch_size, model.members, config.accumulate)
        elif jax.process_count() > 1:
            raise ValueError(f"{jax.process_count()} processes need a mesh, as mesh='data=-1'")
        self._shard = (0, 1) if layout is None else layout.shard(config.batch_size)
        bfloat16 = config.precision == "bfloat16"
        optimizer, step = program(config, codecs, layout)
        params = init_worlds(model, codecs, config.seed) if continuation is None else continuation.params()
        super().__init__(run, config, step, initial_state(params, optimizer, layout))
        self._batches = Streams(map_worlds(lambda world: self._windows(world.episodes), worlds))
        if continuation is not None and continuation.replay is not None:
            mixed = self._mixture(worlds[ONLY].episodes, continuation.replay, continuation.fraction)
            self._batches = Streams({ONLY: mixed})
        if config.evaluation_batches and all(world.held_out is not None for world in worlds.values()):
            source = Streams(map_worlds(lambda world: self._windows(world.held_out), worlds))
            windows = [self._put(next(source)) for _ in range(config.evaluation_batches)]
            self._measure = HeldOut(model, codecs, windows, bfloat16=bfloat16, layout=layout).measure
        if config.gauge_every:
            own = self._put({ONLY: next(self._windows(worlds[ONLY].episodes))})
            self._gauge = Plasticity(StepDynamics(model, codecs[ONLY]), own[ONLY], config.seed).measure

    def _windows(self, episodes: Episodes) -> Any:
        config, (_, parts) = self._config, self._shard
        return window_batches(
            episodes,
            length=config.length,
            batch_size=config.batch_size // parts,
            seed=config.seed,
            shard=self._shard,
        )

    def _mixture(self, episodes: Episodes, replay: Episodes, fraction: float) -> Any:
        config, (_, parts) = self._config, self._shard
        return mixed_batches(
            [episodes, replay],
            [1.0 - fraction, fraction],
            length=config.length,
            batch_size=config.batch_size // parts,
            seed=config.seed,
            shard=self._shard,
        )

    def _put(self, windows: Mapping[str, Mapping[str, Any]]) -> dict[str, Batch]:
        batches = {name: as_batch(own, self._worlds[name].codec) for name, own in windows.items()}
        return batches if self._layout is None else self._layout.put_batch(batches)


def initial_state(params: Params, optimizer: Any, layout: Layout | None) -> TrainState:
    """A fresh optimiser of these parameters, on one device or on the mesh."""
    if layout is None:
        return TrainState(params, jax.jit(optimizer.init)(params), jnp.zeros((), jnp.int32))
    params = layout.put(params, layout.state(params))
    moments = layout.state(jax.eval_shape(optimizer.init, params))
    opt_state = jax.jit(optimizer.init, out_shardings=moments)(params)
    return TrainState(params, opt_state, layout.put(jnp.zeros((), jnp.int32), layout.replicated))
