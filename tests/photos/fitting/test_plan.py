"""A plan that fits the time, on a machine of any speed, and runs that keep to it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meanteacher.core import InputError
from meanteacher.data import Fixed
from meanteacher.photos.fitting.plan import (
    WIDTHS,
    Machine,
    check_enough,
    image_size,
    make_plan,
    shorter_side,
)
from meanteacher.photos.fitting.stands import photo_training
from meanteacher.photos.fitting.training import PlanFile
from meanteacher.photos.folder.find import Photos
from meanteacher.records import FIT_METHODS, ErrorEstimate, Plan, PlanRecord, Trial


def machine(cost: float = 0.5, widths: tuple[float, ...] = WIDTHS) -> Machine:
    """One where a step takes `cost` seconds at width 1, and half of it at half the width."""
    return Machine(threads=2, seconds_per_step={width: dict.fromkeys(FIT_METHODS, cost * width) for width in widths})


def planned(minutes: float, *, on: Machine | None = None, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "spent": 0.0,
        "overhead": 0.0,
        "size": 32,
        "flip": True,
        "n_rounds": 1,
        "n_images": 1000,
        "n_labelled": 10,
    }
    return make_plan(on or machine(), minutes=minutes, **{**given, **changes})


@pytest.mark.parametrize("minutes", [5, 12, 30, 60])
@pytest.mark.parametrize("n_rounds", [1, 4])
def test_the_plan_fits_the_minutes(minutes: float, n_rounds: int) -> None:
    plan = planned(minutes, spent=20, overhead=2, n_rounds=n_rounds)
    expected = plan.steps * sum(plan.seconds_per_step[method] for method in plan.runs())
    assert plan.seconds == pytest.approx(expected)
    assert 0.7 * 60 * minutes < plan.seconds + 20 + 2 * len(plan.runs()) < 0.93 * 60 * minutes


def test_folds_are_a_run_of_each_method_and_a_last_one_on_all_labels() -> None:
    assert planned(60).runs() == ["supervised", "mean-teacher"]
    assert planned(60, n_rounds=3).runs() == ["supervised"] * 2 + ["mean-teacher"] * 3


def test_less_time_makes_a_narrower_network() -> None:
    assert [planned(minutes).width for minutes in (40, 18, 1)] == [1.0, 0.5, 0.25]


def test_a_width_that_there_was_no_time_to_measure_is_not_planned() -> None:
    assert planned(600, on=machine(widths=(0.25,))).width == 0.25


def test_however_slow_the_machine_there_is_a_plan() -> None:
    assert planned(1, on=machine(cost=1000)).steps == 1


@pytest.mark.parametrize(("n_labelled", "spared"), [(999, False), (1000, True)])
def test_many_labelled_images_are_spared_the_strong_view(n_labelled: int, spared: bool) -> None:
    recipe = photo_training(planned(18, n_labelled=n_labelled), "mean-teacher")
    strong = [role for role, view in recipe.views.items() if "RandAugment" in repr(view)]
    assert strong == ["student"]
    assert "RandAugment" not in repr(recipe.labelled_view)
    assert (recipe.labelled_view is not None) == spared


@pytest.mark.parametrize("change", [{"n_rounds": 4}, {"n_images": 500_000}, {"spent": 600.0}, {"overhead": 60.0}])
def test_what_takes_time_leaves_fewer_steps(change: dict[str, Any]) -> None:
    assert planned(60, **change).steps < planned(60).steps


def test_too_few_minutes_are_refused_with_how_many_it_takes() -> None:
    slow = machine(cost=100)
    with pytest.raises(
        InputError, match=r"1 minutes are too few for 1,000 images .* minutes \(--minutes\) to at least (\d+)"
    ) as refused:
        check_enough(slow, minutes=1, spent=5, n_images=1000)
    enough = int(str(refused.value).split("at least ")[1].rstrip("."))
    check_enough(slow, minutes=enough, spent=5, n_images=1000)


def test_the_sentence_says_what_will_happen() -> None:
    plan = planned(18)
    for part in ("2 networks", f"{plan.steps:,} steps", "width 0.5", "32x32", "2 threads", "16 min"):
        assert part in plan.sentence()
    assert "7 networks" in planned(60, n_rounds=4).sentence()


def test_the_two_recipes_see_the_same_labelled_rows_and_differ_in_the_unlabelled_ones_alone() -> None:
    ours, baseline = (photo_training(planned(18), name) for name in ("mean-teacher", "supervised"))
    for field in ("model", "normalise", "views", "optim", "steps"):
        assert getattr(ours, field) == getattr(baseline, field)
    assert isinstance(ours.batch, Fixed)
    assert isinstance(baseline.batch, Fixed)
    assert ours.batch.labelled == baseline.batch.labelled == baseline.batch.size


@pytest.mark.parametrize(("side", "expected"), [(20, 32), (32, 32), (63, 32), (64, 64), (500, 96)])
def test_images_are_brought_to_the_largest_size_that_most_of_them_fill(side: int, expected: int) -> None:
    shapes = np.array([[side, 2 * side]] * 5 + [[4000, 4000], [0, 0]])
    assert image_size(shorter_side(photos(None), shapes)) == expected
    arrays = np.zeros((2, side, 2 * side, 3), np.uint8)
    assert image_size(shorter_side(photos(arrays), None)) == expected


def photos(arrays: np.ndarray | None) -> Photos:
    return Photos(Path("photos"), ("0", "1"), np.array([0, 1]), ("a", "b"), arrays)


def test_the_size_of_files_that_cannot_be_read_is_the_smallest() -> None:
    assert image_size(shorter_side(photos(None), np.zeros((3, 2), int))) == 32


TRIAL = Trial(
    chosen="scratch",
    n=9,
    pretrained=ErrorEstimate(error=0.5, low=0.4, high=0.6, wrong=5),
    scratch=None,
    sentence="A trial chose.",
)


def record_of(plan: Plan, trial: Trial | None = None) -> PlanRecord:
    return PlanRecord(fingerprint="f", spent=3.0, device="mps", trial=trial, plan=plan)


@pytest.mark.parametrize("backbone", ["", "lite0"])
@pytest.mark.parametrize("trial", [None, TRIAL], ids=["no trial", "trial"])
def test_a_plan_is_read_back_as_it_was_written(backbone: str, trial: Trial | None, tmp_path: Path) -> None:
    plan, file = planned(18, n_labelled=1000), PlanFile(tmp_path)
    if backbone:
        plan = Plan(minutes=18, size=160, steps=300, flip=True, backbone=backbone, cut=15, n_views=8)
    file.write(record_of(plan, trial))
    assert file.read() == record_of(plan, trial)
    assert file.spent("f") == 3.0


def test_the_plan_of_other_photos_is_refused(tmp_path: Path) -> None:
    file = PlanFile(tmp_path)
    file.write(record_of(planned(18)))
    with pytest.raises(InputError, match=r"not those that .* was begun with.*overwrite=True \(--overwrite\)"):
        file.spent("g")


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "{}",
        '{"plan": {"minutes": 3}, "spent": 1}',
        '{"plan": 3, "spent": 1}',
        '{"plan": ["minutes"], "spent": 1}',
        '{"plan": null, "spent": 1}',
    ],
)
def test_a_damaged_plan_is_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(damage)
    with pytest.raises(InputError, match=r"plan\.json: .*overwrite=True \(--overwrite\)"):
        PlanFile(tmp_path).read()


@pytest.mark.parametrize("damage", ["", "{}", '{"fingerprint": "f", "spent": "soon"}', '{"fingerprint": "f"}'])
def test_a_plan_that_does_not_say_what_was_spent_is_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(damage)
    with pytest.raises(InputError, match=r"plan\.json: .*overwrite=True \(--overwrite\)"):
        PlanFile(tmp_path).spent("f")
