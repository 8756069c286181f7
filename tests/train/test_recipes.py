"""What holds for every recipe of `train/`: it says what it needs and gives, it helps, and it trains."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worldmodel.cli.recipe import recipe
from worldmodel.corpus import write_corpus
from worldmodel.spaces import box
from worldmodel.training.presets import PRESETS
from worldmodel.training.recipes import RECIPES, TEXT_RECIPES
from worldmodel.trajectory import Spec, Trajectory

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for path in sorted((ROOT / "train").glob("*.py"))}
FIELDS = ("Command", "Data", "Hardware", "Time", "Expected")
VECTOR = (box((3,), "float32"), box((1,), "float32", -1.0, 1.0))
DISCRETE = {"type": "Discrete", "n": 3, "start": 0}
SPACES = {
    "doorkey": (box((4, 4), "uint8", 0.0, 255.0), DISCRETE),
    "breakout": (box((12, 12, 3), "uint8", 0.0, 255.0), DISCRETE),
}
"""Observation and action of the corpus that stands for a recipe's own; `VECTOR` for the others."""
SIZES = {
    **{"trunk.width": 8, "trunk.layers": 1, "trunk.heads": 2, "trunk.kv-heads": 1, "trunk.mlp": 8, "trunk.window": 4},
    **{"chain-hidden": 4, "head-hidden": 8, "components": 1},
}
DEBUG = {
    **{"steps": 2, "batch-size": 4, "length": 4, "warmup": 1, "log-every": 1, "evaluation-batches": 1},
    **{f"model.{name}": value for name, value in SIZES.items()},
}


def values(space: dict[str, Any], rng: np.random.Generator, count: int) -> np.ndarray:
    if space["type"] == "Discrete":
        return rng.integers(0, space["n"], count)
    shape = (count, *space["shape"])
    if space["dtype"] == "uint8":
        return rng.integers(0, 3, shape).astype(np.uint8)
    return rng.uniform(-1, 1, shape).astype(np.float32)


def tiny_corpus(path: Path, observation: dict[str, Any], action: dict[str, Any]) -> Path:
    rng = np.random.default_rng(0)
    episodes = (
        Trajectory(
            observations=values(observation, rng, 9),
            actions=values(action, rng, 8),
            rewards=rng.normal(size=8).astype(np.float32),
            terminated=index % 2 == 0,
            truncated=index % 2 == 1,
            info={"id": f"{index}"},
        )
        for index in range(24)
    )
    write_corpus(path, Spec(observation, action), episodes, provenance={"made_by": "a test"})
    return path


def run(path: Path, *words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the recipe, run as Python runs a script."""
    monkeypatch.setattr(sys, "argv", [path.name, *words])
    monkeypatch.syspath_prepend(str(path.parent))
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(path), run_name="__main__")
    return stopped.value.code or 0


def test_every_configuration_has_its_recipe():
    assert set(FILES) == {*RECIPES, *TEXT_RECIPES}


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_says_what_it_needs_and_gives(name):
    text = FILES[name].read_text()
    doc = text.split('"""')[1]
    found = re.findall(r"^(\w+): +(\S.*)$", doc, re.MULTILINE)
    assert tuple(field for field, _ in found) == FIELDS
    said = dict(found)
    assert said["Command"] == f"python train/{name}.py corpora/{name} --out runs/{name}"
    script = ROOT / said["Data"].removeprefix("python ").split()[0]
    assert script.is_file() and said["Data"].endswith(f"corpora/{name}")
    assert f'{"TEXT_" if name in TEXT_RECIPES else ""}RECIPES["{name}"]' in text
    assert f"`{name}.py`" in (ROOT / "train" / "README.md").read_text()


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_helps(name, monkeypatch, capsys):
    assert run(FILES[name], "--help", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert f"python train/{name}.py" in shown and "--config.steps" in shown


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("breakout", "doorkey") else n for n in RECIPES]
)
def test_a_recipe_trains(name, tmp_path, monkeypatch, capsys):
    corpus = tiny_corpus(tmp_path / name, *SPACES.get(name, VECTOR))
    words = [word for field, value in DEBUG.items() for word in (f"--config.{field}", str(value))]
    again = [str(corpus), "--out", str(tmp_path / "run"), "--json", *words]
    assert run(FILES[name], *again, monkeypatch=monkeypatch) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 2 and np.isfinite(result["metrics"]["nll"])
    described = json.loads((tmp_path / "run" / "config.json").read_text())
    # What the command line did not change is the recipe's.
    assert described["training"]["learning_rate"] == RECIPES[name].learning_rate
    assert described["model"]["members"] == RECIPES[name].model.members


@pytest.mark.parametrize("name", TEXT_RECIPES)
def test_a_recipe_of_texts_trains(name, text_run, tmp_path, monkeypatch, capsys):
    sizes = {"trunk.width": 8, "trunk.layers": 1, "trunk.heads": 2, "trunk.kv-heads": 1, "trunk.mlp": 8}
    few = {"steps": 2, "batch-size": 2, "length": 192, "vocabulary": 256, "warmup": 1, "evaluation-batches": 1}
    words = [word for field, value in (few | sizes).items() for word in (f"--config.{field}", str(value))]
    again = [str(text_run / "corpus"), "--out", str(tmp_path / "run"), "--json", *words]
    assert run(FILES[name], *again, monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    described = json.loads((tmp_path / "run" / "config.json").read_text())
    assert described["training"]["learning_rate"] == TEXT_RECIPES[name].learning_rate


def test_a_recipe_takes_no_preset(capsys):
    assert recipe("", PRESETS["debug"], ["corpora/mine", "--preset", "small"]) == 2
    assert "a recipe brings its own configuration" in capsys.readouterr().err
