"""What training on a corpus of texts is made of, and sizes to begin from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from worldmodel.codec.text.episode import TextRules
from worldmodel.codec.text.information import weights_of
from worldmodel.codec.text.tokenizer import BYTES
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.sharding import parse_mesh


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How a language world model is trained.

    A row packs samples of several episodes; none sees another.
    """

    trunk: TrunkConfig = TrunkConfig(width=128, layers=4, heads=4, kv_heads=2, mlp=384, window=None)
    """Of a fresh model; a pretrained one brings its own."""
    vocabulary: int = 2_048
    """Tokens of the byte-level BPE that is learned from the corpus; 256: bytes, which need no package."""
    rules: TextRules = TextRules(longest_observation=600, longest_action=300, longest_context=400)
    weights: str = "off"
    """What observations count by their information (`worldmodel.codec.text.information`): off, paper, or own weights
    as echo=0.2,boilerplate=0.5."""
    init: str = ""
    """Folder of a pretrained model (config.json, safetensors, tokenizer.json) to begin from; empty: a fresh one."""
    lora: int = 0
    """Rank of a low-rank change that is trained instead of the pretrained weights; 0: the weights themselves."""
    lora_scale: float = 2.0
    """What the change is multiplied by."""
    steps: int = 2_000
    batch_size: int = 8
    """Rows."""
    length: int = 512
    """Tokens of a row: the longest past that the model is trained to look back on."""
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 1e-2
    clip: float = 1.0
    checkpoint_every: int = 500
    log_every: int = 50
    seed: int = 0
    mesh: str = ""
    """Devices by axis, as "data=4,fsdp=2": axes data, fsdp, tensor; -1 takes those left. Empty: one device."""
    accumulate: int = 1
    """Micro-batches that one step's batch is taken in, one after the other."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products in the trunk; parameters, optimiser and likelihoods are float32."""
    remat: Literal["none", "products", "stream"] = "none"
    """What the backward pass computes again to save memory: nothing, all but products, all but the residual stream."""
    evaluation_batches: int = 8
    """Batches of held-out rows, the same at every checkpoint, that decide which one is best."""

    def __post_init__(self):
        for name in ("steps", "batch_size", "length", "checkpoint_every", "log_every", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"training {name} is {getattr(self, name)}; at least 1 is needed")
        for name in ("evaluation_batches", "lora"):
            if getattr(self, name) < 0:
                raise ValueError(f"training {name} is {getattr(self, name)}; at least 0 is needed")
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size {self.batch_size} cannot be taken in {self.accumulate} equal micro-batches")
        if self.vocabulary < BYTES:
            raise ValueError(f"a vocabulary of {self.vocabulary}; at least {BYTES} tokens are needed, one a byte")
        if self.lora and not self.init:
            raise ValueError("lora changes a pretrained model; name its folder with init")
        weights_of(self.weights)
        parse_mesh(self.mesh)


OF_THE_MACHINE = ("mesh", "accumulate", "remat", "evaluation_batches")
"""Fields that may change between one call and the next."""


def _trunk(width: int, layers: int) -> TrunkConfig:
    heads = width // 64
    return TrunkConfig(width, layers, heads, kv_heads=heads // 2, mlp=3 * width, window=None)


def _large(trunk: TrunkConfig, **fields) -> TextConfig:
    return TextConfig(trunk, rules=TextRules(), warmup=1_000, checkpoint_every=1_000, **fields)


TEXT_PRESETS: dict[str, TextConfig] = {
    "default": TextConfig(),
    "debug": TextConfig(
        TrunkConfig(16, 1, 2, 1, 32, window=None),
        vocabulary=256,
        rules=TextRules(longest_observation=80, longest_action=60, longest_context=60),
        steps=100,
        batch_size=4,
        length=256,
        warmup=10,
        checkpoint_every=50,
        log_every=10,
        evaluation_batches=2,
    ),
    "tiny": TextConfig(TrunkConfig(64, 2, 4, 2, 192, window=None), vocabulary=1_024, steps=1_000),
    "small": _large(_trunk(256, 4), vocabulary=4_096, steps=10_000, batch_size=16, length=1_024, learning_rate=1e-3),
    "25m": _large(_trunk(512, 8), vocabulary=8_192, steps=50_000, batch_size=32, length=2_048, learning_rate=6e-4),
    "85m": _large(
        _trunk(768, 12),
        vocabulary=16_384,
        steps=100_000,
        batch_size=64,
        length=4_096,
        learning_rate=4e-4,
        precision="bfloat16",
    ),
    "300m": _large(
        _trunk(1_024, 24),
        vocabulary=32_768,
        steps=200_000,
        batch_size=128,
        length=4_096,
        learning_rate=3e-4,
        precision="bfloat16",
        remat="products",
    ),
    "1b": _large(
        _trunk(2_048, 20),
        vocabulary=65_536,
        steps=200_000,
        batch_size=256,
        length=8_192,
        learning_rate=2e-4,
        precision="bfloat16",
        remat="stream",
    ),
}
"""By the names of `worldmodel.training.presets`; of those above `tiny` no schedule has been run."""
