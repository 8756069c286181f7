"""Reads damaged copies of a format's fixtures, in a process of its own: `python fuzz.py FORMAT SEED COUNT`.

Prints one JSON object: how many copies were read, refused with one clear line, and every other outcome. A crash or a
hang ends the process, which the test sees.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile

import numpy as np
import zstandard

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 20
"""For one copy; a hang is stopped by the alarm, and counts as a fault."""


class TooSlow(BaseException):
    """Raised by the alarm; no `except Exception` catches it."""


def cases(format: str) -> list:
    """The fixtures of a format that are files."""
    path = ROOT / "tests" / "sources" / "cases" / f"{format}.py"
    spec = importlib.util.spec_from_file_location(f"cases_{format}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [case for case in module.CASES if case.path.exists()]


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    """The beginning alone."""
    return data[: int(rng.integers(len(data) + 1))]


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed anywhere."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 20))):
        if changed:
            changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
    return bytes(changed)


def flip_early(data: bytes, rng: np.random.Generator) -> bytes:
    """The same in the first bytes, where headers and lengths are."""
    return flip(data[:200], rng) + data[200:]


def blank(data: bytes, rng: np.random.Generator) -> bytes:
    """A block of zeros or ones, as a disk gives back what it lost."""
    start, length = int(rng.integers(len(data) + 1)), int(rng.integers(1, 600))
    return (
        data[:start] + bytes([int(rng.choice([0, 255]))]) * len(data[start : start + length]) + data[start + length :]
    )


def repeat(data: bytes, rng: np.random.Generator) -> bytes:
    """A block twice."""
    start, length = int(rng.integers(len(data) + 1)), int(rng.integers(1, 2000))
    return data[: start + length] + data[start:]


def grow_number(data: bytes, rng: np.random.Generator) -> bytes:
    """A number in a text made huge, negative, NaN, a list or a word."""
    digits = [i for i, byte in enumerate(data[:100_000]) if 48 <= byte <= 57]
    if not digits:
        return flip(data, rng)
    at = int(rng.choice(digits))
    word = rng.choice(["9" * 25, "-1", "NaN", "[1]", '"x"', "null", "1e400", "{}"])
    return data[:at] + word.encode() + data[at + 1 :]


def other_dtype(data: bytes, rng: np.random.Generator) -> bytes:
    """An npz with one array of another dtype or shape; else as `flip`."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files if arrays.zip.getinfo(f"{name}.npy").file_size < 10**6}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError):
        return flip(data, rng)
    name = str(rng.choice(list(found)))
    array = found[name]
    change = int(rng.integers(5))
    found[name] = [
        lambda: array.astype("S3"),
        lambda: array.astype(complex) if array.dtype.kind in "fiub" else array[:1],
        lambda: array[:-1],
        lambda: array[None],
        lambda: np.zeros(0, array.dtype),
    ][change]()
    file = io.BytesIO()
    np.savez(file, **found)
    return file.getvalue()


def bomb(data: bytes, rng: np.random.Generator) -> bytes:
    """Much that compresses to little, in the container of the file or in none."""
    zeros = b" " * 300_000_000
    kind = int(rng.integers(3))
    if kind == 0:
        return gzip.compress(zeros, 1)
    if kind == 1:
        return zstandard.compress(zeros)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (len(zeros),)})
        for name in ("obs.npy", "observations.npy", "actions.npy"):
            archive.writestr(name, header.getvalue() + zeros)
    return file.getvalue()


def deep(data: bytes, rng: np.random.Generator) -> bytes:
    """JSON nested beyond reason."""
    depth = int(rng.integers(500, 200_000))
    opening, closing = rng.choice([["[", "]"], ['{"a":', "}"]])
    return (str(opening) * depth + "1" + str(closing) * int(rng.choice([0, depth]))).encode()


MUTATIONS = [
    cut,
    cut,
    flip,
    flip,
    flip,
    flip_early,
    flip_early,
    blank,
    repeat,
    grow_number,
    grow_number,
    other_dtype,
    deep,
]
RARE = bomb
"""One copy in a hundred: it takes a second to make."""


def damage(file: pathlib.Path, rng: np.random.Generator, index: int) -> str:
    """Damages a file in place; says how."""
    mutation = RARE if index % 100 == 50 else MUTATIONS[int(rng.integers(len(MUTATIONS)))]
    file.write_bytes(mutation(file.read_bytes(), rng))
    return f"{mutation.__name__} {file.name}"


def look(source) -> None:
    """Reads every value of every episode, images too."""
    from worldmodel.spaces import column_list

    for trajectory in source:
        for column in column_list(trajectory.observations) + column_list(trajectory.actions):
            np.asarray(column)
        json.dumps(dict(trajectory.info))


def try_one(format: str, rng: np.random.Generator, index: int, found: list, folder: pathlib.Path) -> tuple[str, str]:
    """Outcome of one copy ("read", "refused" or "fault") and what was said of it."""
    from worldmodel.sources import read

    case = found[int(rng.integers(len(found)))]
    copy = folder / case.path.name
    if case.path.is_dir():
        shutil.copytree(case.path, copy)
        files = sorted(file for file in copy.rglob("*") if file.is_file())
        file = files[int(rng.integers(len(files)))]
    else:
        file = pathlib.Path(shutil.copy(case.path, copy))
    how = damage(file, rng, index)
    signal.alarm(SECONDS)
    try:
        look(read(f"{format}:{copy}", **case.options))
        return "read", ""
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        if "\n" in text or len(text) > 1500 or not text or type(error) not in (ValueError, FileNotFoundError):
            return "fault", f"{index}: {case.name}, {how}: no one clear line: {type(error).__name__}: {text[:300]!r}"
        return "refused", f"{how}: {text}"
    except TooSlow:
        return "fault", f"{index}: {case.name}, {how}: took more than {SECONDS} s"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "fault", f"{index}: {case.name}, {how}: {type(error).__name__}: {error} at {last.filename}:{last.lineno}"
    finally:
        signal.alarm(0)


def peak_mb() -> float:
    """Largest resident set of this process; `ru_maxrss` would begin at that of the process which started it."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(format: str, seed: int, count: int) -> None:
    """Tries `count` copies and prints the outcomes."""

    def stop(*_) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, stop)
    found = cases(format)
    outcomes, faults, started = {"read": 0, "refused": 0, "fault": 0}, [], time.monotonic()
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        with tempfile.TemporaryDirectory() as folder:
            outcome, fault = try_one(format, rng, index, found, pathlib.Path(folder))
        outcomes[outcome] += 1
        faults += [fault] if outcome == "fault" else []
        print(f"{index} {outcome} {fault}", file=sys.stderr, flush=True)
    peak = peak_mb()
    seconds = time.monotonic() - started
    print(json.dumps({**outcomes, "faults": faults, "peak_mb": round(peak), "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
