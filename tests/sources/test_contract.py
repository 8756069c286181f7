"""What holds for every log format, on files that the format's own library wrote."""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import tests.sources.cases
from tests.sources.case import Case
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.sources import FORMATS, read
from worldmodel.spaces import columns_of
from worldmodel.trajectory import Spec, Trajectory

MODULES = {
    name: importlib.import_module(f"tests.sources.cases.{name}")
    for _, name, _ in pkgutil.iter_modules(tests.sources.cases.__path__)
}
CASES: list[Case] = [case for module in MODULES.values() for case in module.CASES]
CASES_OF_TEXT = [case for case in CASES if case.path.suffix in (".json", ".jsonl", ".traj")]


def cases(chosen: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", chosen, ids=[f"{case.format}-{case.name}" for case in chosen])


every_case = cases(CASES)
every_log = cases([case for case in CASES if case.format != "gymnasium"])  # which records, and reads no files


def open_case(case: Case, path: Path | None = None) -> Any:
    return read(f"{case.format}:{path or case.path}", **case.options)


def copied(case: Case, folder: Path) -> Path:
    """A copy of the fixture that may be spoiled."""
    target = folder / case.path.name
    if case.path.is_dir():
        shutil.copytree(case.path, target)
    else:
        shutil.copy(case.path, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def assert_same(found: Trajectory, expected: Trajectory, spec: Spec) -> None:
    """Bit for bit, with the dtypes of the spec; of `info` what is expected."""
    for role in ("observation", "action"):
        space = getattr(spec, f"{role}_space")
        columns = [list(columns_of(space, getattr(t, f"{role}s"))) for t in (found, expected)]
        for (path, _, ours), (_, _, wanted) in zip(*columns, strict=True):
            ours, wanted = np.asarray(ours), np.asarray(wanted)
            assert ours.dtype == wanted.dtype, f"{role} {path}"
            np.testing.assert_array_equal(ours, wanted, err_msg=f"{role} {path}", strict=True)
    for name in ("rewards", "action_log_prob"):
        ours, wanted = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (wanted is None), name
        if ours is not None:
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, np.asarray(wanted, np.float32), err_msg=name, strict=True)
    assert (found.terminated, found.truncated) == (expected.terminated, expected.truncated)
    assert found.context == expected.context
    assert {key: found.info.get(key) for key in expected.info} == dict(expected.info)


def assert_all_same(found: list[Trajectory], expected: list[Trajectory], spec: Spec) -> None:
    assert [t.info["id"] for t in found] == [
        t.info.get("id", f.info["id"]) for t, f in zip(expected, found, strict=True)
    ]
    for ours, wanted in zip(found, expected, strict=True):
        assert_same(ours, wanted, spec)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text, text
    assert "Traceback" not in text
    return text


def test_every_format_has_a_case():
    assert {case.format for case in CASES} == set(FORMATS) - {"corpus"}
    assert len({(case.format, case.name) for case in CASES}) == len(CASES)


@every_case
def test_episodes_are_what_the_library_was_given(case: Case):
    source = open_case(case)
    assert source.spec.to_json() == case.spec.to_json()
    found, expected = list(source), case.episodes()
    assert_all_same(found, expected, case.spec)
    for trajectory in found:
        trajectory.validate(source.spec)
        assert json.loads(json.dumps(trajectory.info, allow_nan=False)) == dict(trajectory.info)
        json.dumps(trajectory.context, allow_nan=False)
    ids = [trajectory.info["id"] for trajectory in found]
    assert len(set(ids)) == len(ids)
    assert_all_same(list(source), found, case.spec)  # the second reading


@every_log
def test_is_recognised_without_its_prefix(case: Case):
    if not case.recognised:
        with pytest.raises(ValueError, match="its format is not recognised; name it"):
            read(str(case.path))
        return
    source = read(str(case.path), **case.options)
    assert source.provenance["format"] == case.format
    assert_same(next(iter(source)), case.episodes()[0], case.spec)


@every_case
def test_provenance_says_what_was_read_and_what_was_not(case: Case):
    provenance = open_case(case).provenance
    assert json.loads(json.dumps(provenance, allow_nan=False)) == dict(provenance)
    assert provenance["format"] == case.format
    assert provenance["place"] == str(case.path)
    left_out = provenance["left_out"]
    assert len(left_out) == len(case.left_out), left_out
    for line, pattern in zip(left_out, case.left_out, strict=True):
        assert re.search(pattern, line), (line, pattern)


@every_case
def test_episodes_are_made_when_they_are_asked_for(case: Case, monkeypatch: pytest.MonkeyPatch):
    source = open_case(case)
    made = 0
    init = Trajectory.__init__

    def counted(self: Trajectory, *args: Any, **kwargs: Any) -> None:
        nonlocal made
        made += 1
        init(self, *args, **kwargs)

    monkeypatch.setattr(Trajectory, "__init__", counted)
    reading = iter(source)
    for index in range(len(case.episodes())):
        made = 0
        next(reading)
        assert made <= 2, f"{made} episodes were made before number {index} was given"


@every_log
def test_a_missing_place_is_named(case: Case, tmp_path: Path):
    missing = tmp_path / f"missing{case.path.suffix}"
    with pytest.raises(FileNotFoundError) as caught:
        list(open_case(case, missing))
    assert str(missing) in one_line(caught.value)


@every_case
def test_an_unknown_option_lists_the_known(case: Case):
    with pytest.raises(ValueError, match=rf"^{case.format}: option 'no_such_option' is unknown.*; it takes ") as caught:
        read(f"{case.format}:{case.path}", no_such_option=1)
    one_line(caught.value)


@cases(CASES_OF_TEXT)
def test_compressed_copies_of_a_text_file_read_alike(case: Case, tmp_path: Path):
    data = case.path.read_bytes()
    for ending, compressed in ((".gz", gzip.compress(data)), (".zst", zstandard.compress(data))):
        copy = tmp_path / (case.path.name + ending)
        copy.write_bytes(compressed)
        source = read(str(copy) if case.recognised else f"{case.format}:{copy}", **case.options)
        assert source.spec.to_json() == case.spec.to_json()
        for found, expected in zip(source, case.episodes(), strict=True):
            assert_same(found, expected, case.spec)


@every_log
def test_a_cut_file_is_named_in_one_line(case: Case, tmp_path: Path):
    copy = copied(case, tmp_path)
    files = [copy] if copy.is_file() else [path for path in copy.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: (path.stat().st_size, path))
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        list(open_case(case, copy))
    assert largest.name in one_line(caught.value)


@every_case
def test_a_corpus_of_it_reads_alike(case: Case, tmp_path: Path):
    source = open_case(case)
    write_corpus(tmp_path / "corpus", source.spec, source, provenance=source.provenance)
    corpus = open_corpus(tmp_path / "corpus")
    assert corpus.spec.to_json() == case.spec.to_json()
    assert corpus.provenance["format"] == case.format
    assert_all_same(list(corpus), list(source), case.spec)
