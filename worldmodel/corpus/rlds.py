"""One episode <-> one RLDS example of TensorFlow Datasets, by whole columns.

Steps follow RLDS: `T+1` rows, row `t` holds `o_t, a_t, r_t`; the last holds the final observation, with no reward and
an action that only pads. TFDS encodes and decodes step by step, which is 10 to 100 times slower than the columns it
ends up with. Those are written and read here as TFDS lays them out in a `tf.Example`; a test compares them with what
plain TFDS reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from worldmodel.corpus.tf_example import columns_of_example, put_floats, put_integers
from worldmodel.images import EncodedImages, encode_png
from worldmodel.spaces import (
    assemble,
    box_bounds,
    columns_of,
    dtype_of,
    is_image,
    leaves,
    map_columns,
    named,
    parts_of,
    shape_of,
    walk,
)
from worldmodel.trajectory import Spec, Trajectory

# tf.Example stores float32 and int64 lists; every other dtype would be widened or rounded, so it is kept as bytes.
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))
_FLOATS = np.dtype(np.float32)
_METADATA = ("terminated", "truncated", "has_rewards", "context", "info")


def features_of(spec: Spec) -> tfds.features.FeaturesDict:
    """The TFDS features of an episode under `spec`.

    A Dict or Tuple is a FeaturesDict (a Tuple's keys are "0", "1", ..), a Text a Text, an image an Image, the rest
    Tensors.
    """
    f = tfds.features
    return f.FeaturesDict(
        {
            "steps": f.Dataset(
                {
                    "observation": _feature(spec.observation_space),
                    "action": _feature(spec.action_space),
                    "reward": f.Scalar(np.float32),
                    "discount": f.Scalar(np.float32),
                    "is_first": f.Scalar(np.bool_),
                    "is_last": f.Scalar(np.bool_),
                    "is_terminal": f.Scalar(np.bool_),
                    "action_log_prob": f.Scalar(np.float32, doc="natural log; NaN where unknown"),
                }
            ),
            "episode_metadata": f.FeaturesDict(
                {
                    "id": f.Text(),
                    "source": f.Text(),
                    "policy": f.Text(),
                    "seed": f.Scalar(np.int64, doc="-1 where unknown"),
                    "terminated": f.Scalar(np.bool_),
                    "truncated": f.Scalar(np.bool_),
                    "has_rewards": f.Scalar(np.bool_),
                    "context": f.Text(doc="JSON"),
                    "info": f.Text(doc="JSON"),
                }
            ),
        }
    )


def _feature(space: Mapping[str, Any]) -> tfds.features.FeatureConnector:
    if space["type"] in ("Dict", "Tuple"):
        return tfds.features.FeaturesDict({str(key): _feature(part) for key, part in parts_of(space)})
    if space["type"] == "Text":
        return tfds.features.Text()
    if is_image(space):
        return tfds.features.Image(shape=shape_of(space))
    as_bytes = _stored_as(space) == "bytes"
    encoding = tfds.features.Encoding.BYTES if as_bytes else tfds.features.Encoding.NONE
    return tfds.features.Tensor(shape=shape_of(space), dtype=dtype_of(space), encoding=encoding)


def _stored_as(space: Mapping[str, Any]) -> str:
    """How a leaf lies in the example: "text", "images", "floats", "integers", or "bytes" of one step each."""
    if space["type"] == "Text":
        return "text"
    if is_image(space):
        return "images"
    if 0 in shape_of(space):
        return "bytes"  # an empty list of numbers would not say how many steps there are
    dtype = dtype_of(space)
    return "floats" if dtype == _FLOATS else "integers" if dtype in _INTEGERS else "bytes"


class EpisodeCoder:
    """Serialises and reads back the episodes of one `Spec`.

    Raises:
      ValueError: a Box has a dtype that cannot be stored.
    """

    def __init__(self, spec: Spec):
        for role, space in (("observation", spec.observation_space), ("action", spec.action_space)):
            for path, leaf in leaves(space):
                if leaf["type"] == "Box" and dtype_of(leaf).kind not in "biuf":
                    raise ValueError(f"{named(role, path)} has dtype {leaf['dtype']}; a corpus keeps real numbers")
        self.features = features_of(spec)
        self._spec = spec
        self._no_action = {path: _padding(leaf) for path, leaf in leaves(spec.action_space)}

    def encode(self, trajectory: Trajectory, *, where: str) -> bytes:
        """One serialised `tf.Example`; `ValueError` where a value does not fit the spec's dtype or is not JSON."""
        steps = len(trajectory)
        last = np.arange(steps + 1) == steps
        discount = np.ones(steps + 1, np.float32)
        if trajectory.terminated:
            discount[-2:] = 0.0
        messages: Any = tf_example_pb2  # its classes are made when it is imported
        example = messages.Example()
        features = example.features.feature
        for path, space, column in columns_of(self._spec.observation_space, trajectory.observations):
            _put(features[_key("observation", path)], space, _rows(space, column, named("observation", path), where))
        for path, space, column in columns_of(self._spec.action_space, trajectory.actions):
            rows = _rows(space, column, named("action", path), where)
            padding = self._no_action[path]
            rows = [*rows, padding] if isinstance(rows, list) else np.concatenate([rows, padding[None]])
            _put(features[_key("action", path)], space, rows)
        log_prob = _floats(trajectory.action_log_prob, steps, np.nan)
        put_floats(features["steps/reward"], np.append(_floats(trajectory.rewards, steps, 0.0), np.float32(0)))
        put_floats(features["steps/discount"], discount)
        put_floats(features["steps/action_log_prob"], np.append(log_prob, np.float32(0)))
        put_integers(features["steps/is_first"], np.arange(steps + 1) == 0)
        put_integers(features["steps/is_last"], last)
        put_integers(features["steps/is_terminal"], last & trajectory.terminated)
        self._put_metadata(features, trajectory, where)
        return example.SerializeToString(deterministic=True)

    def decode(self, record: bytes) -> Trajectory:
        """The inverse of `encode`; images stay encoded. `ValueError` where the record is damaged."""
        stored: dict[str, Any] = columns_of_example(record)
        try:
            log_prob = _numbers(stored["steps/action_log_prob"])[:-1]
            metadata = {name: stored[f"episode_metadata/{name}"][0] for name in _METADATA}
            return Trajectory(
                observations=_taken(stored, "observation", self._spec.observation_space),
                actions=map_columns(lambda rows: rows[:-1], _taken(stored, "action", self._spec.action_space)),
                rewards=_numbers(stored["steps/reward"])[:-1] if metadata["has_rewards"] else None,
                terminated=bool(metadata["terminated"]),
                truncated=bool(metadata["truncated"]),
                action_log_prob=None if np.isnan(log_prob).any() else log_prob,
                context=json.loads(metadata["context"]),
                info=json.loads(metadata["info"]),
            )
        except KeyError as error:
            raise ValueError(f"a record lacks {error}; it is no episode of this spec") from None

    @staticmethod
    def _put_metadata(features: Any, trajectory: Trajectory, where: str) -> None:
        info = trajectory.info
        seed = info.get("seed")
        seed = seed if isinstance(seed, int) and -(2**63) <= seed < 2**63 else -1
        texts = {name: str(info.get(name) or "") for name in ("source", "policy")} | {"id": str(info["id"])}
        texts["context"] = _to_json(trajectory.context, f"{where}, context")
        texts["info"] = _to_json(dict(info), f"{where}, info")
        for name, text in texts.items():
            features[f"episode_metadata/{name}"].bytes_list.value.append(text.encode("utf-8", "surrogatepass"))
        numbers = {
            "seed": int(seed),
            "terminated": int(trajectory.terminated),
            "truncated": int(trajectory.truncated),
            "has_rewards": int(trajectory.rewards is not None),
        }
        for name, number in numbers.items():
            features[f"episode_metadata/{name}"].int64_list.value.append(number)


def _key(role: str, path: str) -> str:
    return f"steps/{role}/{path}" if path else f"steps/{role}"


def _rows(space: Mapping[str, Any], column: Any, role: str, where: str) -> Any:
    """A column in the leaf's dtype, or for text, images and bytes a list with one `bytes` per step."""
    stored = _stored_as(space)
    if stored == "text":
        return [text.encode("utf-8", "surrogatepass") for text in column]
    if isinstance(column, EncodedImages):
        return list(column.encoded)
    values, dtype = np.asarray(column), dtype_of(space)
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ValueError(f"{where}: {role} has dtype {values.dtype}; the space has {dtype}")
    values = np.ascontiguousarray(values, dtype).reshape(values.shape)
    if stored == "images":
        return [encode_png(image) for image in values]
    return [row.tobytes() for row in values] if stored == "bytes" else values


def _put(feature: Any, space: Mapping[str, Any], rows: Any) -> None:
    if isinstance(rows, list):
        feature.bytes_list.value.extend(rows)
    elif _stored_as(space) == "floats":
        put_floats(feature, rows)
    else:
        put_integers(feature, rows)


def _taken(stored: Mapping[str, Any], role: str, space: Mapping[str, Any]) -> Any:
    """The columns of a space, from the lists of an example."""
    parts = [(path, _take(stored, role, "/".join(map(str, path)), leaf)) for path, leaf in walk(space)]
    return assemble(parts)


def _take(stored: Mapping[str, Any], role: str, path: str, space: Mapping[str, Any]) -> Any:
    """The column of one leaf, from the lists of an example."""
    column, shape, dtype = stored[_key(role, path)], shape_of(space), dtype_of(space)
    kind = _stored_as(space)
    if kind == "images":
        height, width, channels = shape
        return EncodedImages(column, (height, width, channels))
    if kind == "text":
        return _strings(column)
    if kind == "bytes":
        return np.frombuffer(b"".join(column), dtype).reshape(len(column), *shape)
    return _numbers(column).astype(dtype, copy=False).reshape(-1, *shape)


def _numbers(column: np.ndarray) -> np.ndarray:
    return np.array(column)  # what the record's bytes show is neither aligned nor writable


def _strings(rows: list[bytes]) -> np.ndarray:
    texts = np.empty(len(rows), np.object_)
    texts[:] = [row.decode("utf-8", "surrogatepass") for row in rows]
    return texts


def _padding(space: Mapping[str, Any]) -> Any:
    """The action of the last row, which nobody took: as near to zero as the space allows, so that readers accept it."""
    stored, shape, dtype = _stored_as(space), shape_of(space), dtype_of(space)
    if stored == "text":
        return b""
    if space["type"] == "Box":
        value = np.clip(np.zeros(shape), *box_bounds(space)).astype(dtype)
    else:
        value = np.broadcast_to(np.asarray(space.get("start", 0), dtype), shape)
    if stored == "images":
        return encode_png(value)
    return value.tobytes() if stored == "bytes" else value


def _floats(values: np.ndarray | None, steps: int, missing: float) -> np.ndarray:
    return np.full(steps, missing, np.float32) if values is None else np.asarray(values, np.float32)


def _to_json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: is not plain JSON ({error})") from error
