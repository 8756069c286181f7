"""What a run will cost: counts by hand, and XLA's memory on a mesh that this machine does not have."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from tests.support import tiny_columns, untrained_model
from tests.training.many_devices import CONFIG, DEBUG
from worldmodel.corpus import write_corpus
from worldmodel.model.step import StepConfig, init_params
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.checkpoint import describe
from worldmodel.training.estimate import DEVICES, estimate, parameters_per_member, step_flops
from worldmodel.training.presets import PRESETS
from worldmodel.training.rehearsal import rehearse


def described(model=DEBUG):
    world = untrained_model("CartPole-v1")
    return describe(world.spec, world.dynamics.codec, model, {})


def test_flops_are_six_per_parameter_and_position_plus_attention():
    model = StepConfig(trunk=TrunkConfig(width=10, layers=3, heads=1, kv_heads=1, window=2))
    seen = 1 + 2 + 2 + 2
    assert step_flops(model, 1_000, 5, 4) == 5 * (6 * 1_000 * 4 + 12 * 3 * 10 * seen)


def test_parameters_are_those_of_one_member():
    params = init_params(DEBUG, untrained_model("CartPole-v1").dynamics.codec, 0)
    assert parameters_per_member(params) * DEBUG.members == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device_kind": "h10"}, r"device kind 'h10' is unknown \(did you mean 'h100'\?\); known are cpu, t4"),
        ({"devices": 0}, "0 devices at utilisation"),
        ({"utilisation": 1.5}, "at utilisation 1.5"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        estimate(described(), CONFIG, **change)


@pytest.mark.slow
def test_a_pod_is_planned_without_a_pod():
    config = dataclasses.replace(CONFIG, mesh="data=4,fsdp=2", steps=1_000)
    found = estimate(described(), config, devices=8, device_kind="h100", utilisation=0.5, price_per_hour=2.0)
    params = init_params(DEBUG, untrained_model("CartPole-v1").dynamics.codec, 0)
    assert found["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert found["flops_per_step"] == step_flops(DEBUG, found["parameters_per_member"], 32, 7)
    expected = found["flops_per_step"] / (8 * DEVICES["h100"].float32 * 0.5)
    assert found["seconds_per_step"] == pytest.approx(expected)
    assert found["days"] == pytest.approx(1_000 * expected / 86_400)
    assert found["cost"] == pytest.approx(2.0 * 8 * 1_000 * expected / 3_600)
    assert found["fits"] is True
    memory = found["memory_per_device"]
    assert memory["total"] == sum(value for name, value in memory.items() if name != "total")
    # Parameters and two moments of them, float32, of which matrices are halved.
    assert 4 * 3 * found["parameters"] / 2 <= memory["arguments"] <= 4 * 3 * found["parameters"] * 1.2
    with pytest.raises(ValueError, match=r"the train step could not be compiled: .*needs 8 devices; 4 are there"):
        estimate(described(), config, devices=4, device_kind="h100")


@pytest.mark.slow
def test_the_1b_preset_is_spread_over_256_devices():
    config = dataclasses.replace(PRESETS["1b"], mesh="fsdp=64,tensor=4")
    found = estimate(described(config.model), config, devices=256, device_kind="tpu-v5e")
    assert found["parameters"] == pytest.approx(1e9, rel=0.05)
    assert found["largest_whole_array"] < 1e5
    assert found["memory_per_device"]["arguments"] < 1.2 * 12 * found["parameters"] / 256
    assert found["fits"] is True


@pytest.mark.slow
def test_a_run_here_is_rehearsed(tmp_path):
    spec, columns = tiny_columns("CartPole-v1", episodes=40, seed=3)
    corpus = tmp_path / "corpus"
    write_corpus(corpus, spec, map(columns.episode, range(columns.episodes)), provenance={})
    found = estimate(described(), CONFIG, corpus=corpus)
    assert 0 < found["seconds_per_step"] < 10
    assert found["start_seconds"] > 0
    assert 5e7 < found["host_memory"] < 1e10
    total = found["start_seconds"] + found["seconds_per_step"] * CONFIG.steps
    assert found["days"] == pytest.approx(total / 86_400)
    assert found["cost"] is None
    assert "price" in found["why"]
    assert np.isfinite(found["flops"])
    with pytest.raises(ValueError, match=r"the first steps could not be taken: .*nothing"):
        rehearse(tmp_path / "nothing", CONFIG, found["flops_per_step"])


@pytest.mark.slow
def test_without_a_corpus_time_is_unknown():
    found = estimate(described(), CONFIG)
    assert found["days"] is None and found["host_memory"] is None
    assert found["why"] == "no corpus was given to take the first steps on"


def test_float32_is_never_faster_than_bfloat16():
    assert all(0 < device.float32 <= device.bfloat16 for device in DEVICES.values())
