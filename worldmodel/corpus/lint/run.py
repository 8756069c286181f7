"""All checks over a log, in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from worldmodel.corpus.lint import alignment, ends, glued, text, text_ends, units
from worldmodel.corpus.lint.codes import CODES, finding
from worldmodel.corpus.lint.duplicates import Copies
from worldmodel.corpus.lint.finding import Finding, LintReport
from worldmodel.corpus.lint.sample import Sample, draw_sample
from worldmodel.corpus.lint.structure import Structure, name_of
from worldmodel.corpus.lint.words import has_text
from worldmodel.trajectory import Spec, Trajectory

Check = Callable[[Sample], list[Finding]]

CHECKS: dict[str, tuple[tuple[Check, ...], tuple[Check, ...]]] = {
    "alignment of actions and rewards": ((alignment.check,), (text.check,)),
    "ends of episodes": ((ends.check, glued.check), (text_ends.check,)),
    "units": ((units.check,), ()),
}
"""What is asked of the sample, and who answers it: of observations with numbers, and of observations with texts."""


def lint(log: Iterable[Trajectory], spec: Spec | None = None, *, seed: int = 0, split_by: str = "id") -> LintReport:
    """Looks for what is wrong in a log; never stops at a faulty episode.

    Args:
      log: a source, a corpus, or any trajectories; read once, with memory of a sample and a few hundred bytes for each
        episode.
      spec: of its spaces; by default `log.spec`.
      seed: of the sample.
      split_by: key of `info` by which the corpus is split; an episode that says its `info["split"]` is in that.

    Raises:
      ValueError: no spec is known, or the log itself cannot be read.
    """
    spec = spec or getattr(log, "spec", None)
    if spec is None:
        raise ValueError("the trajectories come without a spec; give one")
    structure, copies = Structure(spec), Copies(spec)
    sample = draw_sample(_watched(log, structure, copies), spec, seed=seed)
    found = [*structure.findings(), *_run("copies", lambda s: copies.findings(s, split_by), sample)]
    if structure.episodes:
        found += _of_sample(sample)
    order = list(CODES)
    found.sort(key=lambda f: (("error", "warning", "note").index(f.severity), order.index(f.code)))
    return LintReport(tuple(found), structure.episodes, structure.transitions)


def _watched(log: Iterable[Trajectory], structure: Structure, copies: Copies) -> Iterator[Trajectory]:
    """Passes on the episodes that can be measured."""
    place = 0
    for index, trajectory in enumerate(log):
        if structure.add(name_of(trajectory, index), trajectory):
            copies.add(place, trajectory)
            place += 1
            yield trajectory


def _of_sample(sample: Sample) -> list[Finding]:
    if not sample.episodes:
        why = "no episode is valid: repair the errors above first"
        return [_unchecked(question, why) for question in CHECKS]
    numbers, texts = bool(sample.observation_features), has_text(sample.spec.observation_space)
    found: dict[str, Finding] = {}
    notes: list[Finding] = []
    for question, (of_numbers, of_texts) in CHECKS.items():
        checks = [*(of_numbers if numbers else ()), *(of_texts if texts else ())]
        if not checks:
            notes.append(_unchecked(question, f"observations hold no {'numbers' if texts else 'numbers and no texts'}"))
        for check in checks:
            for each in _run(question, check, sample):
                # Numbers and texts of one log may both show a fault; it is one fault, to be repaired once.
                if each.severity == "note" or each.code == "check-failed":
                    notes.append(each)
                else:
                    found.setdefault(each.code, each)
    return [*(_sampled(each, sample) for each in found.values()), *notes]


def _sampled(each: Finding, sample: Sample) -> Finding:
    """Says so where the check has not seen all episodes: those it names are not all."""
    if len(sample.episodes) + len(sample.invalid) == len(sample.records):
        return each
    return dataclasses.replace(each, evidence={**each.evidence, "sampled": [len(sample.episodes), len(sample.records)]})


def _run(question: str, check: Callable[[Sample], list[Finding]], sample: Sample) -> list[Finding]:
    try:
        return check(sample)
    except Exception as error:  # a log may be odd in ways no check foresaw; the others still have their say
        line = f"{question}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return [finding("check-failed", line, evidence={"check": question})]


def _unchecked(question: str, why: str) -> Finding:
    return finding("not-checked", f"{question}: {why}", evidence={"check": question, "why": why})
