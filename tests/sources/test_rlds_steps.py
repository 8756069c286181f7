import json
import zlib
from typing import Any

import numpy as np
import pytest

from worldmodel.sources.rlds_steps import Steps, steps_of_features
from worldmodel.spaces import box


def steps_like(features: Any, **options: Any) -> Steps:
    import tensorflow_datasets as tfds

    options = {"instruction": "context", "final_reward": "padding"} | options
    features = {"steps": tfds.features.Dataset(features)} if "steps" not in features else features
    return steps_of_features(tfds.features.FeaturesDict(features), **options)


def example_of(rows: int = 4, **columns: Any) -> dict[str, Any]:
    """Flat columns of an episode of RLDS's form that ends by a limit."""
    index = np.arange(rows)
    found: dict[str, Any] = {
        "steps/observation": index.astype(np.float32),
        "steps/action": 10 + index.astype(np.float32),
        "steps/reward": np.where(index < rows - 1, 100 + index, 0).astype(np.float32),
        "steps/is_first": (index == 0).astype(np.int64),
        "steps/is_last": (index == rows - 1).astype(np.int64),
        "steps/is_terminal": np.zeros(rows, np.int64),
    }
    return found | {f"steps/{name}": column for name, column in columns.items()}


FEATURES: dict[str, Any] = {
    **dict.fromkeys(("observation", "action", "reward"), np.float32),
    **dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_),
}


def without(*names: str) -> dict[str, Any]:
    return {name: feature for name, feature in FEATURES.items() if name not in names}


# Which row belongs where.


def test_the_last_row_holds_an_observation_only():
    found = steps_like(FEATURES).trajectory(example_of(4), {"id": "a"})
    found.validate()
    np.testing.assert_array_equal(found.observations, [0, 1, 2, 3])
    np.testing.assert_array_equal(found.actions, [10, 11, 12])
    np.testing.assert_array_equal(found.rewards, [100, 101, 102])
    assert found.info == {"id": "a"}


@pytest.mark.parametrize(
    ("last", "terminal", "expected"),
    [(1, 1, (True, False)), (0, 1, (True, False)), (1, 0, (False, True)), (0, 0, (False, False))],
)
def test_ends_are_told_apart(last, terminal, expected):
    row = np.array([0, 0, 0, 1])
    found = steps_like(FEATURES).trajectory(example_of(4, is_last=last * row, is_terminal=terminal * row), {})
    assert (found.terminated, found.truncated) == expected


@pytest.mark.parametrize("missing", [("is_terminal",), ("is_terminal", "is_last", "is_first")])
def test_a_log_that_does_not_say_how_it_ended_was_cut(missing):
    found = steps_like(without(*missing)).trajectory(example_of(4), {})
    assert (found.terminated, found.truncated) == (False, False)


@pytest.mark.parametrize(("name", "place"), [("is_first", "beginning"), ("is_last", "end"), ("is_terminal", "end")])
def test_episodes_glued_into_one_record_are_refused(name, place):
    with pytest.raises(
        ValueError, match=rf"step 2 of 5 is marked {name}; an RLDS episode has that at its {place} only"
    ):
        steps_like(FEATURES).trajectory(example_of(5, **{name: np.array([0, 0, 1, 0, 0])}), {})


def test_a_reward_in_the_last_row_is_noted_or_added():
    example = example_of(4, reward=np.array([0, 0, 0.5, 1], np.float32))
    noted = steps_like(FEATURES).trajectory(example, {})
    np.testing.assert_array_equal(noted.rewards, [0, 0, 0.5])
    assert noted.info == {"final_reward": 1.0}
    added = steps_like(FEATURES, final_reward="add").trajectory(example, {})
    np.testing.assert_array_equal(added.rewards, [0, 0, 1.5])
    assert added.info == {}
    assert added.rewards.dtype == np.float32


def test_logs_without_rewards_have_none():
    assert steps_like(without("reward")).trajectory(example_of(3), {}).rewards is None


@pytest.mark.parametrize("rows", [0, 1])
def test_too_short_episodes_are_handed_on_for_the_lint(rows):
    found = steps_like(FEATURES).trajectory(example_of(rows), {})
    assert len(found) == 0
    assert len(found.observations) == rows


def test_values_are_handed_on_as_they_are():
    found = steps_like(FEATURES).trajectory(example_of(3, observation=np.array([np.nan, np.inf, 1], np.float32)), {})
    np.testing.assert_array_equal(found.observations, [np.nan, np.inf, 1])


def test_cost_duration_and_probability_are_kept():
    features = FEATURES | dict.fromkeys(("cost", "duration", "action_log_prob"), np.float32)
    numbers = {name: np.array([1, 2, 3, 0], np.float32) for name in ("cost", "duration", "action_log_prob")}
    found = steps_like(features).trajectory(example_of(4, **numbers), {})
    assert found.info == {"cost": [1, 2, 3], "duration": [1, 2, 3]}
    np.testing.assert_array_equal(found.action_log_prob, [1, 2, 3])


# Columns that do not fit their features.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.zeros(3, np.float32)}, "steps/action has 3 steps, steps/observation has 4"),
        ({"reward": np.zeros(4, np.int64)}, "steps/reward holds int64; features.json says float32"),
        ({"observation": [b"a"] * 4}, "steps/observation holds bytes; features.json says numbers of float32"),
    ],
)
def test_columns_that_do_not_fit_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        steps_like(FEATURES).trajectory(example_of(4, **change), {})


def test_a_missing_column_is_named():
    example = example_of(4)
    del example["steps/action"]
    with pytest.raises(ValueError, match=r"lacks 'steps/action', which features\.json names"):
        steps_like(FEATURES).trajectory(example, {})


def test_integers_beyond_their_dtype_are_refused():
    steps = steps_like(FEATURES | {"action": np.uint8})
    with pytest.raises(ValueError, match=r"steps/action holds 0 to 300; features\.json says uint8"):
        steps.trajectory(example_of(4, action=np.array([0, 1, 2, 300])), {})


def test_tensors_kept_as_memory_are_bounded_and_checked():
    import tensorflow_datasets as tfds

    packed = tfds.features.Tensor(shape=(3,), dtype=np.uint8, encoding="zlib")
    steps = steps_like(FEATURES | {"observation": packed})
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(ValueError, match=r"steps/observation at step 0 has 4 bytes; features\.json says 3"):
        steps.trajectory(example_of(1, observation=[bomb]), {})
    with pytest.raises(ValueError, match="steps/observation cannot be decompressed"):
        steps.trajectory(example_of(1, observation=[b"no zlib"]), {})


def test_text_that_is_not_utf8_is_named():
    import tensorflow_datasets as tfds

    steps = steps_like(FEATURES | {"observation": tfds.features.Text()})
    with pytest.raises(ValueError, match="steps/observation at step 1 is not UTF-8"):
        steps.trajectory(example_of(2, observation=[b"a", b"\xff"]), {})


# Instructions, metadata, what is left out.


def test_several_instructions_are_a_dict_and_those_of_the_observation_count():
    import tensorflow_datasets as tfds

    text = tfds.features.Text()
    observation = {"state": np.float32, "natural_language_instruction": text}
    steps = steps_like(FEATURES | {"observation": observation, "language_instruction_2": text})
    assert steps.spec.observation_space == {"type": "Dict", "spaces": {"state": box((), "float32")}}
    columns: dict[str, Any] = {
        "observation/state": np.zeros(3, np.float32),
        "observation/natural_language_instruction": [b"open"] * 3,
        "language_instruction_2": [b"do open", b"do open", b""],  # the last row pads
    }
    found = steps.trajectory(example_of(3, **columns), {})
    assert found.context == {"natural_language_instruction": "open", "language_instruction_2": "do open"}


def test_an_instruction_that_changes_is_refused_with_the_way_out():
    import tensorflow_datasets as tfds

    steps = steps_like(FEATURES | {"instruction": tfds.features.Text()})
    with pytest.raises(ValueError, match=r"instruction changes at step 1 from 'a' to 'b'; .*instruction='observation'"):
        steps.trajectory(example_of(4, instruction=[b"a", b"b", b"b", b"b"]), {})


def test_metadata_is_kept_as_plain_json_and_never_passes_for_ours():
    import tensorflow_datasets as tfds

    metadata = {"split": tfds.features.Text(), "weight": np.float32, "ok": np.bool_, "seed": np.int64}
    features = {"steps": tfds.features.Dataset(FEATURES), "episode_metadata": metadata, "file": tfds.features.Text()}
    once = {
        "episode_metadata/split": [b"theirs"],
        "episode_metadata/weight": np.array([np.nan], np.float32),
        "episode_metadata/ok": np.array([1]),
        "episode_metadata/seed": np.array([7]),
        "file": [b"a.npy"],
    }
    found = steps_like(features).trajectory(example_of(3) | once, {"split": "train"})
    expected = {"logged_split": "theirs", "weight": None, "ok": True, "seed": 7, "file": "a.npy", "split": "train"}
    assert found.info == expected
    assert json.dumps(found.info, allow_nan=False)


def test_metadata_that_has_the_names_of_a_corpus_alone_is_not_taken_for_one():
    import tensorflow_datasets as tfds

    names = ("id", "terminated", "truncated", "has_rewards", "context", "info")
    features = {"steps": tfds.features.Dataset(FEATURES), "episode_metadata": dict.fromkeys(names, np.float32)}
    once = {f"episode_metadata/{name}": np.ones(1, np.float32) for name in names}
    found = steps_like(features).trajectory(example_of(3) | once, {"id": "ours"})
    assert (found.context, found.info["id"], found.info["logged_id"]) == (None, "ours", 1.0)
    features["episode_metadata"] |= dict.fromkeys(("context", "info"), tfds.features.Text())
    once |= {"episode_metadata/context": [b"1"], "episode_metadata/info": [b"[]"]}
    with pytest.raises(ValueError, match="its info is a list; a dict is needed"):
        steps_like(features).trajectory(example_of(3) | once, {})


def test_features_that_cannot_be_read_are_left_out_by_name():
    import tensorflow_datasets as tfds

    f = tfds.features
    observation = {
        "state": np.float32,
        "points": f.Tensor(shape=(None, 2), dtype=np.float32),
        "deep": f.Image(shape=(8, 8, 1), dtype=np.uint16, encoding_format="png"),
        "names": f.Tensor(shape=(2,), dtype=np.str_),
        "parts": f.Sequence(np.float32),
        "waves": f.Tensor(shape=(2,), dtype=np.complex64),
    }
    steps = steps_like(FEATURES | {"observation": observation, "extra": np.float32})
    assert steps.spec.observation_space == {"type": "Dict", "spaces": {"state": box((), "float32")}}
    names = [line.split(":")[0] for line in steps.left_out]
    assert names == [f"steps/observation/{key}" for key in ("deep", "names", "parts", "points", "waves")] + [
        "steps/extra",
        "the last step's action and reward",
    ]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"image": np.float32}, "has no feature 'steps' that is a Dataset of dicts; it is not of RLDS's form"),
        ({"steps": {"observation": np.float32}}, "has no feature 'steps' that is a Dataset"),
    ],
)
def test_other_datasets_are_told_apart(features, message):
    import tensorflow_datasets as tfds

    with pytest.raises(ValueError, match=message):
        steps_of_features(tfds.features.FeaturesDict(features), instruction="context", final_reward="padding")


def test_a_dataset_without_actions_is_refused():
    with pytest.raises(ValueError, match="steps hold is_first, is_last, is_terminal, observation, reward, but no 'act"):
        steps_like(without("action"))
