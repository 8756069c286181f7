"""`worldmodel study status`: what of a study is done, missing, failed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import tyro


@dataclasses.dataclass(frozen=True)
class StatusOptions:
    """Counts a study's cells, as it was last started; it may be running.

    Example: worldmodel study status runs/planted
    """

    folder: tyro.conf.Positional[pathlib.Path]
    """Folder of the study."""
    json: bool = False
    """Print one JSON object; failures come with their tracebacks."""


def status(options: StatusOptions) -> dict[str, Any]:
    """Prints and returns the counts."""
    from worldmodel.study.store import Store

    store = Store(options.folder)
    wanted, done, failed = store.description(), store.done(), store.failed()
    keys = wanted["cells"]
    failures = {key: failed[key] for key in keys if key in failed and key not in done}
    result = {
        "study": wanted["name"],
        "note": wanted["note"],
        "cells": len(keys),
        "done": sum(key in done for key in keys),
        "failed": len(failures),
        "failures": [
            {"cell": each["cell"], "error": each["error"], "traceback": each["traceback"]} for each in failures.values()
        ],
        "core_seconds": sum(seconds for cell, seconds in store.seconds() if cell.key in set(keys)),
    }
    if options.json:
        print(json.dumps(result, allow_nan=False))
        return result
    open_cells = result["cells"] - result["done"] - result["failed"]
    print(
        f"{result['study']}: {result['done']} of {result['cells']} cells done, {result['failed']} failed, "
        f"{open_cells} not run; {result['core_seconds'] / 3600:.3g} core-hours so far"
    )
    for each in result["failures"]:
        print(f"failed: {each['cell']}: {each['error']}")
    return result
