"""`worldmodel train`: a world model from a corpus, or what training it would cost."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from worldmodel.training.config import TrainingConfig
from worldmodel.training.text.config import TextConfig
from worldmodel.trajectory import suggest


@dataclasses.dataclass(frozen=True)
class Common:
    """What every training is told."""

    corpus: tyro.conf.Positional[tuple[str, ...]]
    """Folder of a corpus (see `worldmodel data record`), or of several."""
    out: pathlib.Path | None = None
    """Run folder."""
    preset: str = "default"
    """Sizes to begin from: debug, tiny, default, small, 25m, 85m, 300m, 1b; --config.* change single fields of it."""
    seed: int = 0
    """Of initial parameters and data order."""
    loggers: tuple[str, ...] = ()
    """Beside metrics.jsonl: tensorboard, wandb."""
    coordinator: str | None = None
    """HOST:PORT of process 0, where several processes train together, or auto (TPU slices, Slurm, Open MPI)."""
    processes: int = 1
    """How many processes there are."""
    process: int = 0
    """This process's number, from 0."""
    json: bool = False
    """Print one JSON object."""


@dataclasses.dataclass(frozen=True)
class Options(Common):
    """Trains a world model on a corpus, or one on the corpora of several environments; the same command resumes.

    Example: worldmodel train corpora/cartpole --out runs/cartpole --preset small --config.steps 2000

    Several environments share a trunk; each is then loaded, probed and played as RUN/worlds/NAME, by the name of its
    corpus's folder. A corpus of texts makes a language model; `worldmodel train CORPUS --help` shows its options.
    """

    config: Annotated[TrainingConfig, tyro.conf.arg(name="config")] = TrainingConfig()
    continue_from: pathlib.Path | None = None
    """Another run folder, whose parameters to begin with."""
    replay: str | None = None
    """Folder of the corpus that run learned from, to be seen again."""
    replay_fraction: float = 0.25
    """Share of windows that are replayed."""
    estimate: bool = False
    """Begin no run: print parameters, arithmetic, memory per device, days and cost."""
    devices: int = 1
    """Devices that --estimate plans for."""
    device_kind: str = "cpu"
    """Their kind: cpu (measured here), h100, a100-80gb, tpu-v5e, ..."""
    utilisation: float = 0.4
    """Share of a device's peak that --estimate assumes."""
    price_per_hour: float | None = None
    """Of one device, for --estimate."""


@dataclasses.dataclass(frozen=True)
class TextOptions(Common):
    """Trains a language world model on a corpus of texts; the same command resumes.

    Example: worldmodel train corpora/intercode_sql --out runs/sql --preset tiny --config.steps 2000
    """

    config: Annotated[TextConfig, tyro.conf.arg(name="config")] = TextConfig()


def defaults(words: Sequence[str]) -> Options | TextOptions:
    """The options before any other word is read: those of the preset that `words` name, for texts where a corpus is.

    `ValueError` for no preset.
    """
    from worldmodel.training.presets import PRESETS
    from worldmodel.training.text.config import TEXT_PRESETS

    name = "default"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name = following if word == "--preset" else word.removeprefix("--preset=") if "--preset=" in word else name
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}{suggest(name, PRESETS)}; presets are {', '.join(PRESETS)}")
    return beginning(TEXT_PRESETS[name] if any(map(_holds_texts, words)) else PRESETS[name], name)


def beginning(config: TrainingConfig | TextConfig, preset: str = "default") -> Options | TextOptions:
    """The options with this configuration and no corpus yet."""
    if isinstance(config, TextConfig):
        options = TextOptions(corpus=(), preset=preset, config=config)
    else:
        options = Options(corpus=(), preset=preset, config=config)
    object.__setattr__(options, "corpus", tyro.MISSING)  # no text, but tyro's mark of what must be given
    return options


def _holds_texts(word: str) -> bool:
    """Whether a word of the command line is the folder of a corpus of texts."""
    from worldmodel.corpus.manifest import NAME, read_manifest

    if word.startswith("-") or not (pathlib.Path(word) / NAME).is_file():
        return False
    spec = read_manifest(pathlib.Path(word)).spec
    return spec.observation_space["type"] == spec.action_space["type"] == "Text"


def run(options: Options | TextOptions) -> dict[str, Any]:
    """Trains; prints and returns where the run is and its last metrics, or the estimate."""
    if options.coordinator is not None:
        from worldmodel.training import processes

        processes.start(options.coordinator, options.processes, options.process)
    elif options.processes != 1:
        raise ValueError(f"{options.processes} processes need --coordinator HOST:PORT")
    from worldmodel.corpus import open_corpus

    if not options.corpus:
        raise ValueError("no corpus is named; worldmodel train CORPUS --out RUN")
    corpora = {pathlib.Path(folder).resolve().name: open_corpus(folder) for folder in options.corpus}
    if len(corpora) < len(options.corpus):
        raise ValueError("two of the corpora's folders have one name; it names the world in the run folder")
    if isinstance(options, TextOptions):
        if len(corpora) > 1:
            raise ValueError("texts are learned from one corpus; data convert --append makes one of several")
        if options.out is None:
            raise ValueError("--out is missing: the folder of the run")
        return _train(options, options.out, corpora, dataclasses.replace(options.config, seed=options.seed))
    config = dataclasses.replace(options.config, seed=options.seed)
    if len(corpora) > 1 and (options.estimate or options.continue_from is not None):
        raise ValueError("--estimate and --continue-from take one corpus")
    if options.estimate:
        return _estimate(options, next(iter(corpora.values())), config)
    if options.out is None:
        raise ValueError("--out is missing: the folder of the run")
    return _train(options, options.out, corpora, config)


def _train(
    options: Options | TextOptions, out: pathlib.Path, corpora: dict[str, Any], config: TrainingConfig | TextConfig
) -> dict[str, Any]:
    from worldmodel.cli.progress import TrainingBar
    from worldmodel.training.memory import keep_freed_memory
    from worldmodel.training.stopping import Stopped

    keep_freed_memory()
    synthetic = _count_synthetic(corpora)
    last: dict[str, Any] = {}
    stopped = False
    with TrainingBar(config.steps) as bar:

        def report(step, metrics):
            bar(step, metrics)
            last.update(step=step, **metrics)

        try:
            step = _trained(options, out, corpora, config, report)
        except Stopped as stop:
            step, stopped = stop.step, True
    finite = {name: value if math.isfinite(value) else None for name, value in last.items()}
    result = {"run": str(out), "step": step, "stopped": stopped, "metrics": finite or None, "synthetic": synthetic}
    if options.json:
        print(json.dumps(result, allow_nan=False))
    elif stopped:
        print(f"stopped and saved at step {step}: {out}; the same command resumes")
    else:
        print(f"trained to step {step}: {out}")
    return result


def _count_synthetic(corpora: dict[str, Any]) -> int:
    """Training episodes that a model imagined; a line on stderr says so where there are any."""
    from worldmodel.cli.progress import console

    learned = [corpus.split("train") for corpus in corpora.values()]
    imagined = [corpus.index.synthetic & own for corpus, own in zip(corpora.values(), learned, strict=True)]
    count = sum(int(each.sum()) for each in imagined)
    if count:
        total = sum(int(own.sum()) for own in learned)
        line = (
            f"{count:,} of {total:,} training episodes are synthetic; what is held out is measured on real ones alone"
        )
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return count


def _held_out(corpus: Any) -> Any:
    """The real episodes that are held out; None where there are none."""
    real = ~corpus.index.synthetic
    return corpus.held("held_out", keep=real) if (corpus.split("held_out") & real).any() else None


def _trained(options: Any, out: pathlib.Path, corpora: dict[str, Any], config: Any, report: Any) -> int:
    """The step that training came to."""
    from worldmodel.training.loop import train, train_together

    if isinstance(config, TextConfig):
        from worldmodel.training.text.run import train_texts

        (corpus,) = corpora.values()
        return train_texts(corpus, out, config, loggers=options.loggers, report=report).step
    held_out = {name: _held_out(corpus) for name, corpus in corpora.items()}
    told: dict[str, Any] = {"loggers": options.loggers, "report": report}
    if len(corpora) > 1:
        _check_different(corpora)
        worlds = {name: (corpus.held("train"), corpus.spec) for name, corpus in corpora.items()}
        everywhere = None if None in held_out.values() else held_out
        models = train_together(worlds, out, config, held_out=everywhere, **told)
        return next(iter(models.values())).step
    ((name, corpus),) = corpora.items()
    again = _continuation(options)
    world = train(corpus.held("train"), corpus.spec, out, config, held_out=held_out[name], continuation=again, **told)
    return world.step


def _check_different(corpora: dict[str, Any]) -> None:
    """`ValueError` where two are of one environment: they are one corpus."""
    known: dict[str, str] = {}
    for name, corpus in corpora.items():
        spec = json.dumps(corpus.spec.to_json(), sort_keys=True)
        if spec in known:
            raise ValueError(
                f"{known[spec]} and {name} are of one environment; data convert --append makes one of both"
            )
        known[spec] = name


def _continuation(options: Options) -> Any:
    from worldmodel.corpus import open_corpus
    from worldmodel.training.continuation import Continuation

    if options.continue_from is None:
        if options.replay is not None:
            raise ValueError("--replay needs --continue-from, the run that learned from it")
        return None
    replay = None if options.replay is None else open_corpus(options.replay).held("train")
    return Continuation(options.continue_from, replay, options.replay_fraction)


def _estimate(options: Options, corpus: Any, config: TrainingConfig) -> dict[str, Any]:
    from worldmodel.training.checkpoint import describe
    from worldmodel.training.claim import codec_of, fitted_on
    from worldmodel.training.estimate import estimate

    codec = codec_of(corpus.spec, fitted_on(corpus.spec, corpus.held("train")))
    result = estimate(
        describe(corpus.spec, codec, config.model, {}),
        config,
        devices=options.devices,
        device_kind=options.device_kind,
        utilisation=options.utilisation,
        price_per_hour=options.price_per_hour,
        corpus=options.corpus[0],
    )
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print("\n".join(_table(result)))
    return result


def _table(result: dict[str, Any]) -> list[str]:
    """An estimate for people."""
    memory = result["memory_per_device"]
    room = "" if result["fits"] is None else "  fits" if result["fits"] else "  DOES NOT FIT"
    parts = ", ".join(f"{name} {memory[name] / 1e9:.3g}" for name in ("arguments", "temporaries", "outputs"))
    lines = [
        f"parameters         {result['parameters']:,} ({result['parameters_per_member']:,} a member)",
        f"FLOPs              {result['flops_per_step']:.3g} a step, {result['flops']:.3g} in all",
        f"devices            {result['devices']} x {result['device_kind']}  mesh {result['mesh'] or 'none'}",
        f"memory per device  {memory['total'] / 1e9:.3g} GB ({parts}){room}",
    ]
    if result["host_memory"] is not None:
        lines.append(f"memory of process  {result['host_memory'] / 1e9:.3g} GB at its peak, measured")
    if result["days"] is not None:
        start = "" if result["start_seconds"] is None else f"{result['start_seconds']:.0f} s to start, "
        lines.append(f"time               {start}{result['seconds_per_step']:.3g} s a step, {result['days']:.3g} days")
    cost = f"{result['cost']:,.2f}" if result["cost"] is not None else f"unknown: {result['why']}"
    return [*lines, f"cost               {cost}"]
