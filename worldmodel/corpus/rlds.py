"""One episode <-> one RLDS example of TensorFlow Datasets, by whole columns.

Steps follow RLDS: `T+1` rows, row `t` holds `o_t, a_t, r_t`; the last holds the final observation, with no reward and
an action that only pads. TFDS encodes and decodes step by step, which is 4 to 60 times slower than handing it the
columns it would end up with; that form is internal to TFDS, and a test compares it with what plain TFDS reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import example_serializer

from worldmodel.trajectory import Spec, Trajectory

# tf.Example stores float32 and int64 lists; every other dtype would be widened or rounded, so it is kept as bytes.
_NATIVE = (np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64))


def layout(space: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one value of a space in JSON form; Discrete is an int64 scalar."""
    if space["type"] == "Discrete":
        return (), np.dtype(np.int64)
    return tuple(space["shape"]), np.dtype(space["dtype"])


def features_of(spec: Spec) -> tfds.features.FeaturesDict:
    """The TFDS features of an episode under `spec`."""
    f = tfds.features
    return f.FeaturesDict(
        {
            "steps": f.Dataset(
                {
                    "observation": _tensor(spec.observation_space),
                    "action": _tensor(spec.action_space),
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


def _tensor(space: Mapping[str, Any]) -> tfds.features.Tensor:
    shape, dtype = layout(space)
    encoding = tfds.features.Encoding.NONE if dtype in _NATIVE else tfds.features.Encoding.BYTES
    return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)


class EpisodeCoder:
    """Serialises and reads back the episodes of one `Spec`."""

    def __init__(self, spec: Spec):
        self.features = features_of(spec)
        self._layouts = {"observation": layout(spec.observation_space), "action": layout(spec.action_space)}
        specs: Any = self.features.get_serialized_info()
        self._serializer = example_serializer.ExampleSerializer(specs)
        # A zero outside the space would be refused by the next reader, so Discrete spaces pad with their first value.
        self._no_action = spec.action_space.get("start", 0)

    def encode(self, trajectory: Trajectory, *, where: str) -> bytes:
        """One serialised `tf.Example`; `ValueError` where a value does not fit the spec's dtype or is not JSON."""
        steps = len(trajectory)
        last = np.arange(steps + 1) == steps
        discount = np.ones(steps + 1, np.float32)
        if trajectory.terminated:
            discount[-2:] = 0.0
        info = trajectory.info
        columns = {
            "observation": self._column("observation", trajectory.observations, where),
            "action": self._column("action", self._with_last(trajectory.actions, self._no_action), where),
            "reward": self._with_last(_floats(trajectory.rewards, steps, 0.0), 0.0),
            "discount": discount,
            "is_first": np.arange(steps + 1) == 0,
            "is_last": last,
            "is_terminal": last & trajectory.terminated,
            "action_log_prob": self._with_last(_floats(trajectory.action_log_prob, steps, np.nan), 0.0),
        }
        seed = info.get("seed")
        metadata = {
            "id": str(info["id"]),
            "source": str(info.get("source", "")),
            "policy": str(info.get("policy", "")),
            "seed": np.int64(seed if isinstance(seed, int) and -(2**63) <= seed < 2**63 else -1),
            "terminated": bool(trajectory.terminated),
            "truncated": bool(trajectory.truncated),
            "has_rewards": trajectory.rewards is not None,
            "context": _to_json(trajectory.context, f"{where}, context"),
            "info": _to_json(dict(info), f"{where}, info"),
        }
        return self._serializer.serialize_example({"steps": columns, "episode_metadata": metadata})

    def decode(self, example: Mapping[str, Any]) -> Trajectory:
        """The inverse of `encode`, from what a TFDS data source of these features yields for one episode."""
        getitem = example["steps"].getitem
        columns = getitem.nest(getitem.flat_example)
        metadata = example["episode_metadata"]
        log_prob = np.asarray(columns["action_log_prob"], np.float32)[:-1]
        return Trajectory(
            observations=self._values("observation", columns["observation"]),
            actions=self._values("action", columns["action"])[:-1],
            rewards=np.asarray(columns["reward"], np.float32)[:-1] if metadata["has_rewards"] else None,
            terminated=bool(metadata["terminated"]),
            truncated=bool(metadata["truncated"]),
            action_log_prob=None if np.isnan(log_prob).any() else log_prob,
            context=json.loads(metadata["context"]),
            info=json.loads(metadata["info"]),
        )

    @staticmethod
    def _with_last(values: np.ndarray, last: Any) -> np.ndarray:
        return np.concatenate([values, np.broadcast_to(np.asarray(last, values.dtype), (1, *values.shape[1:]))])

    def _column(self, name: str, values: np.ndarray, where: str) -> Any:
        _, dtype = self._layouts[name]
        values = np.asarray(values)
        if not np.can_cast(values.dtype, dtype, "same_kind"):
            raise ValueError(f"{where}: {name} has dtype {values.dtype}; the space has {dtype}")
        values = np.ascontiguousarray(values, dtype)
        return values if dtype in _NATIVE else [row.tobytes() for row in values]

    def _values(self, name: str, column: Any) -> np.ndarray:
        shape, dtype = self._layouts[name]
        if dtype in _NATIVE:
            return np.asarray(column, dtype).reshape(-1, *shape)
        return np.frombuffer(b"".join(column), dtype).reshape(-1, *shape)


def _floats(values: np.ndarray | None, steps: int, missing: float) -> np.ndarray:
    return np.full(steps, missing, np.float32) if values is None else np.asarray(values, np.float32)


def _to_json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: is not plain JSON ({error})") from error
