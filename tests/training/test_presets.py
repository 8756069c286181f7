"""Presets have the sizes that they are named for."""

import jax
import numpy as np
import pytest

from tests.support import tiny_columns
from worldmodel.model.step import abstract_params
from worldmodel.training.claim import codec_of
from worldmodel.training.presets import PRESETS


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("debug", 0, 5e4),
        ("tiny", 5e4, 2e5),
        ("small", 3.2e6, 3.6e6),
        ("25m", 24e6, 28e6),
        ("85m", 80e6, 90e6),
        ("300m", 290e6, 310e6),
        pytest.param("1b", 0.98e9, 1.1e9, marks=pytest.mark.slow),
    ],
)
def test_sizes(name, least, most):
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)
    codec = codec_of(spec, columns)
    leaves = jax.tree.leaves(abstract_params(PRESETS[name].model, codec))
    assert least < sum(int(np.prod(leaf.shape)) for leaf in leaves) < most


def test_windows_of_a_preset_fill_its_attention():
    assert all(preset.length >= preset.model.trunk.window for preset in PRESETS.values())
