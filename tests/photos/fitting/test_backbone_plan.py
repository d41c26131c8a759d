"""A plan for the last layers of a pretrained network that fits the time and the disk."""

from typing import Any

import pytest

from meanteacher.core import InputError
from meanteacher.devices import CPU
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.features.extraction import MAX_VIEWS, feature_views
from meanteacher.photos.fitting import budget
from meanteacher.photos.fitting.plan import (
    SIZES,
    BackboneSpeed,
    backbone_size,
    check_enough,
    make_backbone_plan,
)
from meanteacher.records import FIT_METHODS, Plan, runs_of

TAIL, HEAD = 16, 19
N = 4000


def speed(images_per_second: float = 200.0, *, cuts: tuple[int, ...] = (HEAD, TAIL), **changes: Any) -> BackboneSpeed:
    """Of a machine like a laptop: a step on the classifier takes 10 ms, one on more layers 300 ms."""
    per_step = {HEAD: 0.01, TAIL: 0.3}
    given = {
        "threads": dict.fromkeys(cuts, 2),
        "size": None,
        "head_cut": HEAD,
        "images_per_second": images_per_second,
        "seconds_per_step": {cut: dict.fromkeys(FIT_METHODS, per_step[cut]) for cut in cuts},
        "bytes_per_view": {cut: {HEAD: 2560, TAIL: 9600}[cut] for cut in cuts},
    }
    return BackboneSpeed(**{**given, **changes})


def planned(minutes: float, *, on: BackboneSpeed | None = None, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "backbone": "lite0",
        "seconds": 60 * minutes,
        "overhead": 0.5,
        "size": 160,
        "flip": True,
        "n_rounds": 1,
        "n_images": N,
        "room": 8 << 30,
    }
    return make_backbone_plan(on or speed(), minutes=minutes, **{**given, **changes})


def sized(minutes: float, *, side: int = 500, on: BackboneSpeed | None = None, n_images: int = N) -> int:
    return backbone_size(on or speed(), seconds=60 * minutes, n_images=n_images, n_runs=2, side=side)


# --- the size of photos -----------------------------------------------------------------------------------------------


def test_more_minutes_make_larger_images_and_more_photos_smaller_ones() -> None:
    sizes = [sized(minutes / 4) for minutes in range(1, 60)]
    assert sizes == sorted(sizes)
    assert set(sizes) == set(SIZES)
    assert sized(6, n_images=4 * N) < sized(6)


@pytest.mark.parametrize(("side", "expected"), [(28, 160), (48, 160), (49, 224), (1000, 224)])
def test_small_photos_are_enlarged_less(side: int, expected: int) -> None:
    assert sized(1000, side=side) == expected


def test_the_only_size_of_a_network_is_kept() -> None:
    for minutes in (1, 1000):
        assert sized(minutes, on=speed(size=256), side=40) == 256


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [3, 6, 15, 60])
@pytest.mark.parametrize("n_rounds", [1, 4])
@pytest.mark.parametrize("cuts", [(HEAD,), (HEAD, TAIL)])
def test_the_plan_fits_the_seconds(minutes: float, n_rounds: int, cuts: tuple[int, ...]) -> None:
    on = speed(cuts=cuts)
    size = sized(minutes, on=on)
    plan = planned(minutes, on=on, size=size, n_rounds=n_rounds)
    area = (size / 160) ** 2
    per_view = N / 200 * area
    runs = runs_of(n_rounds)
    training = plan.steps * sum(plan.seconds_per_step[method] for method in runs)
    n_weak = feature_views(size, plan.n_views, flip=True)[1]
    assert plan.seconds == pytest.approx((n_weak + 1.4 * (plan.n_views - n_weak)) * per_view + training)
    # Behind the cut a step takes longer for larger photos, and on the classifier alone it does not.
    assert plan.seconds_per_step["supervised"] == pytest.approx(0.01 if plan.cut == HEAD else 0.3 * area)
    # With the predictions at the end and what a run takes besides its steps.
    assert plan.seconds + per_view + 0.5 * len(runs) < 0.93 * 60 * minutes
    assert plan.seconds_per_image == pytest.approx(per_view / N)
    assert (plan.backbone, plan.size, plan.flip, plan.n_rounds, plan.threads) == ("lite0", size, True, n_rounds, 2)
    assert plan.steps >= 80


def test_more_minutes_make_more_views_more_steps_and_a_deeper_cut() -> None:
    plans = [planned(minutes) for minutes in range(1, 30)]
    cuts = [plan.cut for plan in plans]
    assert cuts == sorted(cuts, reverse=True)
    for cut in (HEAD, TAIL):
        views, steps = zip(*((plan.n_views, plan.steps) for plan in plans if plan.cut == cut), strict=True)
        assert list(views) == sorted(views)
        assert list(steps) == sorted(steps)
        assert views[0] < views[-1]
        assert steps[0] < steps[-1]
    assert plans[-1].n_views == MAX_VIEWS


def test_a_cut_that_there_was_no_time_to_measure_is_not_planned() -> None:
    assert planned(600, on=speed(cuts=(HEAD,))).cut == HEAD


def test_too_few_steps_or_views_are_no_reason_for_a_deeper_cut() -> None:
    slow_steps = speed(seconds_per_step={HEAD: dict.fromkeys(FIT_METHODS, 0.01), TAIL: dict.fromkeys(FIT_METHODS, 9.0)})
    assert planned(20, on=slow_steps).cut == HEAD
    assert planned(20, on=speed(images_per_second=20.0)).cut == HEAD


def test_room_on_the_disk_limits_the_views() -> None:
    of_head = [planned(20, on=speed(cuts=(HEAD,)), room=room * N * 2560).n_views for room in (0, 1, 3, 100)]
    assert of_head == [1, 1, 3, MAX_VIEWS]
    # Features before the last layers grow with the area of an image; four views of them have to fit.
    assert planned(60, room=4 * N * 9600).cut == TAIL
    assert planned(60, room=4 * N * 9600).n_views == 4
    assert planned(60, room=4 * N * 9600, size=192).cut == HEAD
    assert planned(60, room=4 * N * 9600, size=192).n_views == MAX_VIEWS


@pytest.mark.parametrize("cut", [None, TAIL])
def test_the_cut_of_an_earlier_model_is_the_one_measured(cut: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = find_backbone("lite0")
    monkeypatch.setattr(budget, "_TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(budget, "computing", lambda network, *given: lambda batch: batch)
    monkeypatch.setattr(budget, "trial_seconds", lambda *given, **options: dict.fromkeys(FIT_METHODS, 0.1))
    found = budget.measure_backbone(backbone, minutes=1, n_classes=3, device=CPU, cut=cut)
    cuts = {HEAD if cut is None else TAIL}
    assert set(found.seconds_per_step) == set(found.threads) == set(found.bytes_per_view) == cuts
    assert set(found.bytes_per_view.values()) == {2 * 1280 if cut is None else 2 * 192 * 5 * 5}
    assert planned(1, on=found).cut == (cut or HEAD)


def test_however_slow_the_machine_there_is_a_plan() -> None:
    plan = planned(1, on=speed(images_per_second=0.01))
    assert (plan.n_views, plan.steps) == (1, 1)
    assert sized(1, on=speed(images_per_second=0.01)) == 96


def test_more_photos_take_more_steps_on_the_classifier_up_to_a_limit() -> None:
    on = speed(images_per_second=1e6, cuts=(HEAD,))
    steps = [planned(60, on=on, n_images=n).steps for n in (50, 4000, 10_000, 100_000)]
    assert steps == [200, 520, 1200, 1200]


def test_the_sentence_names_the_network_and_the_copies() -> None:
    plan = planned(6)
    for part in ("pretrained network lite0", f"{plan.n_views} copies of each image", "160x160", "2 networks"):
        assert part in plan.sentence()


# --- too few minutes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 256])
def test_minutes_in_which_no_photo_can_be_looked_at_twice_are_refused(size: int | None) -> None:
    slow = speed(images_per_second=5.0, size=size)
    with pytest.raises(InputError, match=r"1 minutes are too few for 4,000 images .* to at least (\d+)") as refused:
        check_enough(slow, minutes=1, spent=5, n_images=N)
    enough = int(str(refused.value).split("at least ")[1].rstrip("."))
    check_enough(slow, minutes=enough, spent=5, n_images=N)
    check_enough(speed(size=size), minutes=1, spent=5, n_images=1000)
    # A network with one size alone looks at images of that size.
    least = 2 * N / 5 * (1 if size else (96 / 160) ** 2)
    check_enough(slow, minutes=(least + 6) / 60, spent=5, n_images=N)
    with pytest.raises(InputError):
        check_enough(slow, minutes=(least + 4) / 60, spent=5, n_images=N)
