"""`d4rl:FILE.hdf5`: the flat HDF5 files of D4RL, all episodes in one column after the other.

Row `i` holds `observations`, `actions` and `rewards` of one step, `terminals` (the task ended after it), where there
are any `timeouts` (a limit cut after it), and `next_observations`.

An episode ends after a row that is a terminal or a timeout (the task outweighs the clock); where the file has no
`timeouts`, after `max_episode_steps`; and where the next observation is not the observation of the next row, because
something was cut there that no flag tells. What its last action led to is taken from `next_observations`. Files without
that column do not hold it: the last step of each of their episodes is then left out, its end with it, and no row of
another episode ever stands in for it. Where the rows themselves end, the episode is neither terminated nor truncated.

D4RL's two loaders keep these same transitions, but for the following. `qlearning_dataset` takes every next observation
from the next row: it leaves out each timeout's step and the file's last row, and gives the step of a terminal the first
observation of the next episode. `sequence_dataset` gives rows without what the last one led to, and leaves out rows
after the last end. Without `timeouts` both count steps, yet differently: from the second episode on
`sequence_dataset` cuts one step early.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from worldmodel.sources import hdf5
from worldmodel.sources.files import COMPRESSED, LONGEST_RECORD, open_binary, suffix_of
from worldmodel.spaces import box, dtype_of, shape_of
from worldmodel.trajectory import Spec, Trajectory

if TYPE_CHECKING:
    import h5py

LOG_PROB = "infos/action_log_probs"
NEEDED = ("observations", "actions", "terminals")
COLUMNS = (*NEEDED, "rewards", "timeouts", "next_observations", LOG_PROB)
BLOCK_BYTES = 2**24
"""Rows read at once take about this many bytes; an episode is put together from them."""
# A next observation that was rounded on its own may differ from the next row by this much and still be the same.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


@dataclasses.dataclass(frozen=True)
class D4rlSource:
    """Episodes of one file, in the order of its rows.

    Attributes:
      limit: steps after which an episode is cut where the file has no `timeouts`, or None.
    """

    spec: Spec
    provenance: Mapping[str, Any]
    path: pathlib.Path
    limit: int | None
    policy: str | None

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode; memory is that of one, and of a block of rows."""
        with hdf5.open_hdf5(self.path) as file:
            for piece in _episodes(_blocks(_columns(file, self.path), self.path), self.limit, self.path):
                trajectory = self._trajectory(piece)
                if len(trajectory):
                    yield trajectory

    def _trajectory(self, piece: _Piece) -> Trajectory:
        rows = piece.rows
        observations = rows["observations"]
        if "next_observations" in rows:
            observations = np.concatenate([observations, rows["next_observations"][-1:].astype(observations.dtype)])
            steps, terminated, truncated = len(observations) - 1, piece.terminated, piece.truncated
        else:
            steps, terminated, truncated = len(observations) - 1, False, False
        info: dict[str, Any] = {"id": f"{_stem(self.path)}/{piece.start}", "source": f"d4rl:{self.path.name}"}
        if self.policy is not None:
            info["policy"] = self.policy
        return Trajectory(
            observations=hdf5.as_kept(observations, dtype_of(self.spec.observation_space)),
            actions=hdf5.as_kept(rows["actions"][:steps], dtype_of(self.spec.action_space)),
            rewards=_float32(rows.get("rewards"), steps),
            terminated=terminated,
            truncated=truncated,
            action_log_prob=_float32(rows.get(LOG_PROB), steps),
            info=info,
        )


def open_source(place: str, *, max_episode_steps: int | None = None, env_id: str | None = None) -> D4rlSource:
    """Opens a file; of its rows only whole-numbered observations or actions are read, to count their values.

    `info` of an episode has the id `<file>/<its first row>`, and as `policy` the file's `metadata/algorithm`.

    Args:
      place: the file, `.gz` or `.zst` as it is.
      max_episode_steps: the time limit of the episodes; they are cut there where the file has no `timeouts`.
      env_id: the Gymnasium environment that the logs are of, which gives spaces and limit: the file has neither.
        Without it Boxes have no bounds, and whole numbers are a Discrete of as many values as there are.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is damaged or has another layout, or `env_id` is unknown or has other spaces.
    """
    path = pathlib.Path(place)
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f"{place}: max_episode_steps is {max_episode_steps}; at least 1 is needed")
    with hdf5.open_hdf5(path) as file:
        columns = _columns(file, path)
        found = {role: _space_of(columns[f"{role}s"], path) for role in ("observation", "action")}
        policy = _algorithm(file, path)
        unread = _unread(file, path)
        rows = columns["observations"].shape[0]
    spec = Spec(found["observation"], found["action"], max_episode_steps=max_episode_steps)
    if env_id is not None:
        spec = _of_environment(env_id, spec, place)
    limit = None if "timeouts" in columns else spec.max_episode_steps
    lines = unread + _lost(columns, limit)
    provenance = {"format": "d4rl", "place": place, "files": [str(path)], "rows": rows, "left_out": lines}
    return D4rlSource(spec, provenance, path, limit, policy)


def recognise(path: pathlib.Path) -> bool:
    """An HDF5 file."""
    if suffix_of(path) not in hdf5.SUFFIXES or not path.is_file():
        return False
    try:
        with open_binary(path) as file:
            return file.read(len(hdf5.SIGNATURE)) == hdf5.SIGNATURE
    except (OSError, ValueError):
        return False


# --- What the file holds ----------------------------------------------------------------------------------------------


def _columns(file: h5py.File, path: pathlib.Path) -> dict[str, Any]:
    """The arrays of `COLUMNS` that are there, of one length."""
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        folder, _, leaf = name.rpartition("/")
        group = hdf5.subgroup(file, folder, path) if folder else file
        if (found := hdf5.array(group, leaf, path) if group is not None else None) is not None:
            columns[name] = found
    for name in NEEDED:
        if name not in columns:
            raise ValueError(f"{path}: has no {name!r}; D4RL's layout has {', '.join(NEEDED)} beside each other")
    shapes = {name: column.shape for name, column in columns.items()}
    rows = shapes["observations"][:1]
    for name, shape in shapes.items():
        if not shape or shape[:1] != rows:
            raise ValueError(f"{path}: {name!r} has shape {shape}; 'observations' has {shapes['observations']}")
        if columns[name].dtype.kind not in "biuf":
            raise ValueError(f"{path}: {name!r} holds {columns[name].dtype}; numbers are needed")
        if name not in ("observations", "actions", "next_observations") and shape[1:] not in ((), (1,)):
            raise ValueError(f"{path}: {name!r} has shape {shape}; one number a row is needed")
    if shapes.get("next_observations", shapes["observations"]) != shapes["observations"]:
        raise ValueError(f"{path}: 'next_observations' has shape {shapes['next_observations']}; 'observations' another")
    return columns


def _space_of(column: Any, path: pathlib.Path) -> dict[str, Any]:
    shape, dtype = column.shape[1:], column.dtype
    if dtype.kind == "f" or (shape and dtype.kind != "b"):
        return box(shape, dtype.newbyteorder("="))
    if shape:
        return {"type": "MultiBinary", "shape": list(shape)}
    low, high = 0, 0
    for start in range(0, column.shape[0], BLOCK_BYTES):
        values = hdf5.read_rows(column, path, start, min(start + BLOCK_BYTES, column.shape[0]))
        low, high = min(low, int(values.min())), max(high, int(values.max()))
    return {"type": "Discrete", "n": high - low + 1, "start": low}


def _algorithm(file: h5py.File, path: pathlib.Path) -> str | None:
    group = hdf5.subgroup(file, "metadata", path)
    found = hdf5.array(group, "algorithm", path) if group is not None else None
    return None if found is None or found.shape else hdf5.single_text(found, path)


def _unread(file: h5py.File, path: pathlib.Path) -> list[str]:
    """A line for each group or array of the file that no trajectory holds."""
    lines = []
    for name in hdf5.names(file, path):
        if name in COLUMNS:
            continue
        if name in ("infos", "metadata") and (group := hdf5.subgroup(file, name, path)) is not None:
            read = ("action_log_probs",) if name == "infos" else ("algorithm",)
            inside = [key for key in hdf5.names(group, path) if key not in read]
            name = f"{name}/{{{','.join(inside)}}}" if inside else ""
        if name:
            lines.append(f"{name}: a trajectory has no place for it")
    return lines


def _lost(columns: Mapping[str, Any], limit: int | None) -> list[str]:
    lines = []
    if "next_observations" not in columns:
        lines.append(
            "the last step of each episode, and with it the episode's end: "
            "the file has no next_observations, so what that step led to is not known"
        )
        if "timeouts" not in columns and limit is None:
            lines.append(
                "ends by a time limit: the file has no timeouts, so episodes may be glued together; "
                "give max_episode_steps"
            )
    if "rewards" not in columns:
        lines.append("rewards: the file has none")
    return lines


def _of_environment(env_id: str, spec: Spec, place: str) -> Spec:
    from worldmodel.sources.gymnasium import make_env

    env = make_env(env_id)
    try:
        real = Spec.from_gymnasium(env)
    finally:
        env.close()
    for role in ("observation", "action"):
        ours, theirs = getattr(spec, f"{role}_space"), getattr(real, f"{role}_space")
        if theirs["type"] in ("Dict", "Tuple", "Text") or shape_of(ours) != shape_of(theirs):
            real_form = f"{theirs['type']} of shape {shape_of(theirs)}"
            raise ValueError(f"{place}: an {role} has shape {shape_of(ours)}; {env_id!r} has a {real_form}")
    limit = real.max_episode_steps if spec.max_episode_steps is None else spec.max_episode_steps
    return dataclasses.replace(real, env_id=env_id, max_episode_steps=limit)


# --- From rows to episodes --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Rows of one episode, and how the last of them ended."""

    start: int
    rows: Mapping[str, np.ndarray]
    terminated: bool
    truncated: bool


def _blocks(columns: Mapping[str, Any], path: pathlib.Path) -> Iterator[dict[str, np.ndarray]]:
    """All columns, some rows at a time."""
    total = columns["observations"].shape[0]
    step = max(1, BLOCK_BYTES // max(1, sum(hdf5.row_bytes(column) for column in columns.values())))
    for start in range(0, total, step):
        block = {name: hdf5.read_rows(c, path, start, min(start + step, total)) for name, c in columns.items()}
        yield {
            k: v if k in ("observations", "actions", "next_observations") else v.reshape(len(v))
            for k, v in block.items()
        }


def _episodes(blocks: Iterator[dict[str, np.ndarray]], limit: int | None, path: pathlib.Path) -> Iterator[_Piece]:
    """Joins the rows between one end and the next."""
    parts: list[dict[str, np.ndarray]] = []
    start = length = size = 0

    def piece(flags: tuple[bool, bool]) -> _Piece:
        nonlocal parts, start, length, size
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        done = _Piece(start, rows, *flags)
        parts, start, length, size = [], start + length, 0, 0
        return done

    for block in blocks:
        rows = len(block["terminals"])
        if parts and _jumps(parts[-1], block):
            yield piece((False, False))
        terminals, timeouts, cuts = _ends(block)
        stops, at = np.flatnonzero(cuts) + 1, 0
        while at < rows:
            ahead = int(np.searchsorted(stops, at, side="right"))
            stop = int(stops[ahead]) if ahead < len(stops) else rows
            if limit is not None:
                stop = min(stop, at + limit - length)
            part = {name: column[at:stop] for name, column in block.items()}
            parts.append(part)
            length, size, at = length + stop - at, size + sum(column.nbytes for column in part.values()), stop
            if size > LONGEST_RECORD:
                raise ValueError(f"{path}: the episode from row {start} is larger than {LONGEST_RECORD} bytes")
            terminated = bool(terminals[stop - 1])
            truncated = bool(timeouts[stop - 1]) or length == limit
            if terminated or truncated or cuts[stop - 1]:
                yield piece((terminated, truncated and not terminated))
    if parts:
        yield piece((False, False))


def _ends(block: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks `[N]` of rows: terminals, timeouts, and rows after which an episode ends for either or by a jump."""
    terminals = block["terminals"] != 0
    timeouts = block["timeouts"] != 0 if "timeouts" in block else np.zeros_like(terminals)
    cuts = terminals | timeouts
    if "next_observations" in block:
        cuts[:-1] |= ~_same(block["next_observations"][:-1], block["observations"][1:])
    return terminals, timeouts, cuts


def _jumps(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> bool:
    """Whether the first row of `after` is not where the last of `before` led to."""
    return "next_observations" in before and not _same(before["next_observations"][-1:], after["observations"][:1])[0]


def _same(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Mask `[N]` of rows that are equal but for rounding."""
    axes = tuple(range(1, left.ndim))
    if left.dtype.kind != "f" and right.dtype.kind != "f":
        return (left == right).all(axis=axes)
    return np.asarray(np.isclose(left, right, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True).all(axis=axes))


def _float32(values: np.ndarray | None, steps: int) -> np.ndarray | None:
    if values is None:
        return None
    with np.errstate(over="ignore"):  # what overflows is infinite, and found so
        return values[:steps].astype(np.float32)


def _stem(path: pathlib.Path) -> str:
    name = path.name
    for ending in (*COMPRESSED, *hdf5.SUFFIXES):
        name = name.removesuffix(ending)
    return name
