"""A machine of any speed is measured in time, and runs keep to what was planned."""

import pytest
import torch

from meanteacher.data import Dataset, Split, TrainTest
from meanteacher.experiment import TrainingSpec, step_seconds
from meanteacher.methods import MeanTeacher
from meanteacher.models import FastNetSpec
from meanteacher.photos.fitting import budget
from meanteacher.photos.fitting.budget import limited_threads, measure_machine
from meanteacher.photos.fitting.plan import WIDTHS, Machine
from meanteacher.photos.fitting.stands import photo_training
from meanteacher.records import FIT_METHODS, Plan


def width_of(recipe: TrainingSpec) -> float:
    assert isinstance(recipe.model, FastNetSpec)
    return recipe.model.width


class Simulated:
    """A machine whose clock moves only by what is simulated on it."""

    def __init__(self, cost: float, by_threads: dict[int, float] | None = None) -> None:
        self.now, self.cost, self.by_threads = 0.0, cost, by_threads or {}
        self.timed: list[tuple[str, float, int]] = []

    def clock(self) -> float:
        return self.now

    def step_seconds(self, training: TrainingSpec, threads: int, seconds: float) -> list[float]:
        semi_supervised = isinstance(training.method, MeanTeacher)
        name = "fit/mean-teacher" if semi_supervised else "fit/supervised"
        self.timed.append((name, width_of(training), threads))
        each = self.cost * width_of(training) ** 2 * (2 if semi_supervised else 1)
        each *= self.by_threads.get(threads, 1.0)
        steps = max(1, min(4, int(seconds / each)))
        self.now += steps * each
        return [3 * each, *[each] * (steps - 1)] if steps > 1 else [each]

    def measure(self, minutes: float, width: float | None = None) -> Machine:
        return measure_machine(
            minutes=minutes,
            size=32,
            n_classes=2,
            width=width,
            step_seconds_of=self.step_seconds,
            clock=self.clock,
        )


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.torch, "get_num_threads", lambda: 2)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("minutes", [1, 3, 10, 60])
@pytest.mark.parametrize("cost", [0.01, 0.3, 1.0, 8.0, 30.0])
def test_measuring_takes_a_tenth_of_the_time_and_half_a_minute_at_most(minutes: float, cost: float) -> None:
    simulated = Simulated(cost)
    found = simulated.measure(minutes)
    allowed = min(6 * minutes, 30)
    # The narrowest network of each method has to be measured, however slow; no step is begun after the time.
    slowest_step = 2 * cost * max(found.seconds_per_step) ** 2
    assert simulated.now <= allowed + slowest_step
    assert set(found.seconds_per_step[0.25]) == set(FIT_METHODS)


@pytest.mark.usefixtures("two_threads")
def test_a_fast_machine_is_measured_at_every_width_and_a_slow_one_at_the_narrowest() -> None:
    assert tuple(Simulated(0.05).measure(10).seconds_per_step) == WIDTHS
    assert tuple(Simulated(10.0).measure(10).seconds_per_step) == (0.25,)
    assert tuple(Simulated(0.05).measure(10, width=0.5).seconds_per_step) == (0.5,)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("two", "chosen"), [(0.6, 2), (3.0, 1)])
def test_the_fastest_number_of_threads_is_chosen_and_used_for_all_that_follows(two: float, chosen: int) -> None:
    simulated = Simulated(0.1, by_threads={1: 1.0, 2: two})
    assert simulated.measure(10).threads == chosen
    assert {threads for name, _, threads in simulated.timed if name.endswith("mean-teacher")} == {chosen}


@pytest.mark.usefixtures("two_threads")
def test_the_first_step_of_a_trial_does_not_count() -> None:
    assert Simulated(1.6).measure(10).seconds_per_step[0.25]["supervised"] == pytest.approx(0.1)


def test_threads_are_limited_for_a_while() -> None:
    before = torch.get_num_threads()
    with limited_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_steps_are_timed_one_by_one_and_as_many_as_there_is_time_for() -> None:
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(40) < 10, torch.arange(40) % 2, -1)
    data = TrainTest(Dataset(images, labels, ("a", "b")), Dataset(images[:10], labels[:10], ("a", "b")))
    split = Split(torch.arange(10), torch.arange(10, 40), torch.empty(0, dtype=torch.int64))
    plan = Plan(minutes=1, size=32, width=0.125, steps=5000, flip=True)
    recipe = photo_training(plan, "supervised")
    assert len(step_seconds(recipe, data=data, split=split, seconds=1e9, most=3)) == 3
    seconds = step_seconds(recipe, data=data, split=split, seconds=0.0, most=3)
    assert len(seconds) == 1
    assert seconds[0] > 0
