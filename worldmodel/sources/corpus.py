"""`corpus:DIR`: the project's own corpus on disk."""

from worldmodel.corpus.read import Corpus, open_corpus


def open_source(place: str) -> Corpus:
    """Opens the corpus in the folder `place`; errors as `open_corpus`."""
    return open_corpus(place)
