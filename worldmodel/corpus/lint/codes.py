"""Every code of the lint: what it says, how grave it is, what its repair does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from worldmodel.corpus.lint.finding import Finding, Severity


@dataclasses.dataclass(frozen=True)
class Code:
    """One kind of finding.

    Attributes:
      meaning: one sentence.
      severity: as a rule; a check may lower it where the evidence is weak.
      repair: what `convert --fix CODE` does, or None: there is no repair.
      in_all: `--fix all` includes it.
      named: the repair is of the episodes that the finding names; else every episode is looked at.
    """

    meaning: str
    severity: Severity
    repair: str | None = None
    in_all: bool = True
    named: bool = False


CODES: dict[str, Code] = {
    "empty-log": Code("The log holds no episode.", "error"),
    "malformed": Code("Columns are not built as the space is, or differ in length.", "error"),
    "observations-T": Code(
        "As many observations as actions: what the last action led to was not kept.",
        "error",
        "drops the last transition of each such episode, and with it its end",
    ),
    "empty-episode": Code("An episode without any transition.", "error", "drops these episodes"),
    "dtype": Code("Values have another dtype than the space.", "error"),
    "nan": Code("NaN or infinity.", "error", "drops these episodes"),
    "observation-outside": Code("An observation lies outside its space.", "error"),
    "action-outside": Code(
        "An action lies outside its space.",
        "error",
        "clips numbers into their Box and drops episodes with other actions outside; only when asked by name",
        in_all=False,
    ),
    "both-ends": Code("Terminated and truncated at once.", "error", "keeps terminated, takes truncated away"),
    "log-prob": Code("Log-probabilities that are not finite, or above 0 for discrete actions.", "error"),
    "id-repeated": Code("Two episodes have one id.", "error"),
    "id-missing": Code("Episodes without an id: they get one from their place.", "note"),
    "cut": Code("Episodes that are neither terminated nor truncated: the log was cut.", "note"),
    "synthetic": Code("Episodes that a model imagined: no evidence of what really happens.", "note"),
    "no-rewards": Code("The log has no rewards.", "note"),
    "some-rewards": Code("Some episodes have rewards, others have none.", "warning"),
    "constant-dimension": Code("A dimension that never changes.", "note"),
    "duplicate": Code(
        "An episode is there again under another id.",
        "warning",
        "keeps the first of each and drops the copies",
        named=True,
    ),
    "near-duplicate": Code("A long piece of an episode is there again in another.", "warning"),
    "leak-duplicate": Code(
        "A held-out episode, or a long piece of it, is among the training episodes, too.",
        "error",
        "moves these episodes to the other split where the log names splits, else drops them",
        named=True,
    ),
    "leak-key": Code("The split goes by a key of info, and yet values of that key are on both sides.", "error"),
    "shared-key": Code("Values of a key of info (a task) are on both sides of the split.", "note"),
    "action-shifted": Code(
        "Actions explain the observations better when moved by some steps.",
        "error",
        "moves the actions back and drops the transitions that lose theirs",
    ),
    "reward-shifted": Code(
        "Rewards fit the transitions better when moved by some steps.",
        "error",
        "moves the rewards back and drops the transitions that lose theirs",
    ),
    "glued": Code(
        "Two episodes run on as one.",
        "error",
        "cuts each such episode at the jump and drops that transition",
        named=True,
    ),
    "last-repeated": Code(
        "The last observation is a copy of the one before: the true one was lost.",
        "error",
        "drops the last transition of each such episode, and with it its end",
    ),
    "end-late": Code(
        "Episodes end one step late, inside the next episode.",
        "error",
        "drops what each episode holds of the next, and the transition that leads there",
    ),
    "unit-changed": Code("A dimension of the observations is in another unit from some row on.", "error"),
    "time-limit-terminal": Code(
        "A time limit is stored as a terminal.", "error", "stores these ends as truncated, not terminated"
    ),
    "not-checked": Code("A check that cannot say anything of this log, and why.", "note"),
    "check-failed": Code("A check stopped with an error of its own: its question is open.", "warning"),
}


def finding(
    code: str,
    message: str,
    *,
    episodes: Sequence[str] = (),
    evidence: Mapping[str, Any] | None = None,
    severity: Severity | None = None,
) -> Finding:
    """A finding with the severity and the repair of its code; `evidence["repair"]` says what the repair does."""
    kind = CODES[code]
    evidence = dict(evidence or {})
    if kind.repair:
        evidence["repair"] = kind.repair
    return Finding(
        code=code,
        severity=severity or kind.severity,
        message=message,
        episodes=tuple(episodes),
        evidence=evidence,
        fix=f"--fix {code}" if kind.repair else None,
    )
