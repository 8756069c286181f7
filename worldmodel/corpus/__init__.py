"""The corpus on disk: written once, read often, cut into windows for training.

Importing this room is cheap; TensorFlow Datasets and Grain are imported when data is first touched.
"""

from worldmodel.corpus.columns import Columns, Episodes, Transitions
from worldmodel.corpus.mixture import mixed_batches
from worldmodel.corpus.packing import packed_batches
from worldmodel.corpus.read import Corpus, open_corpus
from worldmodel.corpus.split import SPLITS, held_out_mask, split_of
from worldmodel.corpus.store import StoredEpisodes
from worldmodel.corpus.windows import window_batches
from worldmodel.corpus.write import write_corpus

__all__ = [
    "SPLITS",
    "Columns",
    "Corpus",
    "Episodes",
    "StoredEpisodes",
    "Transitions",
    "held_out_mask",
    "mixed_batches",
    "open_corpus",
    "packed_batches",
    "split_of",
    "window_batches",
    "write_corpus",
]
