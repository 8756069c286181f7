"""The figure of a log: what is sampled, what each panel draws for each kind of space."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from worldmodel.images import EncodedImages, encode_png
from worldmodel.report import style
from worldmodel.report.log_sample import Reservoir, features, sample_log
from worldmodel.report.logs import log_figure
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

TEXT = {"type": "Text", "max_length": None}
TWO = {"type": "Discrete", "n": 2, "start": 0}


@dataclasses.dataclass(frozen=True)
class Log:
    spec: Spec
    episodes: list[Trajectory]

    def __iter__(self):
        return iter(self.episodes)


def draw(spec, episodes):
    sample = sample_log(Log(spec, episodes))
    with style.look():
        figure = log_figure(sample, title="log")
        figure.canvas.draw()
        return sample, {ax.get_xlabel(): ax for ax in figure.axes if ax.get_xlabel()}, figure


def simple(observation, action, observations, actions, *, count=8, rewards=True, policies=("a",)):
    episodes = [
        Trajectory(
            observations(5),
            actions(4),
            np.full(4, i // 2, np.float32) if rewards else None,
            True,
            False,
            info={"policy": policies[i % len(policies)]},
        )
        for i in range(count)
    ]
    return draw(Spec(observation, action), episodes)


RNG = np.random.default_rng(0)


def numbers(count):
    return RNG.normal(size=(count, 3)).astype(np.float32)


def zeros(count):
    return np.arange(count) % 2


def test_a_reservoir_is_a_uniform_sample():
    hits = np.zeros(40)
    for seed in range(400):
        reservoir = Reservoir(10, seed)
        for first in range(0, 40, 8):
            for row, place in reservoir.places(8):
                reservoir.put(place, first + row)
        assert len(set(reservoir.rows)) == 10
        hits[reservoir.rows] += 1
    # 400 draws with probability 1/4 each: four and a half standard deviations, a false alarm in 3,000 for 40 rows.
    assert np.abs(hits - 100).max() < 4.5 * np.sqrt(400 * 0.25 * 0.75)


def test_features():
    np.testing.assert_array_equal(features(TEXT, "abc"), [3])
    np.testing.assert_array_equal(features({"type": "Discrete", "n": 3, "start": -1}, -1), [1, 0, 0])
    np.testing.assert_array_equal(features({"type": "Discrete", "n": 1000, "start": 0}, 7), [7])
    image = np.zeros((16, 24, 3), np.uint8)
    image[:2, :3, 1] = 120  # the first of 8 by 8 blocks
    got = features(box((16, 24, 3), "uint8"), image).reshape(8, 8, 3)
    assert got[0, 0, 1] == 120
    assert got.sum() == 120


def test_numbers_are_drawn_along_their_principal_components():
    sample, axes, _ = simple(box((3,), "float32"), TWO, numbers, zeros, policies=("a", "b"))
    assert sample.observations.shape == (40, 3)
    assert any(label.startswith("first principal component (standardised, ") for label in axes)
    returns = axes["return (sum of rewards)"]
    assert [text.get_text() for text in returns.get_legend().get_texts()] == ["a", "b"]
    assert sum(bar.get_height() for bar in returns.patches) == 8
    assert returns.get_ylim()[1] >= max(bar.get_y() + bar.get_height() for bar in returns.patches)
    heights = [bar.get_height() for bar in axes["action"].patches]
    assert heights == [0.5, 0.5]


def test_texts_are_drawn_by_their_lengths():
    def texts(count):
        return np.array(["x" * (1 + i) for i in range(count)], object)

    sample, axes, _ = simple(TEXT, TEXT, texts, texts, rewards=False)
    assert sorted(set(sample.actions[0].tolist())) == [1, 2, 3, 4]
    assert "observation length (characters)" in axes
    assert "action length (characters)" in axes
    words = [text.get_text() for text in axes["return (sum of rewards)"].texts]
    assert words == ["the log has no rewards"]


def test_a_dict_with_images_and_texts():
    observation = {"type": "Dict", "spaces": {"camera": box((16, 16, 3), "uint8"), "goal": TEXT}}
    action = {
        "type": "Dict",
        "spaces": {
            "keys": {"type": "MultiBinary", "shape": [3]},
            "move": TWO,
            "say": TEXT,
            "torque": box((2,), "float32", -1.0, 1.0),
        },
    }

    def observations(count):
        images = [encode_png(RNG.integers(0, 255, (16, 16, 3), np.uint8)) for _ in range(count)]
        return {"camera": EncodedImages(images, (16, 16, 3)), "goal": np.array(["to the left"] * count, object)}

    def actions(count):
        return {
            "keys": np.tile(np.array([1, 0, 1], np.int8), (count, 1)),
            "move": zeros(count),
            "say": np.array(["hm"] * count, object),
            "torque": np.zeros((count, 2), np.float32),
        }

    _, axes, _ = simple(observation, action, observations, actions)
    assert [bar.get_height() for bar in axes["action keys: dimensions that are 1"].patches] == [1, 0, 1]
    assert axes["action keys: dimensions that are 1"].get_title() == "the first 3 of 4 parts of the action"
    assert "action say length (characters)" in axes


def test_many_dimensions_are_drawn_as_a_grid():
    wide = box((17,), "float32", -1.0, 1.0)
    _, axes, _ = simple(wide, wide, lambda n: RNG.normal(size=(n, 17)), lambda n: RNG.uniform(-1, 1, (n, 17)))
    assert axes["action"].get_ylabel() == "dimension"


@pytest.mark.parametrize(
    ("observations", "words"),
    [
        (lambda n: np.zeros((n, 3), np.float32), "every observation is the same"),
        (lambda n: np.full((n, 3), np.nan, np.float32), "no observation is finite"),
    ],
)
def test_odd_observations_are_said(observations, words):
    _, axes, _ = simple(box((3,), "float32"), TWO, observations, zeros)
    assert [text.get_text() for text in axes["observation"].texts] == [words]


def test_an_empty_log():
    with pytest.raises(ValueError, match="the log holds no episode; there is nothing to draw"):
        sample_log(Log(Spec(TEXT, TEXT), []))
