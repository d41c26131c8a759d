"""Schedules: pure functions from the step to a value, among them every ramp of the paper.

All count optimiser steps from zero. A schedule is a frozen value, so it can be part of a recipe.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from meanteacher.core import Schedule, Scheduled

__all__ = [
    "Constant",
    "Cosine",
    "LinearRampDown",
    "LinearWarmUp",
    "Product",
    "SigmoidRampDown",
    "SigmoidRampUp",
    "Stairs",
    "StepChange",
    "stretched",
]


@dataclass(frozen=True)
class Constant:
    """The same value at every step.

    >>> Constant(0.999)(40_000)
    0.999
    """

    value: float

    def __call__(self, step: int) -> float:
        return self.value


def as_schedule(given: Scheduled) -> Schedule:
    """The schedule itself, or a constant schedule for a number.

    >>> as_schedule(0.99), as_schedule(Constant(0.99))
    (Constant(value=0.99), Constant(value=0.99))
    """
    return given if callable(given) else Constant(float(given))


def fix_schedules(owner: Any) -> None:
    """Replace numbers in the `Scheduled` fields of a frozen dataclass by constant schedules, in its `__post_init__`.

    A number and a constant schedule thus give equal recipes with the same fingerprint.

    >>> @dataclass(frozen=True)
    ... class Method:
    ...     decay: Scheduled
    ...     __post_init__ = fix_schedules
    >>> Method(0.99)
    Method(decay=Constant(value=0.99))
    """
    for field in fields(owner):
        if field.type == Scheduled:
            object.__setattr__(owner, field.name, as_schedule(getattr(owner, field.name)))


@dataclass(frozen=True, kw_only=True)
class StepChange:
    """One value before step `at`, another from that step on (EMA decay and beta2 on SVHN, App. B.1.2).

    >>> decay = StepChange(first=0.99, then=0.999, at=40_000)
    >>> decay(39_999), decay(40_000)
    (0.99, 0.999)
    """

    first: float
    then: float
    at: int

    def __call__(self, step: int) -> float:
        return self.first if step < self.at else self.then


@dataclass(frozen=True, kw_only=True)
class SigmoidRampUp:
    """A ramp to `value` over the first `steps`: value · exp(-5 (1 - x)²), with x from 0 to 1 (App. B.1).

    The paper says "from 0", but its formula starts at 0.0067 of the value, and so does this ramp.

    >>> ramp = SigmoidRampUp(value=100.0, steps=40_000)
    >>> round(ramp(0), 2), round(ramp(20_000), 1), ramp(40_000), ramp(50_000)
    (0.67, 28.7, 100.0, 100.0)
    """

    value: float
    steps: int

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.value
        return self.value * math.exp(-5 * (1 - step / self.steps) ** 2)


@dataclass(frozen=True, kw_only=True)
class SigmoidRampDown:
    """A ramp from `value` to `final` over the last `steps` of `total` (App. B.1.1).

    The remaining share is exp(-12.5 x²), as in the authors' code; the paper prints one minus that.

    >>> ramp = SigmoidRampDown(value=0.9, final=0.5, steps=25_000, total=150_000)
    >>> ramp(0), ramp(125_000), round(ramp(150_000), 4)
    (0.9, 0.9, 0.5)
    """

    value: float
    steps: int
    total: int
    final: float = 0.0

    def __call__(self, step: int) -> float:
        begin = self.total - self.steps
        if step <= begin:
            return self.value
        x = 1.0 if step >= self.total else (step - begin) / self.steps
        share = math.exp(-12.5 * x**2)
        return share * self.value + (1 - share) * self.final


@dataclass(frozen=True, kw_only=True)
class LinearWarmUp:
    """A linear ramp from `first` to `value` over the first `steps` (ImageNet, App. B.2.2).

    >>> rate = LinearWarmUp(first=0.0, value=0.5, steps=100)
    >>> rate(0), rate(50), rate(100)
    (0.0, 0.25, 0.5)
    """

    first: float
    value: float
    steps: int

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.value
        return self.first + (self.value - self.first) * step / self.steps


@dataclass(frozen=True, kw_only=True)
class LinearRampDown:
    """A linear ramp from `value` to zero over the last `steps` of `total` (Miyato et al. 2017, Salimans et al. 2016).

    >>> ramp = LinearRampDown(value=0.001, steps=16_000, total=48_000)
    >>> ramp(0), ramp(32_000), ramp(40_000), ramp(48_000)
    (0.001, 0.001, 0.0005, 0.0)
    """

    value: float
    steps: int
    total: int

    def __call__(self, step: int) -> float:
        begin = self.total - self.steps
        if step <= begin:
            return self.value
        return 0.0 if step >= self.total else self.value * (self.total - step) / self.steps


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine from `value` to zero at step `steps`, and zero afterwards (App. B.2).

    The paper's runs end before it reaches zero: after 180 of 210 epochs, 300 of 350, 60 of 75.

    >>> rate = Cosine(value=0.5, steps=100)
    >>> rate(0), round(rate(50), 4), rate(100)
    (0.5, 0.25, 0.0)
    """

    value: float
    steps: int

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return 0.0
        return self.value * 0.5 * (1 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True, kw_only=True)
class Stairs:
    """A schedule that is read once per epoch of `every` steps, at its start.

    The authors' PyTorch code ramps the consistency weight in this way. Laine & Aila, Miyato et al. and Salimans et al.
    ramp everything so.

    >>> weight = Stairs(schedule=SigmoidRampUp(value=100.0, steps=590), every=118)
    >>> round(weight(0), 1), round(weight(117), 1), round(weight(118), 1), round(weight(590), 1)
    (0.7, 0.7, 4.1, 100.0)
    """

    schedule: Schedule
    every: int

    def __call__(self, step: int) -> float:
        return self.schedule(step - step % self.every)


@dataclass(frozen=True)
class Product:
    """Several schedules multiplied, for instance a ramp-up and a ramp-down.

    >>> Product((Constant(0.5), Constant(3.0)))(7)
    1.5
    """

    factors: tuple[Schedule, ...]

    def __call__(self, step: int) -> float:
        return math.prod(factor(step) for factor in self.factors)


def stretched(schedule: Schedule, factor: float) -> Schedule:
    """The same values over `factor` times as many steps; a schedule of one's own stays as it is.

    >>> stretched(Product((Constant(0.5), SigmoidRampDown(value=1.0, steps=150, total=600))), 2.0)
    Product(factors=(Constant(value=0.5), SigmoidRampDown(value=1.0, steps=300, total=1200, final=0.0)))
    """

    def longer(steps: int) -> int:
        return max(1, round(steps * factor))

    match schedule:
        case StepChange():
            return replace(schedule, at=longer(schedule.at))
        case SigmoidRampUp() | LinearWarmUp() | Cosine():
            return replace(schedule, steps=longer(schedule.steps))
        case SigmoidRampDown() | LinearRampDown():
            return replace(schedule, steps=longer(schedule.steps), total=longer(schedule.total))
        case Stairs():
            return Stairs(schedule=stretched(schedule.schedule, factor), every=longer(schedule.every))
        case Product():
            return Product(tuple(stretched(each, factor) for each in schedule.factors))
    return schedule
