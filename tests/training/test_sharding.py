"""Meshes: how they are written, and how arrays lie on them."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import PartitionSpec as P

from worldmodel.training.sharding import AXES, Layout, mesh_shape, parse_mesh, partition


def sizes(**axes):
    return {axis: 1 for axis in AXES} | axes


def test_a_mesh_is_one_line():
    assert parse_mesh("") == {}
    assert parse_mesh(" data=4, fsdp=2 ") == {"data": 4, "fsdp": 2}
    assert mesh_shape("data=4,fsdp=2", 8) == sizes(data=4, fsdp=2)
    assert mesh_shape("tensor=2,data=-1", 8) == sizes(data=4, tensor=2)
    assert mesh_shape("fsdp=3", 8) == sizes(fsdp=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=4,fspd=2", r"mesh axis 'fspd' is unknown.*fsdp.*; axes are data, fsdp, members, tensor"),
        ("data=2,data=2", "names data twice"),
        ("data=0", "size of data is '0'; a positive number or -1"),
        ("data", "size of data is ''"),
        ("data=-2", "size of data is '-2'"),
        ("data=-1,fsdp=-1", "only one axis can take the devices that are left"),
    ],
)
def test_a_mesh_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_mesh(text)


def test_a_mesh_must_fit_the_devices():
    with pytest.raises(ValueError, match="needs 16 devices; 8 are there"):
        mesh_shape("data=8,fsdp=2", 8)
    with pytest.raises(ValueError, match="8 devices cannot be divided by 3"):
        mesh_shape("tensor=3,data=-1", 8)


@pytest.mark.parametrize(
    ("names", "shape", "mesh", "expected"),
    [
        (("blocks", "0", "qkv", "kernel"), (3, 64, 96), sizes(fsdp=4, tensor=2), P(None, "fsdp", "tensor")),
        (("blocks", "0", "down", "kernel"), (3, 64, 96), sizes(fsdp=4, tensor=2), P(None, "tensor", "fsdp")),
        (("blocks", "0", "qkv", "kernel"), (4, 64, 96), sizes(members=2), P("members")),
        (("embed", "kernel"), (3, 5, 64), sizes(fsdp=4, tensor=2), P(None, None, "tensor")),
        (("embed", "kernel"), (1, 5, 65536), sizes(fsdp=4, tensor=2), P(None, None, ("tensor", "fsdp"))),
        (("blocks", "0", "qkv", "kernel"), (3, 63, 95), sizes(fsdp=4, tensor=2), P()),
        (("blocks", "0", "qkv", "bias"), (3, 96), sizes(fsdp=4, tensor=2), P()),
        (("observation", "previous"), (3, 4, 4, 32), sizes(fsdp=4), P(None, None, None, "fsdp")),
        (("step",), (), sizes(fsdp=4), P()),
        (("blocks", "0", "qkv", "kernel"), (3, 64, 96), sizes(data=8), P()),
    ],
)
def test_rules_by_name_and_shape(names, shape, mesh, expected):
    assert partition(names, shape, mesh) == expected


def test_a_batch_must_be_dealt_out_to_members_and_devices():
    layout = Layout.of("data=1")
    layout.check(12, 3, 4)
    with pytest.raises(
        ValueError, match="batch_size 10 cannot be dealt out to 2 members, 2 micro-batches and 1 groups"
    ):
        layout.check(10, 2, 2)
    assert layout.shard(12) == (0, 1)
    with pytest.raises(ValueError, match=f"needs {len(jax.devices()) + 1} devices"):
        Layout.of(f"data={len(jax.devices()) + 1}")
