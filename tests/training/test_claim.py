"""A run folder made before an option existed is the same run with that option's default."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.support import SMALL, tiny_columns
from worldmodel.training.checkpoint import model_from_config, read_config
from worldmodel.training.claim import claim
from worldmodel.training.config import TrainingConfig

CONFIG = TrainingConfig(model=SMALL, batch_size=4)
LATER = ("head_channels", "qk_norm", "rope_base", "norm_epsilon")
"""Options of the trunk that the first run folders do not name."""


def test_a_folder_that_names_fewer_options_is_read_and_resumed(tmp_path):
    spec, episodes = tiny_columns("CartPole-v1", episodes=3, seed=0)
    claim(tmp_path, episodes, spec, CONFIG)
    path = tmp_path / "config.json"
    described = json.loads(path.read_text())
    for name in LATER:
        del described["model"]["trunk"][name]
    path.write_text(json.dumps(described))
    assert model_from_config(read_config(tmp_path))[1].config == SMALL
    claim(tmp_path, episodes, spec, CONFIG)
    trunk = dataclasses.replace(SMALL.trunk, rope_base=1e6)
    other = dataclasses.replace(CONFIG, model=dataclasses.replace(SMALL, trunk=trunk))
    with pytest.raises(
        ValueError, match=r"another configuration: model\.trunk\.rope_base is 10000\.0 there, 1000000\.0"
    ):
        claim(tmp_path, episodes, spec, other)
