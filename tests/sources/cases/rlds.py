"""The fixtures of `rlds`: ArrayRecord, TFRecord, and a dataset laid out as Open X-Embodiment's are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fixtures import make_rlds as written
from tests.sources.case import FIXTURES, Case
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

PADDING = r"the last step's action and reward: are padding in RLDS"
DISCOUNT = r"steps/discount: is not kept"
END = {"terminated": False, "truncated": False}


def reach() -> list[Trajectory]:
    ends: list[dict[str, bool]] = [END | {"terminated": True}, END | {"truncated": True}, END]
    return [
        Trajectory(
            observations=steps["observation"],
            actions=steps["action"][:-1],
            rewards=steps["reward"][:-1],
            **end,
            info={
                "id": f"reach-1.0.0-train-{i:06d}",
                "seed": 100 + i,
                "agent": f"agent é{i}",
                "logged_id": i,
                "grip": written.GRIPS[i],
                "split": "train",
            },
        )
        for i, (steps, end) in enumerate(zip(_steps(written.reach()["train"]), ends, strict=True))
    ]


def arm() -> list[Trajectory]:
    found = []
    for split, episodes in written.arm().items():
        for i, steps in enumerate(_steps(episodes)):
            observation = steps["observation"]
            pose = {"joints": observation["pose"]["joints"], "ok": observation["pose"]["ok"].astype(np.int64)}
            info: dict[str, Any] = {"id": f"arm-1.0.0-{split}-{i:06d}", "split": split}
            info |= {"cost": steps["cost"][:-1].tolist(), "final_reward": float(np.float32(steps["reward"][-1]))}
            found.append(
                Trajectory(
                    observations={**observation, "pose": pose, "touch": observation["touch"].astype(np.int8)},
                    actions={key: column[:-1] for key, column in steps["action"].items()},
                    rewards=steps["reward"][:-1].astype(np.float32),
                    **END | {"truncated": True},
                    info=info,
                )
            )
    return found


def kitchen(*, final_reward: bool) -> list[Trajectory]:
    found = []
    for steps in _steps(written.kitchen()["train"]):
        rewards = steps["reward"][:-1].copy()
        if final_reward:
            rewards[-1] += steps["reward"][-1]
        observations = {key: steps["observation"][key] for key in ("image", "state", "wrist_image")}
        info = {"file_path": f"/logs/{len(rewards) + 1}.npy"} | ({} if final_reward else {"final_reward": 1.0})
        found.append(
            Trajectory(
                observations=observations,
                actions=steps["action"][:-1],
                rewards=rewards,
                **END | {"terminated": True},
                context=steps["language_instruction"][0],
                info=info,
            )
        )
    return found


def _steps(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [episode["steps"] for episode in episodes]


ARM = Spec(
    observation_space={
        "type": "Dict",
        "spaces": {
            "depth": box((2, 3), "uint16"),
            "note": {"type": "Text", "max_length": None},
            "pose": {
                "type": "Dict",
                "spaces": {"joints": box((5,), "float64"), "ok": {"type": "Discrete", "n": 2, "start": 0}},
            },
            "touch": {"type": "MultiBinary", "shape": [7]},
        },
    },
    action_space={
        "type": "Dict",
        "spaces": {
            "count": box((), "int32"),
            "grip": {"type": "Discrete", "n": 3, "start": 0},
            "move": box((2,), "float32", -10.0, 10.0),
        },
    },
)
KITCHEN = Spec(
    observation_space={
        "type": "Dict",
        "spaces": {
            "image": box((10, 12, 3), "uint8"),
            "state": box((4,), "float32"),
            "wrist_image": box((16, 16, 3), "uint8"),
        },
    },
    action_space=box((7,), "float32"),
)
EMBEDDING = r"steps/observation/natural_language_embedding: is computed from the instruction"

CASES = [
    Case(
        name="rlds-array_record",
        format="rlds",
        path=FIXTURES / "rlds" / "reach" / "1.0.0",
        spec=Spec(box((3,), "float32"), {"type": "Discrete", "n": 3, "start": 0}),
        episodes=reach,
        left_out=(DISCOUNT, PADDING),
    ),
    Case(
        name="rlds-tfrecord",
        format="rlds",
        path=FIXTURES / "rlds" / "arm",
        spec=ARM,
        episodes=arm,
        left_out=(r"steps/points: has no place here", PADDING),
    ),
    Case(
        name="rlds-open_x_embodiment",
        format="rlds",
        path=FIXTURES / "rlds" / "kitchen",
        spec=KITCHEN,
        episodes=lambda: kitchen(final_reward=False),
        left_out=(EMBEDDING, DISCOUNT, PADDING),
    ),
    Case(
        name="rlds-final_reward",
        format="rlds",
        path=FIXTURES / "rlds" / "kitchen",
        spec=KITCHEN,
        episodes=lambda: kitchen(final_reward=True),
        options={"final_reward": "add"},
        left_out=(EMBEDDING, DISCOUNT, r"the last step's action: is padding in RLDS"),
    ),
]
