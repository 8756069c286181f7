"""The fixtures of `lerobot`: version 2.1 with every kind of feature, version 3.0 with episodes that share a file."""

from __future__ import annotations

import numpy as np

from tests.fixtures.make_lerobot import LENGTHS, TASKS, rows
from tests.sources.case import FIXTURES, Case
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

LAST = r"^the last action of each episode, with its reward and end: what it led to is not recorded$"
STATE, ACTION = box((3,), np.float32), box((2,), np.float32)
SPACES = {
    "state": STATE,
    "gripper": box((1,), np.int64),
    "touch": box((2, 5), np.float64),
    "images.wrist": box((8, 11, 3), np.uint8),
}


def episodes(version: str) -> list[Trajectory]:
    # Ends as `rows` says: the last row's own end belongs to a transition whose outcome nobody recorded.
    ends = {"v2.1": [(True, False), (False, True), (False, False)], "v3.0": [(True, False), *[(False, False)] * 2]}
    found = []
    for i in range(len(LENGTHS)):
        columns = rows(i)
        observations = {name: columns[f"observation.{name}"] for name in SPACES}
        terminated, truncated = ends[version][i]
        found.append(
            Trajectory(
                observations=observations if version == "v2.1" else observations["state"],
                actions=columns["action"][:-1],
                rewards=columns["next.reward"][:-1, 0],
                terminated=terminated,
                truncated=truncated,
                context=TASKS[i],
                info={"id": f"episode_{i:06d}", "source": version, "task": TASKS[i]},
            )
        )
    return found


CASES = [
    Case(
        "v2.1",
        "lerobot",
        FIXTURES / "lerobot" / "v2.1",
        Spec({"type": "Dict", "spaces": SPACES}, ACTION),
        lambda: episodes("v2.1"),
        left_out=(
            r"^complementary_info\.score: is neither",
            r"^observation\.images\.top: is a video; videos are not read$",
            LAST,
        ),
    ),
    Case(
        "v3.0",
        "lerobot",
        FIXTURES / "lerobot" / "v3.0",
        Spec(STATE, ACTION),
        lambda: episodes("v3.0"),
        left_out=(LAST,),
    ),
]
