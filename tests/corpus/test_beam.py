"""The conversion on Beam's direct runner: the same episodes, byte for byte, as without."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("apache_beam", reason="apache-beam is missing: pip install 'worldmodel[beam]'")

from array_record.python.array_record_module import ArrayRecordReader

from tests.corpus.logs import open_toy, toy_input
from worldmodel.corpus import beam, open_corpus
from worldmodel.corpus.convert import convert
from worldmodel.corpus.filters import Filters
from worldmodel.corpus.job import Recipe

RECIPE = Recipe(filters=Filters(min_return=2.0), part_episodes=3)


class Opener:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def __call__(self, uri: str):
        return open_toy(str(self.folder / uri.removeprefix("toy:")))


def logs(folder: pathlib.Path):
    return [toy_input(folder, "a.toy", count=11), toy_input(folder, "b.toy", count=7, first=11)]


def records(path: pathlib.Path) -> list[bytes]:
    """Every record of the corpus, in order."""
    found = []
    for part in open_corpus(path).manifest.parts:
        for file in sorted((path / "parts" / part.name).glob("*.array_record-*")):
            found += ArrayRecordReader(os.fspath(file)).read_all()
    return found


@pytest.mark.parametrize("ranges", [1, 2])
def test_every_episode_has_the_bytes_of_the_plain_conversion(tmp_path, ranges):
    plain = convert(logs(tmp_path), tmp_path / "plain", RECIPE)
    done = beam.convert_on_beam(logs(tmp_path), Opener(tmp_path), tmp_path / "beam", RECIPE, ranges=ranges)
    assert records(tmp_path / "beam") == records(tmp_path / "plain")
    assert done.counts == plain.counts
    assert len(done.corpus.manifest.parts) == 2 * ranges
    assert sorted(path.name for path in (tmp_path / "beam").iterdir()) == ["manifest.json", "parts"]
    assert sorted(path.name for path in (tmp_path / "beam" / "parts").iterdir()) == sorted(
        part.name for part in done.corpus.manifest.parts
    )
    said, want = done.corpus.manifest.parts[0].provenance, plain.corpus.manifest.parts[0].provenance
    for key in ("uri", "log", "options", "state", "filters", "fixes", "versions", "conversion"):
        assert said[key] == want[key]
    assert beam.convert_on_beam(logs(tmp_path), Opener(tmp_path), tmp_path / "beam", RECIPE).already
    assert convert(logs(tmp_path), tmp_path / "beam", RECIPE).already, "the result is that of the plain conversion"


def test_files_hold_equal_numbers_of_episodes(tmp_path):
    done = beam.convert_on_beam(logs(tmp_path)[:1], Opener(tmp_path), tmp_path / "c", RECIPE)
    files = sorted((tmp_path / "c" / "parts" / done.corpus.manifest.parts[0].name).glob("*.array_record-*"))
    assert [ArrayRecordReader(os.fspath(file)).num_records() for file in files] == [3, 3, 3]


def test_what_a_killed_conversion_left_is_not_written_again(tmp_path, monkeypatch):
    opened = []

    class Once(Opener):
        def __call__(self, uri):
            opened.append(uri)
            if len(opened) == 2:
                raise ValueError("killed")
            return super().__call__(uri)

    with pytest.raises(ValueError, match="killed"):
        beam.convert_on_beam(logs(tmp_path), Once(tmp_path), tmp_path / "c", RECIPE)
    with pytest.raises(FileNotFoundError, match="its conversion is not finished"):
        open_corpus(tmp_path / "c")
    assert len(list((tmp_path / "c" / "parts").glob("part-*"))) == 1
    done = beam.convert_on_beam(logs(tmp_path), Opener(tmp_path), tmp_path / "c", RECIPE)
    convert(logs(tmp_path), tmp_path / "plain", RECIPE)
    assert records(tmp_path / "c") == records(tmp_path / "plain")
    assert done.counts[1]["kept"] == 7


def test_a_unit_given_to_two_workers_is_there_once(tmp_path):
    items = logs(tmp_path)[:1]
    order = beam.Order(tmp_path / "c", beam.describe(items, RECIPE), RECIPE, ("toy:a.toy",), Opener(tmp_path), "id")
    unit = beam.Unit(0, 0, 0, None)
    beam.write_unit(unit, order)
    receipt = beam._receipt(order, unit)
    text = receipt.read_text()
    receipt.unlink()  # as if the second had begun before the first was through
    beam.write_unit(unit, order)
    assert receipt.read_text() == text
    assert len(list((tmp_path / "c" / "parts").glob("part-*"))) == 1


def test_ids_that_clash_are_named_with_the_way_out(tmp_path):
    items = [toy_input(tmp_path, "a.toy", count=4), toy_input(tmp_path, "b.toy", count=4, first=3)]
    with pytest.raises(ValueError, match=r"id 'e3' is in the corpus already.*--prefix-ids makes ids of several logs"):
        beam.convert_on_beam(items, Opener(tmp_path), tmp_path / "c")
    done = beam.convert_on_beam(items, Opener(tmp_path), tmp_path / "d", Recipe(prefix_ids=True))
    assert [episode.info["id"] for episode in done.corpus][3:5] == ["a.toy/e3", "b.toy/e3"]


def test_a_bad_episode_is_one_line(tmp_path):
    items = [toy_input(tmp_path, "a.toy", count=4, bad=[2])]
    with pytest.raises(ValueError, match=r"^toy:a.toy: episode 2 \(e2\): 3 observations for 3 actions"):
        beam.convert_on_beam(items, Opener(tmp_path), tmp_path / "c")


def test_without_beam_one_line_names_the_extra():
    code = (
        "import sys; sys.modules['apache_beam'] = None\n"
        "from worldmodel.corpus.beam import convert_on_beam\n"
        "try: convert_on_beam([], None, 'c')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "conversion on Beam needs Apache Beam: pip install 'worldmodel[beam]'"
