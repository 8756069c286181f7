"""`worldmodel data show`: every kind of space in words, and the figure."""

from __future__ import annotations

import json

import pytest

from tests.corpus.logs import SPEC, toy_episode
from worldmodel.cli import main
from worldmodel.cli.show import describe
from worldmodel.corpus import write_corpus
from worldmodel.spaces import box

TEXT = {"type": "Text", "max_length": None}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"type": "Discrete", "n": 3, "start": 0}, "Discrete(3)"),
        ({"type": "Discrete", "n": 3, "start": -1}, "Discrete(3), from -1"),
        (box((3,), "float32"), "Box(3,) float32"),
        (box((2, 3), "float64", -1.0, 2.5), "Box(2, 3) float64, -1 to 2.5"),
        (box((64, 48, 3), "uint8"), "Box(64, 48, 3) uint8, an image"),
        ({"type": "MultiDiscrete", "nvec": [2, 3], "start": [0, 0]}, "MultiDiscrete([2, 3])"),
        ({"type": "MultiDiscrete", "nvec": [2] * 9, "start": [1] * 9}, "MultiDiscrete((9,) of 2), from"),
        ({"type": "MultiBinary", "shape": [4]}, "MultiBinary(4,)"),
        (TEXT, "Text"),
        ({"type": "Text", "max_length": 80}, "Text of at most 80 characters"),
        (
            {"type": "Dict", "spaces": {"a": TEXT, "b": {"type": "Tuple", "spaces": [box((), "int8"), TEXT]}}},
            "Dict of 2\n  a: Text\n  b: Tuple of 2\n    0: Box() int8, -128 to 127\n    1: Text",
        ),
    ],
)
def test_every_space_in_words(space, words):
    assert describe(space).startswith(words)


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path / "c", SPEC, [toy_episode(number) for number in range(12)], provenance={})
    return tmp_path / "c"


def test_show_draws_the_figure(corpus, capsys):
    figure = corpus.parent / "new" / "figure.png"
    assert main(["data", "show", str(corpus), "--plot", str(figure), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["episodes"] == 12
    assert shown["plot"] == str(figure)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["data", "show", str(corpus)]) == 0
    assert "Discrete(4), from -1" in capsys.readouterr().out


def test_a_figure_of_another_kind_is_refused_before_anything_is_read(corpus, capsys):
    assert main(["data", "show", str(corpus), "--plot", str(corpus / "figure.gif")]) == 2
    assert "a figure is written as .png, .svg, .pdf, not .gif" in capsys.readouterr().err
