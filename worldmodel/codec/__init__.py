"""Values of spaces to model features and targets, and back."""

from worldmodel.codec.spaces import BoxCodec, DiscreteCodec, RewardCodec, StepCodec, check_kinds, check_spec, fit_codec

__all__ = ["BoxCodec", "DiscreteCodec", "RewardCodec", "StepCodec", "check_kinds", "check_spec", "fit_codec"]
