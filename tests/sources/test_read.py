"""The front door: a format named or recognised, options checked, and errors that list what is known."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import worldmodel
from tests.corpora import real_log
from worldmodel.sources import FORMATS, Source, read, recognise

KNOWN = ", ".join(f"{name}:PLACE" for name in FORMATS)
every_format = pytest.mark.parametrize("name", FORMATS)


def message(uri: str, **options: object) -> str:
    """The one line of the error of reading `uri`."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read(uri, **options)
    return str(caught.value)


def test_it_is_public():
    assert worldmodel.read is read


@pytest.mark.parametrize(
    ("uri", "nearest"), [("lerobt:x", "lerobot"), ("RLDS2:x", None), ("minary:/a/b", "minari"), ("npz2:", "npz")]
)
def test_an_unknown_format_lists_the_known(uri: str, nearest: str | None):
    kind = uri.partition(":")[0]
    hint = f" (did you mean {nearest!r}?)" if nearest else ""
    assert message(uri) == f"format {kind!r} of {uri!r} is unknown{hint}; known are {KNOWN}"


def test_a_format_alone_is_no_place():
    assert message("npz:") == "'npz:' names no place; write npz:PLACE"


def test_a_missing_place_is_named():
    for uri in ("/no/such/place", "C:/no/such/place", ""):  # one letter is a drive, no format
        with pytest.raises((FileNotFoundError, ValueError), match=rf"^{uri or chr(39) * 2}"):
            read(uri)


def test_a_place_of_no_format_lists_the_known(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    for place in (tmp_path, tmp_path / "notes.txt"):
        assert message(str(place)) == f"{place}: its format is not recognised; name it, as {KNOWN}"


def test_an_unknown_option_names_the_nearest():
    found = message("npz:x.npz", observation="x")
    assert found.startswith(
        "npz: option 'observation' is unknown (did you mean 'observations'?); it takes observations, "
    )
    assert message("corpus:x", split="a") == "corpus: option 'split' is unknown; it takes none"


@every_format
def test_a_format_is_two_functions(name: str):
    module = importlib.import_module(FORMATS[name])
    place, *options = inspect.signature(module.open_source).parameters.values()
    assert place.name == "place"
    for option in options:
        assert option.default is not inspect.Parameter.empty, option
        assert option.kind in (option.KEYWORD_ONLY, option.POSITIONAL_OR_KEYWORD), option
    assert list(inspect.signature(module.recognise).parameters) == ["path"]
    assert module.__doc__


def odd_files(folder: Path) -> None:
    """Names of every format, contents of none."""
    for ending in (
        "npz",
        "json",
        "jsonl",
        "json.gz",
        "jsonl.zst",
        "hdf5",
        "h5",
        "traj",
        "parquet",
        "tfrecord",
        "gz",
        "",
    ):
        for name, data in {
            "empty": b"",
            "zeros": bytes(64),
            "junk": bytes(range(256)) * 64,
            "brace": b"{" * 9999,
        }.items():
            (folder / f"{name}.{ending}".rstrip(".")).write_bytes(data)
    for name in ("meta/info.json/", "data/main_data.hdf5/", "dataset_info.json/", "features.json/", "manifest.json/"):
        (folder / "folders" / name).mkdir(parents=True)
    (folder / "dangling.npz").symlink_to(folder / "nowhere")
    (folder / "round").symlink_to(folder / "round")
    (folder / ("x" * 250)).mkdir()
    (folder / "name\nof two lines \udcff.jsonl").write_bytes(b"{}")


@every_format
def test_recognising_never_fails(name: str, tmp_path: Path):
    recognises: Callable[[Path], bool] = importlib.import_module(FORMATS[name]).recognise
    odd_files(tmp_path)
    odd = [tmp_path, Path("/no/such/place"), Path(os.devnull), *tmp_path.rglob("*")]
    for path in odd:
        assert recognises(path) in (True, False)
    assert not recognises(Path("/no/such/place"))


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("imitation/cartpole_final.npz", "npz"),
        ("reference_logs/hopper.npz", "npz"),
        ("bridge_rlds/bridge_dataset/1.0.0", "rlds"),
        ("tau_bench_airline/gpt-4o-airline.json", "chat"),
        ("intercode_sql/ic_sql_multiturn_gpt-4_10_turns.json.gz", "chat"),
        ("scienceworld_gpt/sciworld_sft_gpt_perfect.jsonl", "chat"),
    ],
)
def test_real_logs_are_recognised(place: str, kind: str):
    path = real_log(place)
    assert recognise(str(path)) == kind
    assert isinstance(read(str(path)), Source)
