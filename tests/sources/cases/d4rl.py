from tests.fixtures.make_d4rl import CARTPOLE_LIMIT, PENDULUM_LIMIT, cartpole, pendulum
from tests.sources.case import FIXTURES, Case
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory


def _cartpole() -> list[Trajectory]:
    found, row = [], 0
    for episode in cartpole():
        found.append(
            Trajectory(
                episode["observations"],
                episode["actions"],
                episode["rewards"],
                episode["terminated"],
                episode["truncated"],
                episode["action_log_probs"],
                info={
                    "id": f"cartpole-medium-v2/{row}",
                    "source": "d4rl:cartpole-medium-v2.hdf5",
                    "policy": "SAC",
                },
            )
        )
        row += len(episode["rewards"])
    return found


def _pendulum() -> list[Trajectory]:
    """What the last step of each led to is not in the file, and so its end is not."""
    return [
        Trajectory(
            episode["observations"][:-1],
            episode["actions"][:-1],
            episode["rewards"][:-1],
            False,
            False,
            info={"id": f"pendulum-v0/{index * PENDULUM_LIMIT}", "source": "d4rl:pendulum-v0.hdf5"},
        )
        for index, episode in enumerate(pendulum())
    ]


CASES = [
    Case(
        name="d4rl-new",
        format="d4rl",
        path=FIXTURES / "d4rl" / "cartpole-medium-v2.hdf5",
        spec=Spec(box((4,), "float32"), {"type": "Discrete", "n": 2, "start": 0}),
        episodes=_cartpole,
        left_out=(r"^infos/\{qpos,qvel\}: ", r"^metadata/\{iteration,policy\}: "),
    ),
    Case(
        name="d4rl-new-env",
        format="d4rl",
        path=FIXTURES / "d4rl" / "cartpole-medium-v2.hdf5",
        spec=Spec(
            {
                "type": "Box",
                "shape": [4],
                "dtype": "float32",
                "low": [-4.800000190734863, None, -0.41887903213500977, None],
                "high": [4.800000190734863, None, 0.41887903213500977, None],
            },
            {"type": "Discrete", "n": 2, "start": 0},
            env_id="CartPole-v1",
            max_episode_steps=CARTPOLE_LIMIT,
        ),
        episodes=_cartpole,
        options={"env_id": "CartPole-v1", "max_episode_steps": CARTPOLE_LIMIT},
        left_out=(r"^infos/\{qpos,qvel\}: ", r"^metadata/\{iteration,policy\}: "),
    ),
    Case(
        name="d4rl-old",
        format="d4rl",
        path=FIXTURES / "d4rl" / "pendulum-v0.hdf5",
        spec=Spec(box((3,), "float32"), box((1,), "float32"), max_episode_steps=PENDULUM_LIMIT),
        episodes=_pendulum,
        options={"max_episode_steps": PENDULUM_LIMIT},
        left_out=("^the last step of each episode, and with it the episode's end: the file has no next_observations",),
    ),
]
