"""Do two texts say the same: exact match and the F1 of their words.

Exact match is a lower bound where many wordings mean one state (70% exact beside a consistency of .92 on TextWorld).
"""

from __future__ import annotations

from collections import Counter


def exact_match(prediction: str, truth: str) -> float:
    """1 if both texts have the same words in the same order (blanks aside, case kept), else 0."""
    return float(prediction.split() == truth.split())


def token_f1(prediction: str, truth: str) -> float:
    """`2 common / (words + words)`, words counted with repetition and split at blanks (as SQuAD, without its clean-up).

    From 0 to 1; two empty texts agree.
    """
    said, true = Counter(prediction.split()), Counter(truth.split())
    total = said.total() + true.total()
    return 1.0 if total == 0 else 2.0 * (said & true).total() / total
