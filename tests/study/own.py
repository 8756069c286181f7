"""A corridor with a reward at its end: somebody's own environment, and its study."""

import gymnasium

from worldmodel.study import Complexity, Diversity, Fidelity, Grid, GymnasiumTask, Knob, Study


class Corridor(gymnasium.Env):
    """Right leads to the end, but for slips."""

    def __init__(self, length=5, slip=0.1):
        self.length, self.slip = length, slip
        self.observation_space = gymnasium.spaces.Discrete(length)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(self.length - 1)), 0
        return self.place, {}

    def step(self, action):
        right = bool(action) != (self.np_random.random() < self.slip)
        self.place = min(max(self.place + (1 if right else -1), 0), self.length - 1)
        self.time += 1
        end = self.place == self.length - 1
        return self.place, float(end) - 0.02, end, self.time >= 4 * self.length, {}


KNOBS = {"length": Knob(3, 50, "cells", "the corridor is longer", whole=True)}
TASK = GymnasiumTask(Corridor, KNOBS, steps=400, real_steps=100, episodes=8)
STUDY = Study(
    "corridor",
    (
        Grid(
            TASK,
            Complexity.of(TASK, "length", (4, 6)),
            (Fidelity.of("dynamics_noise", (0.0, 0.5, 1.0)),),
            Diversity((1, 4)),
            seeds=2,
        ),
    ),
)
