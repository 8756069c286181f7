"""`config.json` of Qwen3 and Llama checkpoints, as the sizes of a language model and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldmodel.model.language import LanguageConfig
from worldmodel.model.transformer import TrunkConfig

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
"""By `model_type`."""

ONLY = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0.0,),
    "pretraining_tp": (1,),
    "rope_interleaved": (False,),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
}
"""Fields that change what a model computes, and the values that stand for what this one computes."""

_QWEN3_HEAD = 128
_QWEN3_FULL_LAYERS = 28
"""What `transformers` takes where a Qwen3 config does not say `head_dim`, `max_window_layers`."""


def config_of(fields: Mapping[str, Any]) -> LanguageConfig:
    """The sizes that a config asks for.

    Raises:
      ValueError: a field is missing, or asks for what this model does not compute.
    """
    kind = fields.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"config.json: model_type is {kind!r}; {' and '.join(ARCHITECTURES)} can be loaded")
    named = fields.get("architectures") or [ARCHITECTURES[kind]]
    if named != [ARCHITECTURES[kind]]:
        raise ValueError(f"config.json: architectures is {named}; {[ARCHITECTURES[kind]]} can be loaded")
    for name, allowed in ONLY.items():
        if name in fields and fields[name] not in allowed:
            raise ValueError(f"config.json: {name} is {fields[name]!r}; only {allowed[0]!r} is computed here")
    width, heads = _whole(fields, "hidden_size"), _whole(fields, "num_attention_heads")
    layers = _whole(fields, "num_hidden_layers")
    head = fields.get("head_dim") or (_QWEN3_HEAD if kind == "qwen3" else None)
    if kind == "llama" and fields.get("num_key_value_heads") is None:
        kv_heads = heads
    else:
        kv_heads = _whole(fields, "num_key_value_heads")
    trunk = TrunkConfig(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp=_whole(fields, "intermediate_size"),
        window=_window(fields, layers) if kind == "qwen3" else None,
        head_channels=head,
        qk_norm=kind == "qwen3",
        rope_base=_rope_base(fields),
        norm_epsilon=float(fields.get("rms_norm_eps", 1e-6)),
    )
    return LanguageConfig(_whole(fields, "vocab_size"), trunk, tied=bool(fields.get("tie_word_embeddings", False)))


def fields_of(config: LanguageConfig, other: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The inverse; `other` are fields that say nothing about sizes, or are replaced.

    Raises:
      ValueError: neither architecture computes this, or `other` is of another vocabulary.
    """
    trunk, kind = config.trunk, "qwen3" if config.trunk.qk_norm else "llama"
    if other.get("vocab_size", config.vocabulary) != config.vocabulary:
        raise ValueError(f"a vocabulary of {config.vocabulary} tokens; that of `like` has {other['vocab_size']}")
    if kind == "llama" and trunk.window is not None:
        raise ValueError(f"window {trunk.window}: Llama (no QK-norm) has none; with a window, norm queries and keys")
    fields = {
        **other,
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "vocab_size": config.vocabulary,
        "hidden_size": trunk.width,
        "num_hidden_layers": trunk.layers,
        "num_attention_heads": trunk.heads,
        "num_key_value_heads": trunk.kv_heads,
        "head_dim": trunk.head_width,
        "intermediate_size": trunk.mlp,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": trunk.norm_epsilon,
        "rope_theta": trunk.rope_base,
        "rope_parameters": {"rope_theta": trunk.rope_base, "rope_type": "default"},
        "tie_word_embeddings": config.tied,
        "dtype": dtype,
    }
    fields.pop("torch_dtype", None)
    if kind == "qwen3":
        windowed = trunk.window is not None
        fields |= {
            "use_sliding_window": windowed,
            "sliding_window": trunk.window,
            "layer_types": ["sliding_attention" if windowed else "full_attention"] * trunk.layers,
        }
        if windowed:
            fields["max_window_layers"] = 0
    return fields


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {name} is {value!r}; a positive whole number is needed")
    return value


def _rope_base(fields: Mapping[str, Any]) -> float:
    """`rope_theta`, which newer configs hold in `rope_parameters`."""
    base = fields.get("rope_theta", 10_000.0)
    for name in ("rope_scaling", "rope_parameters"):
        parameters = dict(fields.get(name) or {})
        base = parameters.pop("rope_theta", base)
        plain = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
        odd = {key: value for key, value in parameters.items() if (key, value) not in plain.items()}
        if odd:
            raise ValueError(f"config.json: {name} asks for {odd}; only plain rotary positions are computed here")
    return float(base)


def _window(fields: Mapping[str, Any], layers: int) -> int | None:
    """Of Qwen3: no layer has one, or all have the same."""
    size = fields.get("sliding_window") if fields.get("use_sliding_window") else None
    first = 0 if size is None else fields.get("max_window_layers", _QWEN3_FULL_LAYERS)
    derived = ["sliding_attention" if size is not None and i >= first else "full_attention" for i in range(layers)]
    kinds = set(fields.get("layer_types") or derived)
    if kinds == {"full_attention"}:
        return None
    if kinds == {"sliding_attention"} and size is not None:
        return size
    raise ValueError(
        f"config.json: layers are of {', '.join(sorted(kinds))} with sliding_window {size}; all full or all sliding "
        "can be loaded"
    )
