"""How does the loss fall with data, parameters, compute, context and environments, and what will the next size give?

Command:   python eval/scaling.py                         (a try: --sweeps parameters --seeds 0)
Data:      recorded by the script: a family of pendulums, whose gravity, length and mass are drawn anew for each
           environment; 100 steps an episode under random and persistent torques.
Hardware:  one CPU core; about 15 s a cell, most of which compiles (a third less with
           XLA_FLAGS=--xla_backend_optimization_level=0): 27 cells x 3 seeds.
Expected:  eval/README.md; the figure is eval/results/scaling.png.

One dial is turned at a time, the others stay at the base cell: 128 episodes of as many environments, one layer of
width 32, 400 steps of 16 windows of 32, attention over 8 positions.

episodes      8 to 128 | 256, each of an environment of its own
parameters    width 8 to 32 | 48
compute       50 to 800 | 1,600 steps of the base model, each run with its own schedule
context       attention over 1 to 8 | 12 positions, the physics untold
environments  4 to 64 | 128, in 128 episodes all told

Loss: negative log-likelihood of held-out episodes of other environments, nats per transition in the bins that training
uses, by which it is always positive; at the end of training. The sizes before the bar are fitted
(`worldmodel.fidelity.scaling`); the one behind it is predicted, and then measured: the interval is that of the mean
over the seeds that were run.

Every cell is one line of JSON in `--out`, and is not run again; `--fit` runs none, and fits those that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from worldmodel.agents.behaviour import parse_behaviours
from worldmodel.agents.past import Past
from worldmodel.agents.record import run_episode
from worldmodel.corpus import Columns, window_batches
from worldmodel.fidelity.scaling import Scaling, scaling
from worldmodel.model.step import StepConfig
from worldmodel.model.transformer import TrunkConfig
from worldmodel.report import style
from worldmodel.sources.gymnasium import make_env
from worldmodel.training import TrainingConfig, WorldModel, train
from worldmodel.training.estimate import parameters_per_member, step_flops
from worldmodel.training.held_out import HeldOut
from worldmodel.training.step import as_batch
from worldmodel.trajectory import Spec

RESULTS = Path(__file__).parent / "results" / "scaling.jsonl"
RANGES = {"gravity": (5.0, 15.0), "length": (0.7, 1.4), "mass": (0.7, 1.4)}
"""Of the family, log-uniform."""
BEHAVIOURS = ("random", "sticky:0.8")
EPISODE, LENGTH, BATCH = 100, 32, 16
TESTED_ON, TEST_BATCHES = 64, 24


class Cell(NamedTuple):
    """One run: the base, but for the dial that is turned."""

    episodes: int = 128
    environments: int = 128
    width: int = 32
    steps: int = 400
    window: int = 8
    told: bool = True


class Sweep(NamedTuple):
    """The cells of one dial, the last one held out; `x` is the key of a result that says how large it is."""

    x: str
    unit: str
    cells: tuple[Cell, ...]


SWEEPS = {
    "episodes": Sweep("episodes", "training episodes", tuple(Cell(n, n) for n in (8, 16, 32, 64, 128, 256))),
    "parameters": Sweep("parameters", "parameters", tuple(Cell(width=w) for w in (8, 12, 16, 24, 32, 48))),
    "compute": Sweep("flops", "FLOPs of training", tuple(Cell(steps=n) for n in (50, 100, 200, 400, 800, 1_600))),
    "context": Sweep(
        "window", "positions that attention sees", tuple(Cell(window=w, told=False) for w in (1, 2, 3, 4, 8, 12))
    ),
    "environments": Sweep(
        "environments", "training environments", tuple(Cell(environments=n) for n in (4, 8, 16, 32, 64, 128))
    ),
}


def main() -> None:
    """Runs the cells that are missing, fits, predicts, prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fit", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    wanted = [(cell, seed) for seed in options.seeds for name in options.sweeps for cell in SWEEPS[name].cells]
    missing = [(cell, seed) for cell, seed in dict.fromkeys(wanted) if not any(is_of(row, cell, seed) for row in done)]
    for cell, seed in [] if options.fit else missing:
        row = {**cell._asdict(), "seed": seed, **run(cell, seed)}
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        done.append(row)
    if options.fit and missing:
        print(f"{len(missing)} cells are missing")
    fits = {name: fitted(SWEEPS[name], done, options.seeds) for name in options.sweeps}
    found = {name: fit for name, fit in fits.items() if fit is not None}
    print(table(found))
    draw(found, options.out.with_suffix(".png"))


def is_of(row: Mapping[str, Any], cell: Cell, seed: int) -> bool:
    """Whether a line is this cell's."""
    return {**cell._asdict(), "seed": seed}.items() <= row.items()


def episodes(cell: Cell, purpose: int, seed: int, count: int, environments: int) -> tuple[Spec, Columns]:
    """`count` episodes, in turn from as many environments of the family; `purpose` keeps sets of them apart."""
    env = make_env("Pendulum-v1", {})
    spec = Spec.from_gymnasium(env)
    behaviours = parse_behaviours(BEHAVIOURS)
    physics = np.random.default_rng([seed, purpose, 0])
    low, high = np.log(np.array(list(RANGES.values()))).T
    family = np.exp(physics.uniform(low, high, (environments, len(RANGES))))
    found = []
    for index in range(count):
        gravity, length, mass = family[index % environments]
        env.unwrapped.g, env.unwrapped.l, env.unwrapped.m = gravity, length, mass
        rng = np.random.default_rng([seed, purpose, 1, index])
        policy = behaviours[index % len(behaviours)].begin(spec, Past(spec), rng)
        episode = run_episode(env, policy, int(rng.integers(2**31)), EPISODE, {"id": f"{purpose}/{index}"})
        context = dict(zip(RANGES, map(float, (gravity, length, mass)), strict=True)) if cell.told else None
        found.append(dataclasses.replace(episode, context=context))
    env.close()
    return spec, Columns.from_trajectories(found)


def run(cell: Cell, seed: int) -> dict[str, Any]:
    """Trains the model of a cell and measures it."""
    spec, shown = episodes(cell, 0, seed, cell.episodes, cell.environments)
    _, test = episodes(cell, 1, 0, TESTED_ON, TESTED_ON)  # the same for all
    width = cell.width
    model = StepConfig(
        TrunkConfig(width, 1, 2, 1, 2 * width, cell.window), chain_hidden=width // 2, head_hidden=width, members=1
    )
    config = TrainingConfig(
        model,
        steps=cell.steps,
        batch_size=BATCH,
        length=LENGTH,
        warmup=min(100, cell.steps // 5),
        checkpoint_every=cell.steps,
        seed=seed,
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        world = train(shown, spec, Path(folder) / "run", config)
    seconds = time.monotonic() - began
    parameters = parameters_per_member(world.params["members"])
    return {
        "loss": round(nll(world, test), 4),
        "parameters": parameters,
        "flops": cell.steps * step_flops(model, parameters, BATCH, LENGTH),
        "train_seconds": round(seconds, 1),
    }


def nll(world: WorldModel, columns: Columns) -> float:
    """Held-out nats per transition, as training's own metric."""
    dynamics, source = world.dynamics, window_batches(columns, length=LENGTH, batch_size=BATCH, seed=0)
    batches = [as_batch(next(source), dynamics.codec) for _ in range(TEST_BATCHES)]
    return HeldOut(dynamics.config, dynamics.codec, batches).measure(world.params["members"])["held_out_nll"]


class Fitted(NamedTuple):
    """What the smaller sizes say, and what the largest turned out to be: sizes and losses of its runs."""

    sweep: Sweep
    x: np.ndarray
    loss: np.ndarray
    scaling: Scaling
    next_x: float
    next_loss: np.ndarray


def fitted(sweep: Sweep, rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Fitted | None:
    """The fit of a sweep; None where the held-out size or too many of the others have not been run."""
    found = [[row for row in rows for seed in seeds if is_of(row, cell, seed)] for cell in sweep.cells]
    *before, last = found
    if not last or sum(map(bool, before)) < 5:
        return None
    x, loss = (np.array([float(row[name]) for runs in before for row in runs]) for name in (sweep.x, "loss"))
    result = scaling(x, loss)
    return Fitted(sweep, x, loss, result, float(last[0][sweep.x]), np.array([row["loss"] for row in last]))


def table(fits: Mapping[str, Fitted]) -> str:
    """Markdown: the law of every dial, and whether the held-out size fell where it was predicted."""
    lines = [
        "| dial | law | its parameters [95%] | error beyond the fit: power law, log-sigmoid | next size | "
        "predicted [95%] | measured | inside |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, fit in fits.items():
        result, runs = fit.scaling, len(fit.next_loss)
        predicted, measured = result.forecast(fit.next_x, runs=runs), float(fit.next_loss.mean())
        fields = ", ".join(f"{key} {e.mean:.3g} [{e.lo:.3g}, {e.hi:.3g}]" for key, e in result.fields().items())
        errors = ", ".join(f"{error:.3f}" for error in result.held_out.values())
        inside = "yes" if predicted.lo <= measured <= predicted.hi else "no"
        lines.append(
            f"| {name} | {result.law.name} | {fields} | {errors} | {fit.next_x:,.4g} | "
            f"{predicted.mean:.3f} [{predicted.lo:.3f}, {predicted.hi:.3f}] | {measured:.3f} of {runs} | {inside} |"
        )
    return "\n".join(lines)


def draw(fits: Mapping[str, Fitted], path: Path) -> None:
    """A panel for each dial."""
    if not fits:
        return
    with style.look():
        figure = Figure(figsize=(3.6 * len(fits), 3.6), layout="constrained")
        panels = figure.subplots(1, len(fits), squeeze=False)[0]
        for ax, (name, fit) in zip(panels, fits.items(), strict=True):
            panel(ax, name, fit)
        panels[0].set_ylabel("held-out loss (nats per transition)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(fits)))
        figure.savefig(path, dpi=110)


def panel(ax: Axes, name: str, fit: Fitted) -> None:
    """Runs, the law with its band, and the next size: predicted and measured."""
    sizes = np.geomspace(fit.x.min(), fit.next_x, 60)
    curve = fit.scaling.curve(sizes)
    ax.fill_between(sizes, curve.lo, curve.hi, color=style.SIM, alpha=0.22, linewidth=0)
    ax.plot(sizes, curve.mean, color=style.SIM, label="fitted law (95% band)")
    ax.plot(fit.x, fit.loss, "o", color=style.INK, markersize=3.5, label="runs it is fitted to")
    predicted = fit.scaling.forecast(fit.next_x, runs=len(fit.next_loss))
    spread = [[predicted.mean - predicted.lo], [predicted.hi - predicted.mean]]
    ax.errorbar(
        [fit.next_x], [predicted.mean], spread, fmt="s", color=style.SIM, capsize=4, label="predicted mean (95%)"
    )
    ax.plot(
        fit.next_x, fit.next_loss.mean(), "D", color=style.REAL, markersize=8, fillstyle="none", label="measured mean"
    )
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}".replace("e+0", "e").replace("e+", "e"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(fit.sweep.unit)
    ax.set_title(f"{name}: {fit.scaling.law.name}")


if __name__ == "__main__":
    main()
