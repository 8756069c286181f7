"""Logs, and options of several parts, named on the command line."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldmodel.corpus.job import Input
    from worldmodel.sources import Source


def reader_options(words: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as keyword arguments; a value that is JSON is read as such (`3`, `true`, `{"a": 1}`).

    Raises:
      ValueError: a word without `=`, or a key given twice.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"--option {word!r} is no KEY=VALUE")
        key = key.replace("-", "_")
        if key in options:
            raise ValueError(f"--option {key} is given twice")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    return options


def json_object(text: str, option: str, example: str) -> dict[str, Any]:
    """The JSON object that an option's text is; `ValueError` for anything else."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option} {text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{option} {text!r} is no JSON object; write e.g. '{example}'")
    return value


def open_log(uri: str, options: dict[str, Any]) -> Source:
    """Opens a log; errors as `worldmodel.sources.read`."""
    from worldmodel.sources import read

    return read(uri, **options)


def open_input(uri: str, options: dict[str, Any]) -> Input:
    """Opens a log to convert, with its file or folder."""
    from worldmodel.corpus.job import Input

    place = pathlib.Path(re.sub(r"^[A-Za-z][A-Za-z0-9_+-]+:", "", uri))
    log = open_log(uri, options)
    return Input(uri, log, place if place.exists() else None, options)
