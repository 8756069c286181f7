"""What may import what, and what `import worldmodel` costs."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = (
    "jax",
    "flax",
    "orbax",
    "tensorflow_datasets",
    "grain",
    "matplotlib",
    "gymnax",
    "rejax",
    "pandas",
    "tyro",
    "rich",
)
NOT_ON_AN_ACCELERATOR = (
    "gymnasium",
    "grain",
    "tensorflow_datasets",
    "orbax",
    "gymnax",
    "rejax",
    "tyro",
    "rich",
    "jaxtyping",
    "scipy",
    "matplotlib",
)
LONGEST_IMPORT = 0.5
"""Seconds that a cold `import worldmodel` may take above `import gymnasium`."""


def run(code: str) -> str:
    """Standard output of `code` in a fresh interpreter, as a user would run it: no run-time type checks."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    loaded = run("import sys, worldmodel; print(*sorted({name.partition('.')[0] for name in sys.modules}))").split()
    assert "worldmodel" in loaded
    assert not set(HEAVY) & set(loaded)


def seconds_to_import(module: str) -> float:
    return float(run(f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"))


def test_import_is_quick():
    # The least of several, in turn: other work on the machine only ever adds.
    pairs = [(seconds_to_import("gymnasium"), seconds_to_import("worldmodel")) for _ in range(5)]
    gymnasium, ours = (min(column) for column in zip(*pairs, strict=True))
    assert ours <= gymnasium + LONGEST_IMPORT


BLOCKED = """
import importlib, pkgutil, sys
import jax, flax.nnx, optax, numpy  # with what they themselves need
for name in [name for name in sys.modules if name.partition(".")[0] in {blocked}]:
    del sys.modules[name]

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)

sys.meta_path.insert(0, Blocker())
{code}
"""

IMPORT_ALL_OF_MODEL = """
package = importlib.import_module("worldmodel.model")
for module in pkgutil.walk_packages(package.__path__, "worldmodel.model."):
    importlib.import_module(module.name)
    print(module.name)
"""


def run_blocked(code: str) -> str:
    return run(BLOCKED.format(blocked=set(NOT_ON_AN_ACCELERATOR), code=code))


def test_model_imports_with_jax_flax_optax_and_numpy_alone():
    assert "worldmodel.model.transformer" in run_blocked(IMPORT_ALL_OF_MODEL).split()


def test_train_step_imports_with_jax_flax_optax_and_numpy_alone():
    assert (
        run_blocked("print(importlib.import_module('worldmodel.training.step').__name__)") == "worldmodel.training.step"
    )


IMPORT_EACH = """
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error)
"""


def test_blocker_blocks():
    printed = run_blocked(IMPORT_EACH.format(names=NOT_ON_AN_ACCELERATOR)).splitlines()
    assert printed == [f"No module named '{name}' (blocked)" for name in NOT_ON_AN_ACCELERATOR]


@pytest.mark.parametrize("with_jaxtyping", [True, False])
def test_annotations_evaluate_with_and_without_jaxtyping(with_jaxtyping: bool):
    code = (
        "import worldmodel._types as t\n"
        "for name in t.__all__: getattr(t, name)\n"
        "print(t.Float[t.Array, 'B D'] | None, t.PyTree[t.Float[t.Array, '...']], t.Key[t.Array, 'B'])"
    )
    printed = run(code) if with_jaxtyping else run_blocked(code)
    assert ("jaxtyping" in printed) is with_jaxtyping
    assert "jax" not in run("import sys; from worldmodel._types import Float, Int; print(*sys.modules)").split()


def test_imports_point_one_way():
    command = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run(
        [command, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_an_import_the_wrong_way_is_found(tmp_path: Path):
    shutil.copytree(REPOSITORY / "worldmodel", tmp_path / "worldmodel", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    with (tmp_path / "worldmodel" / "trajectory.py").open("a") as file:
        file.write("\n\ndef late():\n    import worldmodel.codec\n")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "worldmodel.trajectory is not allowed to import worldmodel.codec" in done.stdout


def imported_names(path: Path) -> set[str]:
    """Dotted names that the file `path` imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return names


def test_recipes_import_the_library_and_not_each_other():
    local = {path.stem for folder in ("data", "train", "eval") for path in (REPOSITORY / folder).rglob("*.py")}
    for folder in ("data", "train", "eval"):
        assert not list((REPOSITORY / folder).rglob("__init__.py")), f"{folder}/ is no package"
        for path in (REPOSITORY / folder).rglob("*.py"):
            tops = {name.partition(".")[0] for name in imported_names(path)}
            assert not tops & (local | {"data", "train", "eval", "tests", "tools"}), path
