"""What holds for a whole episode (its physics, its instruction), as numbers that the model reads at every step."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

WORDS = 64
"""Into how many numbers the words of a text are hashed."""


@dataclasses.dataclass(frozen=True)
class ContextField:
    """One leaf of the contexts: `name` is the keys that lead to it, `""` for a context that is a leaf itself.

    A number is standardised by `mean` and `scale`; of a text, `kind` "text", the words are hashed.
    """

    name: str
    kind: str
    mean: float = 0.0
    scale: float = 1.0

    @property
    def size(self) -> int:
        """How many numbers it becomes."""
        return WORDS if self.kind == "text" else 1

    def encode(self, value: Any) -> np.ndarray:
        """Float32 `[size]`; zeros, which is the logs' mean of a number, where there is no value."""
        if value is None:
            return np.zeros(self.size, np.float32)
        if self.kind == "text":
            return _words(str(value))
        return np.array([(float(value) - self.mean) / self.scale], np.float32)


@dataclasses.dataclass(frozen=True)
class ContextCodec:
    """Contexts, which are plain JSON, as vectors. What is alike in all episodes tells nothing and is left out.

    Attributes:
      fields: the leaves that differ between episodes, by name.
      ignored: names of the leaves that do not.
    """

    fields: tuple[ContextField, ...] = ()
    ignored: tuple[str, ...] = ()

    @cached_property
    def size(self) -> int:
        """Numbers of a vector `C`."""
        return sum(field.size for field in self.fields)

    def encode(self, contexts: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Contexts of `B` episodes, None for one without, as float32 `[B, C]`."""
        if not self.fields:
            return np.zeros((len(contexts), 0), np.float32)
        return np.stack([self._vector(context) for context in contexts])

    def check(self, context: Any) -> None:
        """`ValueError` unless every leaf of a context is known, and of its kind."""
        known = {field.name: field for field in self.fields}
        for name, value in _leaves(context):
            if name not in known:
                if name in self.ignored:
                    continue
                told = f"known are {', '.join(map(repr, known))}" if known else "this model was trained without any"
                raise ValueError(f"context {name!r} is unknown; {told}")
            if (known[name].kind == "text") != isinstance(value, str):
                raise ValueError(f"context {name!r} is {value!r}; a {known[name].kind} is needed")

    def _vector(self, context: Any) -> np.ndarray:
        values = dict(_leaves(context))
        return np.concatenate([field.encode(values.get(field.name)) for field in self.fields])

    @classmethod
    def fit(cls, contexts: Sequence[Any]) -> ContextCodec:
        """From the contexts of logged episodes; `ValueError` where one leaf is a number here and a text there."""
        found: dict[str, list[Any]] = {}
        for context in contexts:
            for name, value in _leaves(context):
                found.setdefault(name, []).append(value)
        fields, ignored = [], []
        for name in sorted(found):
            values = found[name]
            texts = [isinstance(value, str) for value in values]
            if any(texts) and not all(texts):
                raise ValueError(f"context {name!r} is a text in some episodes and a number in others")
            if len(set(values)) == 1 and len(values) == len(contexts):
                ignored.append(name)
            elif all(texts):
                fields.append(ContextField(name, "text"))
            else:
                numbers = np.array(values, np.float64)
                fields.append(ContextField(name, "number", float(numbers.mean()), float(numbers.std()) or 1.0))
        return cls(tuple(fields), tuple(ignored))


def _leaves(context: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text of a JSON value with the keys that lead to it; null is none."""
    if isinstance(context, Mapping):
        for key, part in context.items():
            yield from _leaves(part, f"{name}/{key}" if name else str(key))
    elif isinstance(context, (list, tuple)):
        for place, part in enumerate(context):
            yield from _leaves(part, f"{name}/{place}" if name else str(place))
    elif isinstance(context, (str, int, float, np.number)):
        yield name, context
    elif context is not None:
        raise ValueError(f"context {name!r} is a {type(context).__name__}; numbers, texts, lists and dicts are read")


def _words(text: str) -> np.ndarray:
    """The words of a text, each with a sign, summed into one of `WORDS` numbers by its hash; of length one.

    This is the hashing trick (Weinberger et al. 2009, arXiv 0902.2206): words that were never logged have a place, too.
    """
    vector = np.zeros(WORDS, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        code = zlib.crc32(word.encode())
        vector[code % WORDS] += 1.0 if code & 2**31 else -1.0
    length = float(np.linalg.norm(vector))
    return vector * np.float32(np.sqrt(WORDS) / length if length else 0.0)
