"""The corpus on disk: written once, read often, cut into windows for training.

Importing this room is cheap; TensorFlow Datasets and Grain are imported when data is first touched.
"""

from worldmodel.corpus.columns import Columns, Transitions
from worldmodel.corpus.read import Corpus, open_corpus
from worldmodel.corpus.split import SPLITS, held_out_mask, split_of
from worldmodel.corpus.windows import window_batches
from worldmodel.corpus.write import write_corpus

__all__ = [
    "SPLITS",
    "Columns",
    "Corpus",
    "Transitions",
    "held_out_mask",
    "open_corpus",
    "split_of",
    "window_batches",
    "write_corpus",
]
