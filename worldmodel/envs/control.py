"""What a user may ask of the simulated world beside its dynamics: where it is not trusted, and how it is disturbed."""

from __future__ import annotations

from typing import Any, NamedTuple

from worldmodel.perturbations import Perturbations, PerturbedDynamics
from worldmodel.simulator import Dynamics, Simulator
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trust_region import CertifiedStates, Trust, TrustRule


class Control(NamedTuple):
    """The rule for steps outside the trusted region, and what disturbs the world; None for neither."""

    trust: TrustRule | None = None
    perturb: Perturbations | None = None

    def alone(self) -> Control:
        """The same for a single environment, which is a group by itself."""
        return self if self.perturb is None else self._replace(perturb=self.perturb.alone())

    def among(self, num_envs: int) -> Control:
        """The same; `ValueError` unless so many environments can be split into its groups."""
        if self.perturb is not None and num_envs % self.perturb.group:
            raise ValueError(
                f"{num_envs} environments cannot be split into groups of {self.perturb.group} that share their chances"
            )
        return self

    def dynamics(self, model: WorldModel) -> Dynamics:
        """The model's dynamics, disturbed."""
        if self.perturb is None:
            return model.dynamics
        return PerturbedDynamics(model.dynamics, self.perturb, model.dynamics.codec)

    def simulator(self, model: WorldModel, max_episode_steps: int | None) -> Simulator:
        """The model with all of it."""
        return Simulator(self.dynamics(model), max_episode_steps, self.trust)


def check_control(
    model: WorldModel,
    *,
    trust: Trust | str = Trust.IGNORE,
    trust_coverage: float = 0.99,
    trust_penalty: float | None = None,
    perturb: Any = None,
) -> Control:
    """What these arguments of an environment ask for; `ValueError` where they are outside what is allowed."""
    perturbations = None if perturb is None else Perturbations.of(perturb)
    if perturbations is not None:
        perturbations.check(model.dynamics.codec)
    return Control(trust_rule(trust, trust_coverage, trust_penalty, model), perturbations)


def trust_rule(trust: Trust | str, coverage: float, penalty: float | None, model: WorldModel) -> TrustRule | None:
    """What the simulator does about steps outside the trusted region; None where they are ignored.

    The region is where the ensemble agrees and, where the model has a certificate, the certified states.

    Args:
      trust: a `Trust`, or its name.
      coverage: share of the held-out steps that counts as inside.
      penalty: in units of reward; None: one deviation of the logs' rewards, or the size of a reward that is always the
        same.
      model: the world model.

    Raises:
      ValueError: one of them is outside what is allowed, or the model's region is not known.
    """
    trust = Trust.of(trust)
    if penalty is not None and not 0.0 <= penalty < float("inf"):
        raise ValueError(f"trust_penalty is {penalty}; a finite number, 0 or more, is needed")
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"trust_coverage is {coverage}; it must lie between 0 and 1")
    if trust is Trust.IGNORE:
        return None
    certified = None
    if model.certificate is not None:
        certified = CertifiedStates(model.certificate, model.dynamics.codec.observation)
    if model.dynamics.members < 2 and certified is None:
        raise ValueError(
            f"trust={trust.value!r} needs an ensemble or a certificate: {model.run} has one member, so nothing "
            "disagrees; `worldmodel probe RUN --corpus LOGS --certify` leaves a certificate"
        )
    if model.trust is None and certified is None:
        raise ValueError(
            f"trust={trust.value!r} needs a trust region of step {model.step}, and {model.run} has none: training with "
            "held-out episodes leaves one of its last step; dataclasses.replace(model, trust=measure_trust(model, "
            "episodes)), from worldmodel.training, has one of any"
        )
    threshold = None if model.trust is None else model.trust.threshold(coverage)
    penalty = model.dynamics.codec.reward.unit if penalty is None else penalty
    return TrustRule(trust, threshold, float(penalty), certified)
