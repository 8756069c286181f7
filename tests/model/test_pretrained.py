"""Public checkpoints: what `transformers` computes of them, this trunk computes; saved, they are the same again.

Reference logits and texts are transformers' own (tests/fixtures/make_pretrained.py).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from worldmodel.model.generation import generate
from worldmodel.model.language import LanguageConfig, init_params, language_model, pad_left
from worldmodel.model.pretrained import INDEX, SINGLE, load_pretrained, save_pretrained
from worldmodel.model.pretrained_config import config_of
from worldmodel.model.transformer import TrunkConfig

FIXTURES = Path(__file__).parents[1] / "fixtures" / "pretrained"
KINDS = ("qwen3", "llama")
TOLERANCE = 1e-4


@cache
def loaded(kind):
    config, params = load_pretrained(FIXTURES / kind)
    with np.load(FIXTURES / kind / "reference.npz") as file:
        return config, params, {name: file[name] for name in file.files}


def texts_of(reference):
    return [row[:length] for row, length in zip(reference["tokens"], reference["lengths"], strict=True)]


def logits_of(config, params, tokens, segments=None):
    run = jax.jit(lambda params, tokens, segments: language_model(config, params)(tokens, segments))
    return np.asarray(run(params, jnp.asarray(tokens), None if segments is None else jnp.asarray(segments)))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_read(kind):
    config, _, _ = loaded(kind)
    trunk = config.trunk
    assert (config.vocabulary, trunk.width, trunk.layers, trunk.heads, trunk.kv_heads) == (61, 24, 3, 4, 2)
    assert (trunk.mlp, trunk.window) == (31, None)
    own = (trunk.head_width, trunk.qk_norm, trunk.rope_base, trunk.norm_epsilon, config.tied)
    assert own == {"qwen3": (10, True, 1e6, 1e-6, True), "llama": (6, False, 1e4, 1e-5, False)}[kind]
    assert (FIXTURES / kind / INDEX).is_file() is (kind == "llama")


def test_fields_as_older_llamas_have_them():
    """Those of SmolLM2-135M: rope_theta on its own, a list of things that say nothing about arithmetic."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 49152,
    }
    trunk = TrunkConfig(576, 30, 9, 3, 1536, window=None, qk_norm=False, rope_base=1e5, norm_epsilon=1e-5)
    assert config_of(fields) == LanguageConfig(49152, trunk)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_padded_texts(kind):
    config, params, reference = loaded(kind)
    longest = reference["tokens"].shape[1]
    real = np.arange(longest) < reference["lengths"][:, None]
    right = logits_of(config, params, reference["tokens"], real.astype(np.int32))
    np.testing.assert_allclose(right[real], reference["right"][real], atol=TOLERANCE)
    tokens, _ = pad_left([text.tolist() for text in texts_of(reference)], config.vocabulary)
    left = logits_of(config, params, tokens, real[:, ::-1].astype(np.int32))
    np.testing.assert_allclose(left[real[:, ::-1]], reference["left"][real[:, ::-1]], atol=TOLERANCE)
    assert np.ptp(reference["right"]) > 5  # far from what any tolerance would let pass


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_packed_texts(kind):
    config, params, reference = loaded(kind)
    texts = texts_of(reference)
    document = np.repeat(np.arange(len(texts)), reference["lengths"])[None].astype(np.int32)
    packed = np.concatenate(texts)[None]
    got = logits_of(config, params, packed, document)
    np.testing.assert_allclose(got, reference["packed"], atol=TOLERANCE)
    mixed = logits_of(config, params, packed)
    assert np.abs(mixed - reference["packed"]).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_logits_over_the_cache(kind):
    """The first tokens of every text at once, padded on the left; the others one at a time."""
    config, params, reference = loaded(kind)
    model, texts, shown = language_model(config, params), texts_of(reference), 2
    firsts, said = [text[: max(len(text) - shown, 1)].tolist() for text in texts], []
    tokens, lengths = pad_left(firsts, config.vocabulary)
    logits, context = jax.jit(partial(model.start, capacity=29))(jnp.asarray(tokens), jnp.asarray(lengths))
    step = jax.jit(model.step)
    said.append(logits)
    for t in range(shown):
        following = [text[min(first + t, len(text) - 1)] for text, first in zip(texts, lengths, strict=True)]
        logits, context = step(jnp.asarray(np.array(following)), context)
        said.append(logits)
    for row, (text, first) in enumerate(zip(texts, lengths, strict=True)):
        for t in range(min(shown, len(text) - first) + 1):
            want = reference["right"][row, first + t - 1]
            np.testing.assert_allclose(said[t][row], want, atol=TOLERANCE, err_msg=f"text {row}, {t} after the start")
    assert context.seen.tolist() == [int(first) + shown for first in lengths]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_follows(kind):
    config, params, reference = loaded(kind)
    tokens, lengths = pad_left([text.tolist() for text in texts_of(reference)], config.vocabulary)
    steps = reference["greedy"].shape[1]
    said = jax.jit(partial(generate, config, steps=steps))(params, jnp.asarray(tokens), jnp.asarray(lengths))
    np.testing.assert_array_equal(said.tokens, reference["greedy"])
    assert len(np.unique(reference["greedy"])) > steps


def test_a_sliding_window_is_that_of_transformers(tmp_path):
    _, params, reference = loaded("qwen3")
    folder = edited(tmp_path / "narrow", "qwen3", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    set_fields(folder, layer_types=None)
    config, _ = load_pretrained(folder)
    assert config.trunk.window == 4
    real = np.arange(reference["tokens"].shape[1]) < reference["lengths"][:, None]
    got = logits_of(config, params, reference["tokens"], real.astype(np.int32))
    np.testing.assert_allclose(got[real], reference["windowed"][real], atol=TOLERANCE)
    assert np.abs(reference["windowed"] - reference["right"])[real].max() > 0.1
    save_pretrained(tmp_path / "again", config, params)
    assert load_pretrained(tmp_path / "again")[0] == config


# --- Saving -----------------------------------------------------------------------------------------------------------


def tensors_of(folder):
    return {name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_what_was_loaded(kind, tmp_path):
    config, params, _ = loaded(kind)
    save_pretrained(tmp_path / "out", config, params, like=FIXTURES / kind)
    original, saved = tensors_of(FIXTURES / kind), tensors_of(tmp_path / "out")
    assert set(saved) == set(original)
    for name, array in original.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)
        assert saved[name].dtype == array.dtype
    fields = json.loads((FIXTURES / kind / "config.json").read_text())
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: found[name] for name in fields} == fields
    assert (tmp_path / "out" / "generation_config.json").is_file()
    again, back = load_pretrained(tmp_path / "out")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, back, params)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_is_read_and_written(dtype, tmp_path):
    config, params, _ = loaded("qwen3")
    save_pretrained(tmp_path, config, params, dtype=dtype)
    _, back = load_pretrained(tmp_path)
    rounded = jax.tree.map(lambda x: np.asarray(x).astype(dtype).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, back, rounded)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == np.dtype(dtype).name


def test_a_fresh_model_is_saved_over_shards_of_an_old_one(tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(FIXTURES / "llama", folder)
    config = LanguageConfig(11, TrunkConfig(width=6, layers=1, heads=1, kv_heads=1, mlp=5, window=None))
    params = init_params(config, 0)
    save_pretrained(folder, config, params)
    assert [file.name for file in folder.glob("*.safetensors*")] == [SINGLE]
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder)[1], params)


def test_what_neither_architecture_computes_is_not_saved(tmp_path):
    config, params, _ = loaded("llama")
    windowed = dataclasses.replace(config, trunk=dataclasses.replace(config.trunk, window=3))
    with pytest.raises(ValueError, match=r"window 3: Llama \(no QK-norm\) has none"):
        save_pretrained(tmp_path / "out", windowed, params)
    with pytest.raises(ValueError, match=r"a vocabulary of 60 tokens; that of `like` has 61"):
        save_pretrained(tmp_path / "out", dataclasses.replace(config, vocabulary=60), params, like=FIXTURES / "llama")
    assert not (tmp_path / "out").exists()


# --- What is refused --------------------------------------------------------------------------------------------------


def set_fields(folder, **fields):
    path = folder / "config.json"
    there = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in there.items() if value is not ...}))


def edited(folder, kind, **fields):
    """A copy of a checkpoint with other fields; `...` takes one away."""
    shutil.copytree(FIXTURES / kind, folder)
    set_fields(folder, **fields)
    return folder


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("qwen3", {"model_type": "gemma3"}, r"model_type is 'gemma3'; qwen3 and llama can be loaded"),
        ("qwen3", {"model_type": ...}, r"model_type is None"),
        ("qwen3", {"architectures": ["Qwen3Model"]}, r"architectures is \['Qwen3Model'\]"),
        ("qwen3", {"attention_bias": True}, r"attention_bias is True; only False is computed here"),
        ("llama", {"mlp_bias": True}, r"mlp_bias is True"),
        ("llama", {"pretraining_tp": 2}, r"pretraining_tp is 2"),
        ("llama", {"hidden_act": "gelu"}, r"hidden_act is 'gelu'; only 'silu' is computed here"),
        ("llama", {"quantization_config": {"bits": 4}}, r"quantization_config is \{'bits': 4\}"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, r"rope_scaling asks for \{'type': 'linear'"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, r"rope_parameters asks for"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, r"rope_parameters asks for \{'full_attention'"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "layer_types": None, "max_window_layers": 1},
         r"layers are of full_attention, sliding_attention with sliding_window 4"),
        ("qwen3", {"hidden_size": None}, r"hidden_size is None; a positive whole number is needed"),
        ("qwen3", {"num_hidden_layers": 0}, r"num_hidden_layers is 0"),
        ("qwen3", {"num_key_value_heads": 3}, r"heads 4 must be a multiple of kv_heads 3"),
        ("qwen3", {"num_hidden_layers": 4}, r"the checkpoint lacks 11 tensors, model\.layers\.3\."),
        ("qwen3", {"num_hidden_layers": 2}, r"this model has no place for 11 tensors, model\.layers\.2\."),
        ("qwen3", {"model_type": "llama", "architectures": None}, r"no place for 6 tensors, .*k_norm\.weight among"),
        ("qwen3", {"intermediate_size": 30}, r"mlp\.\w+\.weight has shape \[\d+, \d+\]; \[\d+, \d+\] follows from"),
        ("llama", {"vocab_size": 60}, r"embed_tokens\.weight has shape \[61, 24\]; \[60, 24\] follows from"),
        ("llama", {"tie_word_embeddings": True}, r"lm_head\.weight differs from the embeddings, though"),
    ],
)  # fmt: skip
def test_what_would_be_loaded_wrongly_is_refused(kind, fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_pretrained(edited(tmp_path / "checkpoint", kind, **fields))


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is no checkpoint: it has no config\.json"):
        load_pretrained(tmp_path / "nowhere")
    folder = edited(tmp_path / "one", "llama")
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    whole = shards[1].read_bytes()
    shards[1].unlink()
    with pytest.raises(FileNotFoundError, match=rf"{shards[1].name} is missing"):
        load_pretrained(folder)
    for damaged in (b"", whole[:100], whole[:-7], b"\xff" * 1_000):
        shards[1].write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{shards[1].name} is no whole safetensors file"):
            load_pretrained(folder)
    (folder / INDEX).write_text('{"weight_map": {"a": "../../elsewhere.safetensors"}}')
    with pytest.raises(ValueError, match=r"'\.\./\.\./elsewhere\.safetensors', which is not beside it"):
        load_pretrained(folder)
    (folder / INDEX).write_text("[]")
    with pytest.raises(ValueError, match=rf"{INDEX} is damaged"):
        load_pretrained(folder)
    (folder / INDEX).unlink()
    with pytest.raises(FileNotFoundError, match=rf"has neither {SINGLE} nor {INDEX}"):
        load_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load_pretrained(folder)


def test_weights_that_are_no_floats_are_refused(tmp_path):
    folder = edited(tmp_path / "one", "qwen3")
    tensors = load_file(folder / SINGLE)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
    save_file(tensors, folder / SINGLE)
    with pytest.raises(ValueError, match=r"model\.norm\.weight is stored as I8; F32, F16, BF16 can be read"):
        load_pretrained(folder)
