"""Texts to tokens and back: bytes, a byte-level BPE learned from the logs, or the tokenizer of a pretrained model.

Whatever a text says, its tokens are text: none of the special tokens that a vocabulary may hold beside them is among
them, so that no text can end an observation or open a turn.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

BYTES = 256
"""Size of the vocabulary of bytes, which needs no package."""

FILE = "tokenizer.json"


@runtime_checkable
class Tokenizer(Protocol):
    """Texts as token ids. `decode(encode(x)) == x` for every text, unless a pretrained one normalises (`exact`)."""

    @property
    def size(self) -> int:
        """Ids of texts are below it."""
        ...

    @property
    def exact(self) -> bool:
        """Every text comes back as it was."""
        ...

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that tell this tokenizer from others."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        ...

    def piece(self, token: int) -> str:
        """What one token stands for, as far as it is text by itself."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what `load_tokenizer` reads."""
        ...


class ByteTokenizer:
    """A token for each byte of UTF-8."""

    size = BYTES
    exact = True
    digest = "bytes"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [list(text.encode("utf-8")) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return bytes(ids).decode("utf-8", "replace")

    def piece(self, token: int) -> str:
        """A character of ASCII; U+FFFD for other bytes."""
        return self.decode([token])

    def save(self, folder: Path) -> None:
        """Nothing needs to be kept."""


class BpeTokenizer:
    """A tokenizer of the package `tokenizers`, which never reads a special token out of a text."""

    def __init__(self, inner: Any):
        inner.encode_special_tokens = True
        inner.no_padding()
        inner.no_truncation()
        self.inner = inner
        added = inner.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        self.size = inner.get_vocab_size(with_added_tokens=True)
        written = inner.to_str()
        self.exact = json.loads(written).get("normalizer") is None
        self.digest = hashlib.sha256(written.encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [each.ids for each in self.inner.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """What one token stands for."""
        return self.decode([token])

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json`, whole or not at all."""
        temporary = folder / f".{FILE}.{os.getpid()}.tmp"
        temporary.write_text(self.inner.to_str(pretty=True), encoding="utf-8")
        os.replace(temporary, folder / FILE)


def learn_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of `size` tokens (Sennrich et al. 2016, arXiv 1508.07909), the same for the same texts.

    Of 256 it is bytes alone. Fewer are made where the texts hold no more pairs.

    Raises:
      ValueError: fewer than 256 tokens, or the package `tokenizers` is not installed.
    """
    if size < BYTES:
        raise ValueError(f"a vocabulary of {size}; at least {BYTES} tokens are needed, one for each byte")
    if size == BYTES:
        return ByteTokenizer()
    package = _package()
    inner = package.Tokenizer(package.models.BPE())
    inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = package.decoders.ByteLevel()
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    return BpeTokenizer(inner)


def load_tokenizer(folder: str | os.PathLike[str]) -> BpeTokenizer:
    """The tokenizer in `tokenizer.json` of a folder.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is damaged, or the package `tokenizers` is not installed.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {FILE}; other forms of tokenizers are not read")
    package = _package()
    try:
        return BpeTokenizer(package.Tokenizer.from_str(path.read_text(encoding="utf-8")))
    except Exception as error:  # the package raises bare Exception for a damaged file
        raise ValueError(f"{path} is damaged ({' '.join(str(error).split())[:160]})") from error


def _package() -> Any:
    try:
        import tokenizers  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise ValueError(
            "tokenizers is not installed; it comes with the extra: pip install 'worldmodel[text]' "
            f"(a vocabulary of {BYTES}, which is bytes, needs none)"
        ) from None
    return tokenizers
