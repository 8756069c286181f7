"""Where a run's metrics go: JSON lines always; TensorBoard and Weights & Biases where asked for."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from worldmodel.trajectory import suggest


@runtime_checkable
class Logger(Protocol):
    """Takes the metrics of a step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps them; a number that is not finite becomes null, or is left out."""
        ...

    def close(self) -> None:
        """Writes out what is held back."""
        ...


class JsonLines:
    """`metrics.jsonl`: one object a line, `step` first.

    Args:
      run: the run folder.
      step: where training resumes; lines of later steps, which will be taken again, are dropped.
    """

    def __init__(self, run: Path, step: int):
        self._path = run / "metrics.jsonl"
        drop_after(self._path, step)
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115  # closed by `close`

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line; `OSError` that names the file where the disk is full."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        try:
            self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files in `tensorboard/` of the run folder."""

    def __init__(self, run: Path, step: int):
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise ValueError(_missing("tensorboard", "tensorboardX")) from None
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar for each metric that is finite."""
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes the events."""
        self._writer.close()


class WandB:
    """A Weights & Biases run of project `worldmodel`, named after the folder; the same folder continues it."""

    def __init__(self, run: Path, step: int):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise ValueError(_missing("wandb", "wandb")) from None
        config = (run / "config.json").read_text(encoding="utf-8")
        identity = hashlib.sha256(f"{run.absolute()}\n{config}".encode()).hexdigest()[:16]
        self._run = wandb.init(
            project="worldmodel", name=run.name, id=identity, resume="allow", dir=str(run), config=json.loads(config)
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row of the metrics that are finite."""
        self._run.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        """Ends the run there."""
        self._run.finish()


LOGGERS: dict[str, type[TensorBoard] | type[WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}


def check_loggers(names: Sequence[str]) -> None:
    """`ValueError` for a name that is none."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(f"logger {name!r} is unknown{suggest(name, LOGGERS)}; known are {', '.join(LOGGERS)}")


def open_loggers(names: Sequence[str], run: Path, step: int) -> list[Logger]:
    """JSON lines and those named; `ValueError` with one line for a missing extra."""
    check_loggers(names)
    others: list[Logger] = [LOGGERS[name](run, step) for name in names]
    return [JsonLines(run, step), *others]


def drop_after(path: Path, step: int) -> None:
    """Removes lines of later steps, and a line that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry: Any = json.loads(line)
        except json.JSONDecodeError:
            continue
        if entry["step"] <= step:
            kept.append(line + "\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(path)


def _missing(extra: str, package: str) -> str:
    return f"{package} is not installed; it comes with the extra: pip install 'worldmodel[{extra}]'"
