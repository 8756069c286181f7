"""Values of spaces to model features and targets, and back.

A codec is a frozen dataclass of plain numbers (JSON in a checkpoint); its methods are pure JAX and take any leading
axes.
"""

from worldmodel.codec.box import BIN_FRACTION, QUANTILES, BoxCodec
from worldmodel.codec.context import ContextCodec
from worldmodel.codec.discrete import DiscreteCodec, GridCodec, MultiDiscreteCodec
from worldmodel.codec.picture import PictureCodec
from worldmodel.codec.reward import RewardCodec
from worldmodel.codec.shapes import column_shapes
from worldmodel.codec.step import SpaceCodec, StepCodec, check_kinds, check_spec, fit_codec
from worldmodel.codec.tree import TreeCodec

__all__ = [
    "BIN_FRACTION",
    "QUANTILES",
    "BoxCodec",
    "ContextCodec",
    "DiscreteCodec",
    "GridCodec",
    "MultiDiscreteCodec",
    "PictureCodec",
    "RewardCodec",
    "SpaceCodec",
    "StepCodec",
    "TreeCodec",
    "check_kinds",
    "check_spec",
    "column_shapes",
    "fit_codec",
]
