"""`corpus:DIR`: the project's own corpus on disk."""

from __future__ import annotations

import pathlib

from worldmodel.corpus.manifest import JOURNAL, NAME
from worldmodel.corpus.read import Corpus, open_corpus


def open_source(place: str) -> Corpus:
    """Opens the corpus in the folder `place`; errors as `open_corpus`."""
    return open_corpus(place)


def recognise(path: pathlib.Path) -> bool:
    """A folder with a manifest, or with the journal of a conversion that will write one."""
    return (path / NAME).is_file() or (path / JOURNAL).is_file()
