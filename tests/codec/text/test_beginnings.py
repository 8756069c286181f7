"""What episodes begin from, found in one look at them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.support import counting_episodes
from worldmodel.codec.text import TextRules
from worldmodel.codec.text.beginnings import Beginnings, survey


def test_survey(tmp_path):
    found = survey(counting_episodes(20), TextRules())
    assert found.common == {"system": "You count."} and found.reward == "0" and found.tools == ["add"]
    assert [start["task"] for start in found.starts] == [f"from-{i}" for i in range(7)]
    assert found.starts[3]["observation"] == "start at 3"
    found.save(tmp_path)
    assert Beginnings.load(tmp_path) == dataclasses.replace(found, starts=list(found.starts))
    (tmp_path / "beginnings.json").write_text("[]")
    with pytest.raises(ValueError, match="is damaged"):
        Beginnings.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no beginnings\.json"):
        Beginnings.load(tmp_path / "nowhere")


def test_schemas_come_before_names():
    schema = {"type": "function", "function": {"name": "add", "parameters": {}}}
    other = {"name": "look", "parameters": {}}
    episodes = [dataclasses.replace(t, context={"tools": [schema, other]}, rewards=None) for t in counting_episodes(20)]
    found = survey(episodes, TextRules())
    assert found.tools == [schema, other] and found.reward == ""
    assert json.dumps(found.common) == json.dumps({"tools": [schema, other]})


def test_no_episode():
    nothing = survey([], TextRules())
    assert not nothing.starts and not nothing.common and not nothing.tools
