from typing import Any

import numpy as np

from tests.fixtures import make_minari
from tests.sources.case import FIXTURES, Case
from worldmodel.spaces import space_to_json
from worldmodel.trajectory import Spec, Trajectory


def _cartpole(kind: str) -> list[Trajectory]:
    return [
        Trajectory(
            episode["observations"],
            episode["actions"],
            episode["rewards"].astype(np.float32),
            episode["terminated"],
            episode["truncated"],
            info={
                "id": f"cartpole/{kind}-v0/{index}",
                "source": f"minari:cartpole/{kind}-v0",
                "policy": "scripted",
                "seed": episode["seed"],
            },
        )
        for index, episode in enumerate(make_minari.run_cartpole(make_minari.cartpole()))
    ]


def _made_up(kind: str) -> list[Trajectory]:
    found = []
    for index, episode in enumerate(make_minari.made_up(images=kind == "hdf5")[: make_minari.EPISODES[kind]]):
        observations: dict[str, Any] = dict(episode["observations"])
        observations["mission"] = np.array(observations["mission"], object)
        found.append(
            Trajectory(
                observations,
                episode["actions"],
                episode["rewards"].astype(np.float32),
                terminated=index == 0,
                truncated=index != 0,
                info={
                    "id": f"made-up/{kind}-v1/{index}",
                    "source": f"minari:made-up/{kind}-v1",
                    "seed": 40 + index,
                    "options": {"goal": index, "map/size": 5},
                },
            )
        )
    return found


def _case(name: str, spec: Spec, episodes: Any, left_out: str) -> Case:
    path = FIXTURES / "minari" / name
    return Case(f"minari-{name}", "minari", path, spec, episodes, left_out=(left_out,))


CASES = [
    *(
        _case(
            f"cartpole/{kind}-v0",
            Spec.from_gymnasium(make_minari.cartpole()),
            lambda kind=kind: _cartpole(kind),
            r"^metadata of each episode \(rewards_max, .*\): ",
        )
        for kind in make_minari.EPISODES
    ),
    *(
        _case(
            f"made-up/{kind}-v1",
            Spec(
                space_to_json(make_minari.observation_space(images=kind == "hdf5"), "observation"),
                space_to_json(make_minari.ACTIONS, "action"),
            ),
            lambda kind=kind: _made_up(kind),
            r"^infos of each step \(distance\): ",
        )
        for kind in make_minari.EPISODES
    ),
]
