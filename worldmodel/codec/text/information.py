"""How much a turn's observation tells beyond its action, in classes, and what each class counts in training.

The classes are those of Qwen-AgentWorld (arXiv 2606.24597), by three numbers of an (action, observation), over words:
overlap `OL`, the share of the action's words that the observation says again; novelty `Nov`, the share of the
observation's words that the action does not hold; `R`, words of the observation for each word of the action. A tool
that prints its input back teaches little, however long it is. Which class comes first where several fit is not
published: here it is the narrowest.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

CLASSES = ("other", "retrieval", "expansion", "action", "transform", "boilerplate", "echo")
"""A class's number is its place; `other` also stands for what is no observation."""

PAPER = {"transform": 0.5, "boilerplate": 0.1, "echo": 0.05}
"""Weights that are not 1."""

SHORT = 10
"""Words up to which an observation is short."""

_WORD = re.compile(r"\w+")


def measures(action: str, observation: str) -> tuple[float, float, float]:
    """`(OL, Nov, R)`; of a side without words, `OL` is 0, `Nov` is 1, and it counts as one word in `R`."""
    said, read = Counter(_WORD.findall(action)), Counter(_WORD.findall(observation))
    words, answer = said.total(), read.total()
    again = sum(count for word, count in said.items() if word in read)
    known = sum(count for word, count in read.items() if word in said)
    overlap = again / words if words else 0.0
    novelty = 1.0 - known / answer if answer else 1.0
    return overlap, novelty, max(answer, 1) / max(words, 1)


def class_of(action: str, observation: str) -> int:
    """Place in `CLASSES` of a turn."""
    overlap, novelty, ratio = measures(action, observation)
    if overlap >= 0.7 and novelty < 0.3:
        return CLASSES.index("echo")
    if overlap >= 0.5 and novelty < 0.5:
        return CLASSES.index("boilerplate")
    if novelty < 0.5 and ratio < 1.0:
        return CLASSES.index("transform")
    if novelty >= 0.6 and ratio > 1.0:
        return CLASSES.index("retrieval")
    if overlap >= 0.5 and novelty >= 0.5 and ratio > 1.5:
        return CLASSES.index("expansion")
    short = len(_WORD.findall(observation)) <= SHORT
    return CLASSES.index("action") if novelty >= 0.5 and (ratio <= 1.0 or short) else CLASSES.index("other")


def weights_of(table: str) -> np.ndarray:
    """float32 `[classes]`: what an observation's tokens count.

    Args:
      table: "off": all alike; "paper": as published; else an own one, as "echo=0.2,boilerplate=0.5": 1 for the rest.

    Raises:
      ValueError: an unknown class, or a weight that is no number of at least 0.
    """
    if table == "off":
        return np.ones(len(CLASSES), np.float32)
    own = dict(PAPER)
    if table != "paper":
        pairs = [part.partition("=") for part in table.split(",")]
        own = {name.strip(): _number(name.strip(), value) for name, _, value in pairs}
    return np.array([own.get(name, 1.0) for name in CLASSES], np.float32)


def _number(name: str, text: str) -> float:
    if name not in CLASSES:
        raise ValueError(
            f"information class {name!r} is unknown; 'off', 'paper', or NAME=WEIGHT of {', '.join(CLASSES)}"
        )
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"weight of {name} is {text!r}; a number of at least 0 is needed")
    return value
