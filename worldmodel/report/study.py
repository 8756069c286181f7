"""The pictures of a study's folder: for every environment and kind of fault, curves, thresholds, interactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from worldmodel.report.study_figures import interaction_figure, response_figure, threshold_map
from worldmodel.study.answers import curves, prepared, questions_of
from worldmodel.study.estimands import Estimand
from worldmodel.study.means import WorldModelMeans, levels
from worldmodel.study.store import Store


def draw(store: Store, deployment: str, folder: Path) -> tuple[list[Path], list[str]]:
    """Draws what one deployment shows of the study's first question into `folder`.

    Returns the files, and a sentence for each picture that the results do not allow.

    `ENVIRONMENT_KIND_curve_D.png` for each diversity `D`, and, where a dial has several levels, `..._thresholds.png`
    and `..._complexity.png` or `..._diversity.png`.
    """
    questions = questions_of(store.description()["questions"])
    means, _ = prepared(store.rows(), questions, deployment)
    folder.mkdir(parents=True, exist_ok=True)
    files, not_drawn = [], []
    for environment, corruption, own in curves(means):
        for name, make in _figures(own, questions.estimands[0]):
            file = folder / f"{environment}_{corruption}_{name}.png".replace("/", "-").replace(":", "-")
            try:
                make().savefig(file, dpi=110)
            except ValueError as error:
                not_drawn.append(f"{file.name} is not drawn: {error}")
            else:
                files.append(file)
    return files, not_drawn


def _figures(own: WorldModelMeans, estimand: Estimand) -> Iterator[tuple[str, Callable[[], Figure]]]:
    diversities, complexities = levels(own.diversity), levels(own.complexity)
    for diversity in diversities:
        one = own.select(diversity=float(diversity))
        yield f"curve_{diversity:g}", partial(response_figure, one, estimand)
    if len(complexities) * len(diversities) < 2:
        return
    yield "thresholds", partial(threshold_map, own, estimand)
    for dial, found in (("complexity", complexities), ("diversity", diversities)):
        if len(found) > 1:
            yield dial, partial(interaction_figure, own, dial=dial)
