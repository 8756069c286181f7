"""Checks a built wheel: what it holds, and that it imports from outside the repository.

Use: `python tools/check_wheel.py dist/worldmodel-*.whl` (exit 0 right, 1 wrong, 2 bad usage).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

PROBE = """
import importlib.metadata, sys, worldmodel
print(worldmodel.__file__)
print(importlib.metadata.version("worldmodel"))
"""


def top_level_names(wheel: Path) -> set[str]:
    """Names that installing `wheel` adds to an environment, its own `.dist-info` left out."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/", 1)[0] for name in archive.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def missing_files(wheel: Path, package: Path) -> list[str]:
    """Files of the source tree's `package` (code and package data) that `wheel` lacks, sorted."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    wanted = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    return sorted(wanted - held)


def import_elsewhere(wheel: Path) -> tuple[Path, str]:
    """Installs `wheel` into a temporary folder and imports it from another; returns its `__file__` and its version.

    Raises:
      RuntimeError: the wheel does not install or does not import.
    """
    with tempfile.TemporaryDirectory() as scratch:
        site, elsewhere = Path(scratch) / "site", Path(scratch) / "elsewhere"
        elsewhere.mkdir()
        install = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
        _run([*install, "--target", str(site), str(wheel.resolve())], cwd=elsewhere, env=os.environ)
        # -P keeps the current folder off the path, so that nothing but the installed copy can be found.
        lines = _run(["-P", "-c", PROBE], cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(site)}).splitlines()
        file = Path(lines[0]).resolve()
        if not file.is_relative_to(site.resolve()):
            raise RuntimeError(f"import worldmodel found {file}, not the copy installed from {wheel.name}")
    return file, lines[1]


def _run(arguments: list[str], *, cwd: Path, env: dict[str, str] | os._Environ[str]) -> str:
    """Standard output of this interpreter run with `arguments`; `RuntimeError` with what it printed where it failed."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments[:3])} ... failed with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def problems(wheel: Path) -> list[str]:
    """What is wrong with `wheel`, one line each; empty where nothing is."""
    found = []
    names = top_level_names(wheel)
    if names != {"worldmodel"}:
        found.append(f"{wheel.name}: its top-level names are {sorted(names)}; only worldmodel is allowed")
    missing = missing_files(wheel, REPOSITORY / "worldmodel")
    if missing:
        found.append(f"{wheel.name}: lacks {', '.join(missing)}")
    try:
        file, version = import_elsewhere(wheel)
    except RuntimeError as error:
        return [*found, f"{wheel.name}: {error}"]
    if file.is_relative_to(REPOSITORY):
        found.append(f"{wheel.name}: import worldmodel found {file}, which is in the repository")
    if version != wheel.name.split("-")[1]:
        found.append(f"{wheel.name}: its metadata says version {version}")
    return found


def main(arguments: list[str]) -> int:
    """Checks the one wheel named in `arguments`; returns the exit code."""
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        print(f"use: python tools/check_wheel.py WHEEL (one existing file; got {arguments})", file=sys.stderr)
        return 2
    wheel = Path(arguments[0])
    found = problems(wheel)
    print("\n".join(found) if found else f"{wheel.name}: holds worldmodel alone and imports outside the repository")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
