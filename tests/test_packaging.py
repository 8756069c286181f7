"""What the wheel holds, what the lock pins, and that the environment's files agree with each other."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import check_wheel

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
LOCKED = re.findall(r"^(\S+)==(\S+?)(?: ; (.+?))? \\\n((?: +--hash=.+\n)+)", LOCK, flags=re.MULTILINE)


def wheel_of(source: Path, out: Path) -> Path:
    """Builds the wheel of a copy of `source`, so that nothing is written beside it."""
    copy = out / "source"
    shutil.copytree(source / "worldmodel", copy / "worldmodel", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("data", "train", "eval"):
        # Neighbours that are importable folders, as after a careless `touch __init__.py`.
        (copy / name).mkdir()
        (copy / name / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(REPOSITORY, tmp_path_factory.mktemp("wheel"))


def test_wheel_holds_worldmodel_alone_and_imports_elsewhere(wheel: Path):
    assert check_wheel.top_level_names(wheel) == {"worldmodel"}
    assert check_wheel.problems(wheel) == []


def test_wheel_check_finds_what_is_wrong(wheel: Path, tmp_path: Path):
    bad = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(bad, "w") as target:
        for item in source.infolist():
            if not item.filename.endswith("trajectory.py"):
                target.writestr(item, source.read(item))
        target.writestr("train/recipe.py", "")
    found = "\n".join(check_wheel.problems(bad))
    assert "its top-level names are ['train', 'worldmodel']" in found
    assert "lacks worldmodel/trajectory.py" in found
    assert check_wheel.main([str(bad)]) == 1
    assert check_wheel.main(["nowhere.whl"]) == 2


def test_every_locked_package_has_a_hash():
    lines = [line for line in LOCK.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(LOCKED) > 50


def test_lock_names_no_host():
    assert not re.search(r"://|--index|--find-links|--extra|\bwww\.|\.(org|com|net|io|dev)/", LOCK)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_lock_satisfies_every_requirement(python: str):
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    versions = {}
    for name, version, marker, _ in LOCKED:
        if not marker or Requirement(f"{name} ; {marker}").marker.evaluate(environment):
            assert versions.setdefault(canonicalize_name(name), version) == version, (
                f"{name} is locked twice on {python}"
            )
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["mujoco"], *extras["dev"]]:
        needed = Requirement(text)
        version = versions.get(canonicalize_name(needed.name))
        assert version is not None, f"{text} is not locked: run `make lock`"
        assert needed.specifier.contains(version, prereleases=True), f"{text}, but {version} is locked: run `make lock`"


def test_version_is_one():
    assert importlib.metadata.version("worldmodel") == PROJECT["version"]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, flags=re.MULTILINE).group(1) == PROJECT["version"]


def test_a_python_that_starts_is_found_and_one_that_does_not_is_not(tmp_path: Path):
    finder = REPOSITORY / "tools" / "find_python.sh"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shim = tmp_path / f"python{version}"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    working = tmp_path / "python3"
    working.symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    found = subprocess.run([finder, version], env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "python3")
    missing = subprocess.run([finder, "9.9"], env=environment, capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout) == (1, "")
