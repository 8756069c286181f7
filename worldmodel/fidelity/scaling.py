"""How held-out loss falls with a size (data, parameters, compute, context, environments), and what the next size gives.

Two forms, each `floor + drop * shape(x)` with a shape that falls in `x`: a power law (Kaplan et al. 2020, arXiv
2001.08361; with a floor, Hoffmann et al. 2022, arXiv 2203.15556, section 3.3) and a sigmoid in `log x` (the form that
Khatri et al. 2025, arXiv 2510.13786, fit to reward against compute), whose tail is that power law. `scaling` takes the
one that predicts larger sizes better from smaller ones. For a given exponent floor and drop are linear, so that a fit
is a search over a grid of exponents, and thousands of bootstrap fits are one product of matrices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from worldmodel.fidelity.estimates import Curve, Estimate, Values, percentile_estimate

Number: TypeAlias = float | np.ndarray
"""One, or an array of them: a law stands for one fit or for many."""

_ZOOMS, _ZOOMED = 4, 21
_REACH = 30.0
"""How far beyond the sizes the middle of a sigmoid may lie."""


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """`floor + (scale / x) ** exponent`; `scale` is the size at which the loss is one above its floor."""

    floor: Number
    scale: Number
    exponent: Number

    name: ClassVar[str] = "power law"
    parameters: ClassVar[int] = 3

    @classmethod
    def axes(cls, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """Exponents to try."""
        del x
        return (np.geomspace(0.02, 6.0, 400),)

    @staticmethod
    def shape(relative: np.ndarray, exponent: Any) -> Any:
        """What falls, of sizes over their geometric mean."""
        return relative**-exponent

    @classmethod
    def of(cls, floor: Any, drop: Any, centre: float, exponent: Any) -> PowerLaw:
        """The law of `drop * shape(x / centre, exponent)` above `floor`; numbers or arrays."""
        return cls(floor, centre * drop ** (1.0 / exponent), exponent)

    def __call__(self, x: Values | float) -> Number:
        """The loss at sizes `x`."""
        return self.floor + (self.scale / np.asarray(x, np.float64)) ** self.exponent


@dataclasses.dataclass(frozen=True)
class LogSigmoid:
    """`floor + drop / (1 + (x / middle) ** slope)`: from `floor + drop` for small `x` to `floor` for large."""

    floor: Number
    drop: Number
    middle: Number
    slope: Number

    name: ClassVar[str] = "log-sigmoid"
    parameters: ClassVar[int] = 4

    @classmethod
    def axes(cls, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """Middles, over the sizes' geometric mean, and slopes to try."""
        relative = x / _centre(x)
        return np.geomspace(relative.min() / _REACH, relative.max() * _REACH, 60), np.geomspace(0.1, 8.0, 40)

    @staticmethod
    def shape(relative: np.ndarray, middle: Any, slope: Any) -> Any:
        """What falls, of sizes over their geometric mean."""
        return 1.0 / (1.0 + (relative / middle) ** slope)

    @classmethod
    def of(cls, floor: Any, drop: Any, centre: float, middle: Any, slope: Any) -> LogSigmoid:
        """The sigmoid of `drop * shape(x / centre, middle, slope)` above `floor`; numbers or arrays."""
        return cls(floor, drop, middle * centre, slope)

    def __call__(self, x: Values | float) -> Number:
        """The loss at sizes `x`."""
        return self.floor + self.drop * self.shape(np.asarray(x, np.float64), self.middle, self.slope)


Law: TypeAlias = PowerLaw | LogSigmoid
FORMS: tuple[type[Law], ...] = (PowerLaw, LogSigmoid)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A law fitted to `N` runs, and the same law fitted to `R` resamples of them.

    Attributes:
      law: fitted to all runs.
      draws: the same form, each field an array `[R]`.
      residuals: float64 `[N]`, of the runs, expanded by `sqrt(N / (N - parameters))`.
      held_out: root mean square error of each form at sizes beyond those it was fitted to; what decided between them.
      seed: of the resamples.
    """

    law: Law
    draws: Law
    residuals: np.ndarray
    held_out: Mapping[str, float]
    seed: int

    def fields(self) -> dict[str, Estimate]:
        """Every parameter of the law with its 95% interval."""
        return {
            field.name: self._estimate(getattr(self.law, field.name), getattr(self.draws, field.name))
            for field in dataclasses.fields(self.law)
        }

    def curve(self, x: Values) -> Curve:
        """Expected loss at sizes `x` `[X]` with 95% intervals of the fit, without the noise of single runs."""
        sizes = np.asarray(x, np.float64)
        found = [self._estimate(float(self.law(at)), self.draws(at)) for at in sizes]
        mean, low, high = (np.array([getattr(e, name) for e in found]) for name in ("mean", "lo", "hi"))
        return Curve(sizes, mean, low, high, np.full(len(sizes), len(self.residuals)))

    def forecast(self, x: float, *, runs: int = 1) -> Estimate:
        """What `runs` new runs of size `x` will lose on average, with the 95% interval that this mean will lie in."""
        if runs < 1:
            raise ValueError(f"a forecast is of at least 1 run; got {runs}")
        rng = np.random.default_rng([self.seed, 1])
        expected = np.asarray(self.draws(x))
        noise = rng.choice(self.residuals, (len(expected), runs)).mean(axis=1)
        return self._estimate(float(self.law(x)), expected + noise)

    def _estimate(self, point: float, draws: Any) -> Estimate:
        free = len(self.residuals) - self.law.parameters
        return percentile_estimate(point, draws, len(self.residuals), tail_n=free + 1)


def scaling(
    x: Values,
    loss: Values,
    *,
    forms: Sequence[type[Law]] = FORMS,
    seed: int = 0,
    repetitions: int = 1_000,
) -> Scaling:
    """Fits the form that predicts larger sizes best, with a bootstrap of residuals around it.

    Residuals are taken to be of one spread over all sizes.

    Args:
      x: sizes of `N` runs, positive; several runs may share one.
      loss: held-out loss of each, `[N]`.
      forms: to choose from.
      seed: of the resamples.
      repetitions: resamples.

    Raises:
      ValueError: shapes differ, a value is not finite, a size is not positive, or there are too few sizes: of each form
        one more than it has parameters.
    """
    sizes, losses = _checked(x, loss)
    distinct = len(np.unique(sizes))
    known = [form for form in forms if distinct > form.parameters]
    if not known:
        least = min(forms, key=lambda form: form.parameters)
        raise ValueError(
            f"{distinct} sizes are too few: a {least.name} has {least.parameters} parameters, and at least "
            f"{least.parameters + 1} sizes are needed to choose and judge it"
        )
    held_out = extrapolation_errors(sizes, losses, known)
    form = min(known, key=lambda form: held_out[form.name])
    law = fit(sizes, losses, form)
    residuals = losses - law(sizes)
    residuals = (residuals - residuals.mean()) * math.sqrt(len(sizes) / (len(sizes) - form.parameters))
    again = np.random.default_rng([seed, 0]).choice(residuals, (repetitions, len(sizes)))
    return Scaling(law, _fits(sizes, law(sizes) + again, form), residuals, held_out, seed)


def extrapolation_errors(x: Values, loss: Values, forms: Sequence[type[Law]] = FORMS) -> dict[str, float]:
    """Root mean square error of every form, fitted to the sizes up to one, at the next; over the same sizes for all."""
    sizes, losses = _checked(x, loss)
    distinct = np.unique(sizes)
    first = max(form.parameters for form in forms)
    errors: dict[str, float] = {}
    for form in forms:
        apart = []
        for size in distinct[first:]:
            law = fit(sizes[sizes < size], losses[sizes < size], form)
            apart.append(losses[sizes == size].mean() - float(law(size)))
        errors[form.name] = float(np.sqrt(np.mean(np.square(apart)))) if apart else math.inf
    return errors


def fit(x: Values, loss: Values, form: type[Law]) -> Law:
    """The law of this form with the least squared error; `ValueError` as `scaling`, for as many sizes as parameters."""
    sizes, losses = _checked(x, loss)
    distinct = len(np.unique(sizes))
    if distinct < form.parameters:
        raise ValueError(f"{distinct} sizes are too few: a {form.name} has {form.parameters} parameters")
    axes = form.axes(sizes)
    for _ in range(_ZOOMS):
        best = _best(sizes, losses[None], form, axes)[0]
        places = np.unravel_index(int(best[0]), [len(axis) for axis in axes])
        axes = tuple(_around(axis, int(place)) for axis, place in zip(axes, places, strict=True))
    fields = (field.item() for field in _solved(sizes, losses[None], form, axes))
    floor, drop, *shape = fields
    return form.of(floor, drop, _centre(sizes), *shape)


def _fits(sizes: np.ndarray, losses: np.ndarray, form: type[Law]) -> Law:
    """The laws of `losses` `[R, N]`, each field an array `[R]`."""
    floor, drop, *shape = _solved(sizes, losses, form, form.axes(sizes))
    return form.of(floor, drop, _centre(sizes), *shape)


def _solved(sizes: np.ndarray, losses: np.ndarray, form: type[Law], axes: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Floor, drop and the parameters of the shape that are best on the grid, each `[R]`."""
    best, drop, mean = _best(sizes, losses, form, axes)
    places = np.unravel_index(best, [len(axis) for axis in axes])
    return [losses.mean(axis=1) - drop * mean, drop, *(axis[at] for axis, at in zip(axes, places, strict=True))]


def _best(
    sizes: np.ndarray, losses: np.ndarray, form: type[Law], axes: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `losses` `[R, N]` the best place on the flattened grid, the drop there, and the mean of its shape, `[R]`."""
    grid = [axis.reshape(-1, 1) for axis in np.meshgrid(*axes, indexing="ij")]
    shapes = form.shape(sizes / _centre(sizes), *grid)
    means = shapes.mean(axis=1)
    shapes = shapes - means[:, None]
    spread = np.square(shapes).sum(axis=1)
    along = (losses - losses.mean(axis=1, keepdims=True)) @ shapes.T
    drops = np.maximum(np.divide(along, spread, out=np.zeros_like(along), where=spread > 1e-12), 0.0)
    best = np.argmax(drops * (2.0 * along - drops * spread), axis=1)
    return best, drops[np.arange(len(losses)), best], means[best]


def _around(axis: np.ndarray, place: int) -> np.ndarray:
    return np.geomspace(axis[max(place - 1, 0)], axis[min(place + 1, len(axis) - 1)], _ZOOMED)


def _centre(sizes: np.ndarray) -> float:
    return float(np.exp(np.log(sizes).mean()))


def _checked(x: Values, loss: Values) -> tuple[np.ndarray, np.ndarray]:
    sizes, losses = np.asarray(x, np.float64), np.asarray(loss, np.float64)
    if sizes.ndim != 1 or sizes.shape != losses.shape:
        raise ValueError(f"sizes and losses must both be [N]; got {list(sizes.shape)} and {list(losses.shape)}")
    for name, values, good in (
        ("size", sizes, np.isfinite(sizes) & (sizes > 0)),
        ("loss", losses, np.isfinite(losses)),
    ):
        if not good.all():
            place = int(np.argmin(good))
            wanted = "sizes are finite and positive" if name == "size" else "losses are finite"
            raise ValueError(f"{name} {place} of {len(values)} is {values[place]}; {wanted}")
    return sizes, losses
