"""Episodes of texts to tokens and back, and the tokens of a corpus in rows for training."""

from worldmodel.codec.text.codec import Kind, TextCodec, Tokens
from worldmodel.codec.text.episode import TextEpisode, TextRules, prepare
from worldmodel.codec.text.markers import Markers, chat_markers, own_markers
from worldmodel.codec.text.samples import Cuts, Sample, samples_of
from worldmodel.codec.text.tokenizer import ByteTokenizer, Tokenizer, learn_tokenizer, load_tokenizer

__all__ = [
    "ByteTokenizer",
    "Cuts",
    "Kind",
    "Markers",
    "Sample",
    "TextCodec",
    "TextEpisode",
    "TextRules",
    "Tokenizer",
    "Tokens",
    "chat_markers",
    "learn_tokenizer",
    "load_tokenizer",
    "own_markers",
    "prepare",
    "samples_of",
]
