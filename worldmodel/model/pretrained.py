"""Public checkpoints of Qwen3 and Llama: a folder of `config.json` and safetensors, read and written.

A field that asks for what the trunk does not compute is refused, and every tensor of the files must find its place: a
checkpoint is loaded rightly or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from worldmodel._types import PyTree
from worldmodel.model.language import LanguageConfig, abstract_params
from worldmodel.model.params import Params
from worldmodel.model.pretrained_config import config_of, fields_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
COMPANIONS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
)
"""Files that go with a checkpoint's weights wherever these are saved."""

_FLOATS = ("F32", "F16", "BF16")
_DERIVED = "rotary_emb.inv_freq"
"""Ending of tensors that old checkpoints hold and that follow from the config."""


def load_pretrained(folder: str | os.PathLike[str]) -> tuple[LanguageConfig, Params]:
    """A language model's sizes and parameters, float32, from a checkpoint that `transformers` would load.

    Raises:
      FileNotFoundError: the folder, its `config.json` or its weights are missing.
      ValueError: it is of another architecture, asks for what the trunk does not compute, or its tensors are not those
        that its config asks for.
    """
    folder = Path(folder)
    config = config_of(read_fields(folder))
    with _open(folder) as tensors:
        params = _params(folder, config, tensors)
    return config, params


def save_pretrained(
    folder: str | os.PathLike[str],
    config: LanguageConfig,
    params: Params,
    *,
    like: str | os.PathLike[str] | None = None,
    dtype: Any = np.float32,
) -> None:
    """Writes a checkpoint that `transformers` loads: Qwen3 where queries and keys are normed, Llama otherwise.

    Args:
      folder: made where it is missing; a checkpoint in it is replaced.
      config: sizes of the model.
      params: its parameters.
      like: a checkpoint whose other fields (ids of special tokens) and tokenizer go with these weights.
      dtype: of the weights in the file, float32, float16 or bfloat16.

    Raises:
      ValueError: neither architecture computes this, or `like` has another vocabulary.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    other = {} if like is None else read_fields(Path(like))
    fields = fields_of(config, other, np.dtype(dtype).name)
    tensors = {}
    for place in _places(config):
        array = np.asarray(_at(params, place.path))
        ends = np.cumsum(place.sizes)[:-1]
        for name, part in zip(place.names, np.split(array.T if place.turned else array, ends), strict=True):
            tensors[name] = np.ascontiguousarray(part).astype(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (*folder.glob("*.safetensors"), folder / INDEX):
        stale.unlink(missing_ok=True)
    temporary = folder / f".{SINGLE}.{os.getpid()}.tmp"
    save_file(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, folder / SINGLE)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    if like is not None:
        for pattern in COMPANIONS:
            for file in Path(like).glob(pattern):
                shutil.copy(file, folder)


def read_fields(folder: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no checkpoint: it has no config.json")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds a {type(fields).__name__}; an object of fields is needed")
    return fields


class _Place(NamedTuple):
    """Where tensors of a checkpoint go: one array of ours, made of one or several of theirs."""

    path: tuple[Any, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Of each along its first axis."""
    turned: bool
    """Theirs are `[out, in]`, ours `[in, out]`."""


def _places(config: LanguageConfig) -> Iterator[_Place]:
    trunk = config.trunk
    query, kv, head = trunk.query_width, trunk.kv_heads * trunk.head_width, trunk.head_width

    def plain(path: tuple[Any, ...], name: str, size: int) -> _Place:
        return _Place(path, (name,), (size,), turned=False)

    def map_(path: tuple[Any, ...], **parts: int) -> _Place:
        names = tuple(f"{prefix}{name.replace('__', '.')}.weight" for name in parts)
        return _Place((*path, "kernel"), names, tuple(parts.values()), turned=True)

    yield plain(("embedding",), "model.embed_tokens.weight", config.vocabulary)
    if not config.tied:
        yield plain(("unembedding",), "lm_head.weight", config.vocabulary)
    yield plain(("trunk", "norm", "scale"), "model.norm.weight", trunk.width)
    for layer in range(trunk.layers):
        prefix, here = f"model.layers.{layer}.", ("trunk", "blocks", layer)
        yield plain((*here, "norm_attention", "scale"), f"{prefix}input_layernorm.weight", trunk.width)
        yield map_((*here, "qkv"), self_attn__q_proj=query, self_attn__k_proj=kv, self_attn__v_proj=kv)
        if trunk.qk_norm:
            yield plain((*here, "norm_query", "scale"), f"{prefix}self_attn.q_norm.weight", head)
            yield plain((*here, "norm_key", "scale"), f"{prefix}self_attn.k_norm.weight", head)
        yield map_((*here, "output"), self_attn__o_proj=trunk.width)
        yield plain((*here, "norm_mlp", "scale"), f"{prefix}post_attention_layernorm.weight", trunk.width)
        yield map_((*here, "gate_up"), mlp__gate_proj=trunk.mlp, mlp__up_proj=trunk.mlp)
        yield map_((*here, "down"), mlp__down_proj=trunk.width)


def _params(folder: Path, config: LanguageConfig, tensors: Mapping[str, Any]) -> Params:
    places, shapes = list(_places(config)), abstract_params(config)
    wanted = {name for place in places for name in place.names}
    found = {name for name in tensors if not name.endswith(_DERIVED)}
    _check_names(folder, wanted, found - ({"lm_head.weight"} if config.tied else set()))
    params: dict[str, Any] = {}
    for place in places:
        shape = _at(shapes, place.path).shape
        rest = shape[:1] if place.turned else shape[1:]
        parts = [
            _read(folder, tensors, name, (size, *rest)) for name, size in zip(place.names, place.sizes, strict=True)
        ]
        whole = np.concatenate(parts)
        _put(params, place.path, jnp.asarray(whole.T if place.turned else whole))
    if config.tied and "lm_head.weight" in found:
        head = _read(folder, tensors, "lm_head.weight", params["embedding"].shape)
        if not np.array_equal(head, params["embedding"]):
            raise ValueError(f"{folder}: lm_head.weight differs from the embeddings, though the config ties them")
    return params


def _check_names(folder: Path, wanted: set[str], found: set[str]) -> None:
    for what, names in (("lacks", wanted - found), ("has no place for", found - wanted)):
        if names:
            subject = "the checkpoint" if what == "lacks" else "this model"
            raise ValueError(f"{folder}: {subject} {what} {len(names)} tensors, {min(names)} among them")


def _read(folder: Path, tensors: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    file = tensors[name]
    described = file.get_slice(name)
    found, dtype = tuple(described.get_shape()), described.get_dtype()
    if found != shape:
        raise ValueError(f"{folder}: {name} has shape {list(found)}; {list(shape)} follows from config.json")
    if dtype not in _FLOATS:
        raise ValueError(f"{folder}: {name} is stored as {dtype}; {', '.join(_FLOATS)} can be read")
    return np.asarray(file.get_tensor(name)).astype(np.float32)


@contextlib.contextmanager
def _open(folder: Path) -> Iterator[dict[str, Any]]:
    """Of every tensor the open file that holds it."""
    from safetensors import SafetensorError, safe_open

    with contextlib.ExitStack() as stack:
        files = {}
        for path in _files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="np"))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{path} is missing, one of the files that {INDEX} names") from error
            except SafetensorError as error:
                raise ValueError(f"{path} is no whole safetensors file: {error}") from error
            files |= dict.fromkeys(file.keys(), file)
        yield files


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} has neither {SINGLE} nor {INDEX}; other formats are not read")
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX} is damaged: {type(error).__name__} {error}") from error
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{folder / INDEX} names the file {name!r}, which is not beside it")
    return [folder / name for name in sorted(names)]


def _at(tree: PyTree, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
