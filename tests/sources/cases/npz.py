"""The fixtures of `npz`: the layouts in which people save arrays."""

from __future__ import annotations

import itertools

import numpy as np

from tests.fixtures import make_npz as written
from tests.sources.case import FIXTURES, Case
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

FOLDER = FIXTURES / "npz"
DISCRETE_3 = {"type": "Discrete", "n": 3, "start": 0}


def imitation() -> list[Trajectory]:
    return [
        Trajectory(
            observations=e["obs"],
            actions=e["acts"],
            rewards=e["rews"].astype(np.float32),
            terminated=e["terminal"],
            truncated=False,
            info={"id": f"imitation-{i:06d}", "source": "imitation.npz"},
        )
        for i, e in enumerate(written.imitation())
    ]


def final() -> list[Trajectory]:
    log = written.final()
    bounds = itertools.pairwise([0, *np.cumsum(written.LENGTHS).tolist()])
    return [
        Trajectory(
            observations=np.concatenate([log["observations"][a:b], log["final_observations"][i : i + 1]]),
            actions=log["actions"][a:b],
            rewards=log["rewards"][a:b, 0],
            terminated=i == 0,
            truncated=i == 1,
            action_log_prob=log["action_log_prob"][a:b].astype(np.float32),
            info={
                "id": f"final-{(7, 3, 11)[i]:06d}",
                "source": "final.npz",
                "cost": log["cost"][a:b].tolist(),
                "duration": [0.5] * (b - a),
            },
        )
        for i, (a, b) in enumerate(bounds)
    ]


def following() -> list[Trajectory]:
    log = written.following()
    # Rows, terminated, truncated, id: a gap after row 1, the end of the task at row 4, a limit at row 9.
    pieces = [
        (0, 2, False, False, "000000.0"),
        (2, 5, True, False, "000000.1"),
        (5, 10, False, True, "000001"),
    ]
    return [
        Trajectory(
            observations=np.concatenate([log["obs"][a:b], log["next_obs"][b - 1 : b]]),
            actions=log["action"][a:b],
            rewards=log["reward"][a:b].astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            info={"id": f"following-{name}", "source": "following.npz"},
        )
        for a, b, terminated, truncated, name in pieces
    ]


def nested() -> list[Trajectory]:
    return [
        Trajectory(
            observations={
                "picture": log["observations/picture"],
                "goal": log["observations/goal"].astype(np.int64),
                "words": log["observations/words"].astype(object),
            },
            actions={"keys": log["actions/keys"].astype(np.int8), "dial": log["actions/dial"]},
            rewards=None,
            terminated=name == "a",
            truncated=False,
            info={"id": f"{name}-000000", "source": f"{name}.npz"},
        )
        for name, log in written.nested().items()
    ]


def keys() -> list[Trajectory]:
    log = written.keys()
    return [
        Trajectory(
            observations=log["x"][3 * i : 3 * i + 3],
            actions=log["u"][2 * i : 2 * i + 2],
            rewards=None,
            terminated=i == 0,
            truncated=False,
            info={"id": f"keys-{i:06d}", "source": "keys.npz"},
        )
        for i in range(2)
    ]


NESTED = Spec(
    {
        "type": "Dict",
        "spaces": {
            "picture": box((9, 11, 3), np.uint8),
            "goal": {"type": "Discrete", "n": 5, "start": 0},
            "words": {"type": "Text", "max_length": 6},
        },
    },
    {
        "type": "Dict",
        "spaces": {
            "keys": {"type": "MultiBinary", "shape": [3]},
            "dial": {"type": "MultiDiscrete", "nvec": [4, 5], "start": [0, -2]},
        },
    },
)
CASES = [
    Case(
        "imitation",
        "npz",
        FOLDER / "imitation.npz",
        Spec(box((3,), np.float32), DISCRETE_3),
        imitation,
        left_out=(r"^infos: holds pickled objects; nothing is unpickled$",),
    ),
    Case(
        "final",
        "npz",
        FOLDER / "final.npz",
        Spec(box((2, 5), np.float64), box((2,), np.float32)),
        final,
        left_out=(r"^temperature: has no place in a trajectory$",),
    ),
    Case(
        "following",
        "npz",
        FOLDER / "following.npz",
        Spec(box((4,), np.float16), {"type": "MultiDiscrete", "nvec": [2, 2, 2], "start": [0, 0, 0]}),
        following,
    ),
    Case("nested", "npz", FOLDER / "nested", NESTED, nested),
    Case(
        "keys",
        "npz",
        FOLDER / "keys.npz",
        Spec(box((2,), np.float64), box((), np.float64)),
        keys,
        options={"observations": "x", "actions": "u", "terminated": "stop"},
    ),
]
