"""Figures of a study: what is drawn is what was found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from worldmodel.report import style
from worldmodel.report.study_figures import interaction_figure, response_figure, threshold_map
from worldmodel.study.bracketing import bracket
from worldmodel.study.estimands import Tolerance
from worldmodel.study.isotonic import isotonic_threshold
from worldmodel.study.means import WorldModelMeans, per_world_model
from worldmodel.study.synthetic import CURVES, Noise, curve_study
from worldmodel.study.table import StudyTable

TENTH = Tolerance(0.1)


@pytest.fixture(scope="module")
def means() -> WorldModelMeans:
    """Complexities 1 and 2, of which the second rises later; diversities 1 and 2, which change nothing."""
    rows = []
    for complexity, name in ((1.0, "logistic"), (2.0, "linear")):
        for diversity in (1.0, 2.0):
            rng = np.random.default_rng([int(complexity), int(diversity)])
            study = curve_study(CURVES[name], rng, seeds=4, levels=5, noise=Noise(0.03, 0.0, 1))
            shape = np.ones(len(study))
            rows += dataclasses.replace(study, complexity=complexity * shape, diversity=diversity * shape).rows()
    return per_world_model(StudyTable.of(rows))


def test_response_shows_anchors_means_and_the_bracket(means):
    own = means.select(diversity=1.0)
    with style.look():
        figure = response_figure(own, TENTH)
        figure.canvas.draw()
    assert [ax.get_title() for ax in figure.axes] == ["complexity 1", "complexity 2"]
    found = bracket(own.select(complexity=1.0), TENTH)
    bars = [line for line in figure.axes[0].lines if line.get_label() == "bracket of the threshold"]
    assert bars[0].get_xdata() == pytest.approx([found.lower, found.upper])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"reference (95% band)", "no training (95% band)", "mean [95%]"} <= set(labels)
    jittered = dataclasses.replace(own, fidelity=own.fidelity + 1e-3 * np.random.default_rng(0).uniform(size=len(own)))
    said = [text.get_text() for text in response_figure(jittered, TENTH).axes[0].texts]
    assert said == ["no bracket: no grid"]


def test_the_map_says_every_threshold(means):
    with style.look():
        figure = threshold_map(means, TENTH)
        figure.canvas.draw()
    said = [text.get_text() for text in figure.axes[0].texts]
    first = isotonic_threshold(means.select(complexity=1.0, diversity=1.0), TENTH)
    assert len(said) == 4 and said[0].startswith(f"{first.mean:.2f}\n[{first.lo:.2f}")
    harder = dataclasses.replace(means, real_return=np.where(means.arm == "reference", 2.0, means.real_return))
    assert [text.get_text() for text in threshold_map(harder, TENTH).axes[0].texts] == ["above"] * 4


def test_interaction_is_the_difference_of_the_lines(means):
    with style.look():
        figure = interaction_figure(means)
        figure.canvas.draw()
    upper, lower = figure.axes
    first, second = (bars.lines[0].get_ydata() for bars in upper.containers)
    assert lower.containers[0].lines[0].get_ydata() == pytest.approx(np.asarray(second) - np.asarray(first))
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["complexity 1", "complexity 2"]
