"""What can go wrong between a policy and its world: seeded transforms of actions, observations and rewards."""

from __future__ import annotations

from worldmodel.perturbations.composition import Perturbations, PerturbationState, Progressive
from worldmodel.perturbations.dynamics import PerturbedDynamics
from worldmodel.perturbations.mixture import MixedDynamics, mixed
from worldmodel.perturbations.transforms import (
    DelayedActions,
    DroppedActions,
    ObservationNoise,
    Perturbation,
    RewardNoise,
    StickyActions,
    StuckActuator,
    StuckSensor,
)

__all__ = [
    "Perturbation",
    "ObservationNoise",
    "RewardNoise",
    "DroppedActions",
    "StickyActions",
    "DelayedActions",
    "StuckActuator",
    "StuckSensor",
    "Perturbations",
    "PerturbationState",
    "Progressive",
    "PerturbedDynamics",
    "MixedDynamics",
    "mixed",
]
