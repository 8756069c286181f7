"""`worldmodel data convert`: logs of any format to a corpus."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shlex
from typing import TYPE_CHECKING, Any

import tyro

from worldmodel.cli.logs import open_input, reader_options

if TYPE_CHECKING:
    from worldmodel.corpus.convert import Conversion
    from worldmodel.corpus.job import Input, Recipe


_UNITS = {
    "episodes": ("", 1.0),
    "transitions": ("", 1.0),
    "bytes": (" GB", 1e9),
    "hours": (" on one process", 1.0),
    "shards": ("", 1.0),
}
"""What an estimate prints, and in what."""


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Converts logs of any format to a corpus; killed at any instant, the same command continues.

    Example: worldmodel data convert logs/a.npz d4rl:logs/b.hdf5 --min-return 50 --split-by task --out corpora/mine
    """

    sources: tyro.conf.Positional[tuple[str, ...]]
    """Logs, each FORMAT:PLACE, or PLACE where the format can be recognised; their spaces must agree."""
    out: pathlib.Path
    """Folder of the corpus."""
    append: bool = False
    """Add to the corpus in the folder, if there is one."""
    episodes: str | None = None
    """Of each log: N, the first N; or A:B, those from place A up to, without, place B."""
    min_return: float | None = None
    """Lowest sum of rewards of an episode that is kept."""
    max_return: float | None = None
    """Highest sum of rewards of an episode that is kept."""
    policy: tuple[str, ...] = ()
    """Keep the episodes of these behaviour policies."""
    split_by: str | None = None
    """Key of an episode's info, e.g. task: all episodes of one value are on one side of the split. Default: the id."""
    prefix_ids: bool = False
    """Put the log's name before every id, not only before those that are taken."""
    fix: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Repair what `worldmodel data lint` finds under this code; `all`: everything that has a repair. Repeatable."""
    drop_invalid: bool = False
    """Leave out, and count, an episode that is not valid, instead of refusing the log."""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Option of the format's reader, KEY=VALUE. Repeatable."""
    part_episodes: int = 10_000
    """Most episodes of one part; a kill costs at most one part's work."""
    part_mb: float = 64.0
    """Size in MB at which a part is closed."""
    estimate: bool = False
    """Convert only a sample, and print what the whole job will take."""
    of: int | None = None
    """For --estimate: episodes of the whole job, where the logs named are a part of it."""
    seconds: float = 20.0
    """For --estimate: that the sample may take."""
    beam: str | None = None
    """Run on Apache Beam with these pipeline options, e.g. "--runner=DirectRunner --direct_num_workers=4"."""
    seed: int = 0
    """For --estimate: of the choice of episodes."""
    json: bool = False
    """Print one JSON object."""


def convert(options: ConvertOptions) -> dict[str, Any]:
    """Converts; prints and returns what was read, kept, left out and repaired, and what the corpus holds now."""
    recipe = _recipe(options)
    if not options.sources:
        raise ValueError("no log to convert; name at least one")
    read_with = reader_options(options.option)
    inputs = [open_input(uri, read_with) for uri in options.sources]
    if options.estimate:
        return _estimate(options, inputs, recipe)
    conversion = _run(options, inputs, recipe)
    result = _result(options, inputs, conversion)
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(result)
    return result


def _recipe(options: ConvertOptions) -> Recipe:
    from worldmodel.corpus.filters import Filters, parse_range
    from worldmodel.corpus.job import Recipe

    first, last = parse_range(options.episodes) if options.episodes is not None else (0, None)
    return Recipe(
        filters=Filters(first, last, options.min_return, options.max_return, options.policy),
        split_by=options.split_by,
        prefix_ids=options.prefix_ids,
        fixes=options.fix,
        drop_invalid=options.drop_invalid,
        part_episodes=options.part_episodes,
        part_bytes=int(options.part_mb * 2**20),
    )


def _run(options: ConvertOptions, inputs: list[Input], recipe: Recipe) -> Conversion:
    from worldmodel.cli.progress import ConversionBar, console
    from worldmodel.corpus.convert import convert as run
    from worldmodel.corpus.job import known_episodes

    for item in inputs:
        for line in item.log.provenance.get("left_out", ()):
            console.print(f"{item.uri}: not read: {line}", highlight=False, markup=False, soft_wrap=True)
    if options.beam is not None:
        from worldmodel.corpus.beam import convert_on_beam

        reopen = _Reopen(reader_options(options.option))
        return convert_on_beam(
            inputs, reopen, options.out, recipe, append=options.append, arguments=shlex.split(options.beam)
        )
    with ConversionBar([known_episodes(item, recipe) for item in inputs]) as bar:
        return run(inputs, options.out, recipe, append=options.append, report=bar, say=bar.say)


@dataclasses.dataclass(frozen=True)
class _Reopen:
    """Opens a log anew, on whatever machine it is sent to."""

    options: dict[str, Any]

    def __call__(self, uri: str) -> Any:
        return open_input(uri, self.options).log


def _result(options: ConvertOptions, inputs: list[Input], conversion: Conversion) -> dict[str, Any]:
    corpus = conversion.corpus
    logs = [
        {"uri": item.uri, **counts, "not_read": list(item.log.provenance.get("left_out", ()))}
        for item, counts in zip(inputs, conversion.counts, strict=not conversion.already)
    ]
    return {
        "out": str(options.out),
        "already": conversion.already,
        "logs": logs,
        "episodes": corpus.episodes,
        "transitions": corpus.transitions,
        "bytes": sum(part.bytes for part in corpus.manifest.parts),
        "parts": len(corpus.manifest.parts),
    }


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console()
    table = Table(Column("log", overflow="fold"), "read", "kept", "left out", "ids prefixed")
    for log in result["logs"]:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in log["left_out"].items()) or "0"
        table.add_row(Text(log["uri"]), f"{log['read']:,}", f"{log['kept']:,}", left_out, f"{log['renamed']:,}")
    if result["already"]:
        console.print("this conversion was done before; nothing is added", highlight=False)
    else:
        console.print(table)
    sizes = "{episodes:,} episodes, {transitions:,} transitions, in {parts:,} part(s)".format(**result)
    print(f"corpus {result['out']}: {sizes}, {result['bytes'] / 1e6:,.1f} MB")


def _estimate(options: ConvertOptions, inputs: list[Input], recipe: Recipe) -> dict[str, Any]:
    from worldmodel.corpus.estimate import estimate

    result = estimate(inputs, recipe, seconds=options.seconds, of=options.of, out=options.out, seed=options.seed)
    if options.json:
        print(json.dumps(result, allow_nan=False))
        return result
    print(
        "sample       {read:,} episodes read, {written:,} of them converted, {seconds:,} s".format(**result["sample"])
    )
    for name, (unit, size) in _UNITS.items():
        print(f"{name:<13}{_interval(result[name], size)}{unit}")
    print(f"{'free':<13}{result['free_bytes'] / 1e9:,.1f} GB where the corpus would lie")
    return result


def _interval(value: dict[str, Any], size: float) -> str:
    if value["mean"] is None:
        return f"unknown: {value['why']}"
    mean, lo, hi = (None if value[key] is None else _digits(value[key] / size) for key in ("mean", "lo", "hi"))
    return f"{mean}" if lo is None else f"{mean} (95%: {lo} to {hi})"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
