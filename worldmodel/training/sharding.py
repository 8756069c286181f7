"""Where arrays live: a mesh of devices from one line of text, and how parameters and batches lie on it.

Axes: `data` splits the batch; `fsdp` splits the batch and the parameters (ZeRO-3, Rajbhandari et al. 2020, arXiv
1910.02054); `tensor` splits the products inside a layer (Megatron, Shoeybi et al. 2019, arXiv 1909.08053); `members`
splits the ensemble.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldmodel._types import PyTree
from worldmodel.trajectory import suggest

AXES = ("data", "fsdp", "members", "tensor")
"""Outermost first: what talks most lies on neighbouring devices."""

INTO_STREAM = ("output", "down", "second", "last")
"""Maps whose input is split over `tensor`, so that their products are summed; every other map has its output split."""

LARGE = 2**16
"""Numbers from which an array is worth splitting in an awkward way."""


def parse_mesh(text: str) -> dict[str, int]:
    """`"data=4,fsdp=2"` as sizes of the axes named; a size of -1 takes the devices that are left. `ValueError`."""
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in AXES:
            raise ValueError(f"mesh axis {name!r} is unknown{suggest(name, AXES)}; axes are {', '.join(AXES)}")
        if name in sizes:
            raise ValueError(f"mesh {text!r} names {name} twice")
        if not number.removeprefix("-").isdecimal() or (int(number) < 1 and int(number) != -1):
            raise ValueError(f"mesh {text!r}: size of {name} is {number!r}; a positive number or -1 is needed")
        sizes[name] = int(number)
    if list(sizes.values()).count(-1) > 1:
        raise ValueError(f"mesh {text!r}: only one axis can take the devices that are left")
    return sizes


def mesh_shape(text: str, devices: int) -> dict[str, int]:
    """Size of every axis on so many devices; `ValueError` where they do not suffice or do not divide."""
    sizes = {axis: 1 for axis in AXES} | parse_mesh(text)
    named = math.prod(size for size in sizes.values() if size > 0)
    if -1 in sizes.values():
        if devices % named:
            raise ValueError(f"mesh {text!r}: {devices} devices cannot be divided by {named}")
        sizes = {axis: devices // named if size == -1 else size for axis, size in sizes.items()}
    elif named > devices:
        raise ValueError(f"mesh {text!r} needs {named} devices; {devices} {'is' if devices == 1 else 'are'} there")
    return sizes


def partition(names: tuple[str, ...], shape: tuple[int, ...], sizes: dict[str, int]) -> PartitionSpec:
    """How a parameter `[members, ...]`, or the optimiser's moment of it, is split.

    Weights `[members, in, out]` of a map: one side over `tensor`, the other over `fsdp`; where that cannot be divided
    and the array is `LARGE`, both go to the same side. Other weights: their largest side over `fsdp`. Biases and gains
    are small and stay whole.

    Args:
      names: its path, innermost last.
      shape: its shape.
      sizes: of the mesh's axes.
    """
    split: list[tuple[str, ...]] = [() for _ in shape]

    def give(axis: str, side: int) -> bool:
        ways = math.prod(sizes[name] for name in (*split[side], axis))
        fits = sizes[axis] > 1 and shape[side] % ways == 0
        if fits:
            split[side] += (axis,)
        return fits

    if shape:
        give("members", 0)
    if len(shape) == 3 and names[-1] == "kernel":
        summed, kept = (1, 2) if names[-2] in INTO_STREAM else (2, 1)
        give("tensor", summed)
        if not give("fsdp", kept) and math.prod(shape) >= LARGE:
            give("fsdp", summed)
    elif len(shape) > 2:
        give("fsdp", max(range(1, len(shape)), key=lambda side: (shape[side] % sizes["fsdp"] == 0, shape[side])))
    while split and not split[-1]:
        split.pop()
    return PartitionSpec(*((axes[0] if len(axes) == 1 else axes) if axes else None for axes in split))


@dataclasses.dataclass(frozen=True)
class Layout:
    """Arrays on a mesh of devices, of one process or several."""

    mesh: Mesh

    @classmethod
    def of(cls, text: str) -> Layout:
        """The mesh of a line of text on this machine's devices; the first ones where not all are needed."""
        devices = jax.devices()
        sizes = mesh_shape(text, len(devices))
        needed = math.prod(sizes.values())
        if jax.process_count() > 1 and needed != len(devices):
            raise ValueError(
                f"mesh {text!r} needs {needed} devices; the {jax.process_count()} processes hold {len(devices)}"
            )
        return cls(Mesh(np.array(devices[:needed]).reshape([sizes[axis] for axis in AXES]), AXES))

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every axis."""
        return dict(self.mesh.shape)

    @property
    def replicated(self) -> NamedSharding:
        """Whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """Windows `[B, ...]`, split over `data` and `fsdp`."""
        return NamedSharding(self.mesh, PartitionSpec(("data", "fsdp")))

    @property
    def shares(self) -> NamedSharding:
        """Windows dealt out to the members, `[M, B/M, ...]`."""
        return NamedSharding(self.mesh, PartitionSpec("members", ("data", "fsdp")))

    def state(self, state: PyTree) -> PyTree:
        """The sharding of every leaf of parameters or training state, by name and shape."""

        def place(path: Any, leaf: Any) -> NamedSharding:
            return NamedSharding(self.mesh, partition(_names(path), tuple(leaf.shape), self.sizes))

        return jax.tree_util.tree_map_with_path(place, state)

    def check(self, batch_size: int, members: int, accumulate: int) -> None:
        """`ValueError` unless the batch can be dealt out to members, micro-batches and devices alike."""
        sizes = self.sizes
        groups = sizes["data"] * sizes["fsdp"]
        if batch_size % (members * accumulate * groups):
            raise ValueError(
                f"batch_size {batch_size} cannot be dealt out to {members} members, {accumulate} micro-batches and "
                f"{groups} groups of devices (data x fsdp); a multiple of {members * accumulate * groups} is needed"
            )
        if members % sizes["members"]:
            raise ValueError(f"{members} members cannot be split over {sizes['members']} groups of devices")

    def shard(self, batch_size: int) -> tuple[int, int]:
        """(index, count): which part of every batch this process reads, of how many parts."""
        slices = [index[0] for index in self.batch.addressable_devices_indices_map((batch_size,)).values() if index]
        first = min(part.start or 0 for part in slices)
        last = max(batch_size if part.stop is None else part.stop for part in slices)
        return first // (last - first), batch_size // (last - first)

    def put(self, tree: PyTree, shardings: PyTree) -> PyTree:
        """Host arrays, equal in every process, as arrays on the mesh."""

        def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
            host = np.asarray(leaf)
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

        return jax.tree.map(put, tree, shardings)

    def put_batch(self, windows: PyTree) -> PyTree:
        """This process's part of a batch, `[B / count, ...]`, as part of the whole on the mesh."""
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.batch, np.asarray(x)), windows)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path)
