import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meanteacher.core import Schedule
from meanteacher.schedules import (
    Constant,
    Cosine,
    LinearRampDown,
    LinearWarmUp,
    Product,
    SigmoidRampDown,
    SigmoidRampUp,
    Stairs,
    StepChange,
)

E5, E12 = math.exp(-5), math.exp(-12.5)


@pytest.mark.parametrize(
    ("schedule", "step", "value"),
    [
        (Constant(0.3), 0, 0.3),
        (Constant(0.3), 10**6, 0.3),
        # EMA decay and beta2 on SVHN: 0.99 during the first 40000 steps, 0.999 afterwards (App. B.1.2).
        (StepChange(first=0.99, then=0.999, at=40_000), 0, 0.99),
        (StepChange(first=0.99, then=0.999, at=40_000), 39_999, 0.99),
        (StepChange(first=0.99, then=0.999, at=40_000), 40_000, 0.999),
        (StepChange(first=0.99, then=0.999, at=40_000), 180_000, 0.999),
        # Learning rate and consistency weight: e^(-5 (1 - x)²) over 40000 steps (App. B.1).
        (SigmoidRampUp(value=1.0, steps=40_000), 0, E5),
        (SigmoidRampUp(value=1.0, steps=40_000), 10_000, math.exp(-5 * 0.75**2)),
        (SigmoidRampUp(value=1.0, steps=40_000), 20_000, math.exp(-1.25)),
        (SigmoidRampUp(value=100.0, steps=40_000), 39_999, 100 * math.exp(-5 / 40_000**2)),
        (SigmoidRampUp(value=100.0, steps=40_000), 40_000, 100.0),
        (SigmoidRampUp(value=100.0, steps=40_000), 150_000, 100.0),
        # Learning rate to 0 and beta1 from 0.9 to 0.5 over the last 25000 of 150000 steps (App. B.1.1).
        (SigmoidRampDown(value=0.003, steps=25_000, total=150_000), 0, 0.003),
        (SigmoidRampDown(value=0.003, steps=25_000, total=150_000), 125_000, 0.003),
        (SigmoidRampDown(value=0.003, steps=25_000, total=150_000), 137_500, 0.003 * math.exp(-12.5 / 4)),
        (SigmoidRampDown(value=0.003, steps=25_000, total=150_000), 150_000, 0.003 * E12),
        (SigmoidRampDown(value=0.003, steps=25_000, total=150_000), 160_000, 0.003 * E12),
        (SigmoidRampDown(value=0.9, final=0.5, steps=25_000, total=150_000), 125_000, 0.9),
        (
            SigmoidRampDown(value=0.9, final=0.5, steps=25_000, total=150_000),
            137_500,
            0.5 + 0.4 * math.exp(-12.5 / 4),
        ),
        (SigmoidRampDown(value=0.9, final=0.5, steps=25_000, total=150_000), 150_000, 0.5 + 0.4 * E12),
        (SigmoidRampDown(value=0.9, final=0.5, steps=100, total=100), 0, 0.9),
        # ImageNet's learning rate: 0.1 to 0.25 (App. B.2.2).
        (LinearWarmUp(first=0.1, value=0.25, steps=10), 0, 0.1),
        (LinearWarmUp(first=0.1, value=0.25, steps=10), 4, 0.16),
        (LinearWarmUp(first=0.1, value=0.25, steps=10), 10, 0.25),
        (LinearWarmUp(first=0.1, value=0.25, steps=10), 99, 0.25),
        (LinearWarmUp(first=0.4, value=0.2, steps=4), 1, 0.35),
        # VAT's on SVHN: linear over the last 40 of 120 epochs of 400 steps.
        (LinearRampDown(value=0.001, steps=16_000, total=48_000), 0, 0.001),
        (LinearRampDown(value=0.001, steps=16_000, total=48_000), 32_000, 0.001),
        (LinearRampDown(value=0.001, steps=16_000, total=48_000), 44_000, 0.00025),
        (LinearRampDown(value=0.001, steps=16_000, total=48_000), 48_000, 0.0),
        (LinearRampDown(value=0.001, steps=16_000, total=48_000), 50_000, 0.0),
        # Half a cosine that would reach zero at epoch 210; the run stops at 180 (App. B.2.1).
        (Cosine(value=0.2, steps=210), 0, 0.2),
        (Cosine(value=0.2, steps=210), 70, 0.15),
        (Cosine(value=0.2, steps=210), 105, 0.1),
        (Cosine(value=0.2, steps=210), 180, 0.1 * (1 + math.cos(math.pi * 180 / 210))),
        (Cosine(value=0.2, steps=210), 210, 0.0),
        (Cosine(value=0.2, steps=210), 500, 0.0),
        # The authors' weight in the first epochs: 0.7, 4.1, 16.5, 44.9, 81.9, 100.
        (Stairs(schedule=SigmoidRampUp(value=100.0, steps=590), every=118), 0, 100 * E5),
        (Stairs(schedule=SigmoidRampUp(value=100.0, steps=590), every=118), 117, 100 * E5),
        (Stairs(schedule=SigmoidRampUp(value=100.0, steps=590), every=118), 118, 100 * math.exp(-5 * 0.8**2)),
        (Stairs(schedule=SigmoidRampUp(value=100.0, steps=590), every=118), 589, 100 * math.exp(-5 * 0.2**2)),
        (Stairs(schedule=SigmoidRampUp(value=100.0, steps=590), every=118), 590, 100.0),
        (Product((Constant(2.0), StepChange(first=3.0, then=5.0, at=1), Constant(0.5))), 0, 3.0),
        (Product((Constant(2.0), StepChange(first=3.0, then=5.0, at=1), Constant(0.5))), 1, 5.0),
        (Product(()), 3, 1.0),
    ],
)
def test_a_schedule_has_its_closed_form_value(schedule: Schedule, step: int, value: float) -> None:
    assert schedule(step) == pytest.approx(value, rel=1e-12, abs=1e-15)


def test_the_ramp_up_starts_at_0_0067_of_its_value() -> None:
    assert SigmoidRampUp(value=1.0, steps=40_000)(0) == pytest.approx(0.0067, abs=5e-5)


def test_beta1_goes_from_0_9_to_0_5() -> None:
    beta1 = SigmoidRampDown(value=0.9, final=0.5, steps=25_000, total=150_000)
    assert beta1(0) == 0.9
    assert beta1(150_000) == pytest.approx(0.5, abs=1e-5)


def test_the_ramp_down_is_a_share_that_falls_not_one_that_rises() -> None:
    # The paper prints one minus the share; taken at its word, the ramp would begin with a jump to zero.
    ramp = SigmoidRampDown(value=1.0, steps=100, total=100)
    assert ramp(1) > 0.99
    assert ramp(99) < 0.01


@pytest.mark.parametrize(
    ("schedule", "before_and_after"),
    [
        (SigmoidRampUp(value=3.0, steps=0), (3.0, 3.0, 3.0)),
        (LinearWarmUp(first=1.0, value=3.0, steps=0), (3.0, 3.0, 3.0)),
        (Cosine(value=3.0, steps=0), (0.0, 0.0, 0.0)),
        (SigmoidRampDown(value=3.0, steps=0, total=5), (3.0, 3.0, 3.0 * E12)),
        (LinearRampDown(value=3.0, steps=0, total=5), (3.0, 3.0, 0.0)),
        (SigmoidRampDown(value=0.9, final=0.5, steps=0, total=5), (0.9, 0.9, 0.5 + 0.4 * E12)),
        (StepChange(first=1.0, then=2.0, at=0), (2.0, 2.0, 2.0)),
    ],
    ids=repr,
)
def test_a_ramp_without_steps_does_not_divide_by_zero(
    schedule: Schedule, before_and_after: tuple[float, float, float]
) -> None:
    assert tuple(schedule(step) for step in (0, 5, 6)) == pytest.approx(before_and_after)


STEPS = st.integers(0, 60)


@settings(max_examples=60, deadline=None, database=None)
@given(st.floats(0.01, 1000), st.integers(0, 40), STEPS)
def test_ramp_ups_never_fall_and_ramp_downs_never_rise(value: float, steps: int, step: int) -> None:
    rising = [SigmoidRampUp(value=value, steps=steps), LinearWarmUp(first=value / 3, value=value, steps=steps)]
    falling = [
        SigmoidRampDown(value=value, steps=steps, total=50),
        SigmoidRampDown(value=value, final=value / 2, steps=steps, total=50),
        LinearRampDown(value=value, steps=steps, total=50),
        Cosine(value=value, steps=steps),
    ]
    tiny = 1e-12 * value
    for schedule in rising:
        assert 0 <= schedule(step) <= schedule(step + 1) + tiny <= value + 2 * tiny
    for schedule in falling:
        assert value + tiny >= schedule(step) >= schedule(step + 1) - tiny
        assert schedule(step) >= 0


@settings(max_examples=30, deadline=None, database=None)
@given(st.lists(st.floats(-5, 5), max_size=4), STEPS)
def test_a_product_is_the_product_of_its_factors(values: list[float], step: int) -> None:
    expected = 1.0
    for value in values:
        expected *= value
    assert Product(tuple(Constant(value) for value in values))(step) == pytest.approx(expected)


def test_schedules_are_values_that_compare_and_print() -> None:
    ramp = SigmoidRampUp(value=1.0, steps=5)
    assert ramp == SigmoidRampUp(value=1.0, steps=5)
    assert hash(ramp) == hash(SigmoidRampUp(value=1.0, steps=5))
    assert repr(ramp) == "SigmoidRampUp(value=1.0, steps=5)"
    with pytest.raises(AttributeError):
        ramp.steps = 6
