"""`worldmodel data show`: what a log holds."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tyro

from worldmodel.cli.logs import open_log, reader_options
from worldmodel.spaces import box_bounds, is_image, parts_of

_WIDEST = 6


@dataclasses.dataclass(frozen=True)
class ShowOptions:
    """Prints what a log holds: spaces, counts, lengths, returns, ends.

    Example: worldmodel data show corpora/cartpole --plot cartpole.png
    """

    source: tyro.conf.Positional[str]
    """Folder of a corpus, or FORMAT:PLACE."""
    plot: pathlib.Path | None = None
    """Draw returns, lengths, coverage and actions into this file (.png, .svg, .pdf)."""
    option: tuple[str, ...] = ()
    """Options of the format's reader, each KEY=VALUE."""
    json: bool = False
    """Print one JSON object."""


def show(options: ShowOptions) -> dict[str, Any]:
    """Prints and returns the summary of a log (as `summarise`)."""
    from worldmodel.corpus.summary import summarise

    log = open_log(options.source, reader_options(options.option))
    if options.plot is not None:
        from worldmodel.report.logs import check_suffix

        check_suffix(options.plot)  # before the log is read, which may take long
    summary = {"source": options.source, "spec": log.spec.to_json(), **summarise(log)}
    if options.plot is not None:
        from worldmodel.report.logs import plot_log

        plot_log(log, options.plot, title=f"{options.source}: {summary['episodes']:,} episodes")
        summary["plot"] = str(options.plot)
    if options.json:
        print(json.dumps(summary, allow_nan=False))
    else:
        _print_tables(summary)
    return summary


def _print_tables(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    spec = summary["spec"]
    facts = Table(title=Text(summary["source"]), show_header=False, title_justify="left")
    rows = {
        "environment": spec["env_id"] or "unknown",
        "observation": describe(spec["observation_space"]),
        "action": describe(spec["action_space"]),
        "time limit": str(spec["max_episode_steps"] or "none"),
        "episodes": f"{summary['episodes']:,}",
        "transitions": f"{summary['transitions']:,}",
        "length": "min {min:,}, median {median:,.0f}, max {max:,}".format(**summary["lengths"]),
        "return": estimate_text(summary["returns"]),
        "ends": ", ".join(f"{count:,} {name}" for name, count in summary["ends"].items()),
    }
    if summary["synthetic"]:
        rows["synthetic"] = f"{summary['synthetic']:,} episodes were imagined by a model"
    if "plot" in summary:
        rows["plot"] = summary["plot"]
    for name, value in rows.items():
        facts.add_row(name, Text(value))
    policies = Table("policy", "episodes", "transitions", "return")
    for policy in summary["policies"]:
        counts = f"{policy['episodes']:,}", f"{policy['transitions']:,}"
        policies.add_row(Text(policy["name"]), *counts, estimate_text(policy["returns"]))
    console.print(facts)
    console.print(policies)


def describe(space: Mapping[str, Any], indent: str = "") -> str:
    """A space in JSON form for people; a Dict or a Tuple takes one line for each part."""
    kind = space["type"]
    if kind in ("Dict", "Tuple"):
        parts = parts_of(space)
        deeper = f"{indent}  "
        return "\n".join([f"{kind} of {len(parts)}", *(f"{deeper}{k}: {describe(v, deeper)}" for k, v in parts)])
    if kind == "Discrete":
        return f"Discrete({space['n']})" + (f", from {space['start']}" if space["start"] else "")
    if kind == "MultiDiscrete":
        kinds = np.unique(space["nvec"])
        sizes = _short(space["nvec"]) if len(kinds) > 1 else f"{np.shape(space['nvec'])} of {kinds[0]}"
        return f"MultiDiscrete({sizes})" + ("" if _zero(space["start"]) else ", from other than 0")
    if kind == "MultiBinary":
        return f"MultiBinary{_shape(space)}"
    if kind == "Text":
        limit = space.get("max_length")
        return "Text" if limit is None else f"Text of at most {limit:,} characters"
    return f"Box{_shape(space)} {space['dtype']}{_bounds(space)}"


def _shape(space: Mapping[str, Any]) -> str:
    return str(tuple(space["shape"]))


def _bounds(space: Mapping[str, Any]) -> str:
    if is_image(space):
        return ", an image"
    low, high = box_bounds(space)
    if not low.size:
        return ""
    low, high = low.min(), high.max()
    return "" if low == float("-inf") and high == float("inf") else f", {low:g} to {high:g}"


def _short(values: list[Any]) -> str:
    shown = [_short(value) if isinstance(value, list) else str(value) for value in values[:_WIDEST]]
    return f"[{', '.join(shown)}{', ..' if len(values) > _WIDEST else ''}]"


def _zero(values: Any) -> bool:
    return all(map(_zero, values)) if isinstance(values, list) else values == 0


def estimate_text(value: dict[str, Any]) -> str:
    """An estimate with its interval."""
    if value["mean"] is None:
        return value["why"]
    if value["lo"] is None:
        return f"{value['mean']:.4g}"
    return f"{value['mean']:.4g} (95%: {value['lo']:.4g} to {value['hi']:.4g})"
