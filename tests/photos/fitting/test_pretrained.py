"""What a fit with pretrained networks computes next, how long that is expected to take, and which model it keeps."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from backbone_support import small_networks
from meanteacher.core import UNLABELLED, InputError, MissingBackboneError
from meanteacher.models import LitePairSpec, WideResNetSpec
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.photos.fitting import pretrained as module
from meanteacher.photos.fitting.estimate import OutOfFold
from meanteacher.photos.fitting.heads import Head
from meanteacher.photos.fitting.pretrained import (
    Pretrained,
    choose_backbones,
    is_worse,
    labels_alone,
    pretrained_size,
    resumed_backbones,
)
from meanteacher.train import Callback

LABELS = np.array([1, -1, 0, -1, 1, -1, 2, -1, 1, 0, 2])
"""Photo 3 cannot be read."""
N, D = len(LABELS), 4


class Timed:
    """The time of a fit whose pieces took these seconds; what does not fit, and what was asked and noted."""

    def __init__(self, **took: float) -> None:
        self.pieces = {name.replace("_", " "): seconds for name, seconds in took.items()}
        self.record = SimpleNamespace(flip=False, minutes=10.0)
        self.ends = 5000.0
        self.callback = Callback()
        self.asked: list[tuple[float, ...]] = []
        self.done: list[str] = []
        self.most = float("inf")

    def took(self, name: str) -> float:
        return self.pieces.get(name, 0.0)

    def fits(self, *seconds: float) -> bool:
        self.asked.append(seconds)
        return sum(seconds) <= self.most

    def piece(self, name: str) -> "Timed":
        self.done.append(name)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> tuple[Backbone, ...]:
    small_networks(monkeypatch)
    return tuple(map(find_backbone, ("lite0", "lite2")))


class Seen(Pretrained):
    """Gives the features `made` of a network and a view, as far as they are reached."""

    __slots__ = ("calls", "reached")

    def _extracted(self, network: Backbone, view: str, order: np.ndarray, *, ends: float) -> np.ndarray:
        self.calls.append((network.name, view, order.tolist(), ends))
        values = np.full((N, D), np.nan, np.float16)
        rows = order[: self.reached.get((network.name, view), N)]
        values[rows] = made(network.name, view)[rows]
        return values


def made(network: str, view: str) -> np.ndarray:
    return np.random.default_rng(sum(f"{network} {view}".encode())).normal(size=(N, D)).astype(np.float16)


def start(networks: tuple[Backbone, ...], work: Timed, **reached: int) -> Seen:
    grouped: list[np.ndarray] = []
    data: Any = SimpleNamespace(
        labels=LABELS,
        labelled=np.flatnonzero(LABELS != UNLABELLED),
        usable=np.setdiff1d(np.arange(N), [3]),
        left_out={3: "truncated"},
        photos=SimpleNamespace(class_names=("a", "b", "c"), __len__=lambda: N),
        groups=lambda features: grouped.append(features) or 100 + np.arange(N),
        grouped=grouped,
        size=32,
    )
    data.photos = type("Some", (), {"class_names": ("a", "b", "c"), "__len__": lambda self: N})()
    found = Seen(data=data, backbones=networks, work=work)
    found.calls, found.reached = [], {tuple(name.split("_")): n for name, n in reached.items()}
    return found


# --- the expected time ------------------------------------------------------------------------------------------------


def test_a_view_is_expected_to_take_the_longest_time_of_its_network(networks: tuple[Backbone, ...]):
    first, second = networks
    learner = start(networks, Timed(lite0_plain=10, lite0_crop=12, lite2_plain=30))
    strong = [view for view in learner._views() if view.startswith("strong")]
    assert learner._expected(first, "plain") == 10
    assert learner._expected(second, "crop") == 30
    assert learner._expected(first, strong[0]) == pytest.approx(1.4 * 12)
    learner.work.pieces[f"lite0 {strong[0]}"] = 16.0
    assert learner._expected(first, strong[0]) == 16
    assert learner._expected(first, strong[1]) == 16, "the time of a strong view is known"
    assert learner._expected(second, strong[1]) == pytest.approx(1.4 * 30)


def test_the_second_network_is_expected_to_take_two_and_a_half_times_as_long_as_the_first(
    networks: tuple[Backbone, ...],
):
    learner = start(networks, Timed(lite0_plain=10))
    assert learner._expected(networks[1], "plain") == 25
    assert learner._expected(networks[1], learner._views()[-1]) == pytest.approx(35)


def test_a_head_is_expected_to_take_as_long_as_the_last_one_in_proportion_to_the_networks(
    networks: tuple[Backbone, ...],
):
    learner = start(networks, Timed(head=6, tests=20))
    assert learner._head_seconds(2) == (12, 40)
    learner.n_taught = 2
    assert learner._head_seconds(2) == (6, 20)
    assert learner._head_seconds(1) == (3, 10)


# --- features ---------------------------------------------------------------------------------------------------------


def test_labelled_photos_are_looked_at_first_and_all_until_seven_tenths_of_the_minutes(networks: tuple[Backbone, ...]):
    learner = start(networks, Timed(), lite0_plain=9)
    learner._first_view()
    ((name, view, order, ends),) = learner.calls
    assert (name, view, learner.work.done) == ("lite0", "plain", ["lite0 plain"])
    assert order[:7] == [0, 2, 4, 6, 8, 9, 10]
    assert sorted(order[7:]) == [1, 5, 7], "one cannot be read"
    assert ends == pytest.approx(5000 - 0.3 * 600)
    assert learner.rows.tolist() == sorted(order[:9])
    assert learner.groups.tolist() == [100 + k for k in learner.rows]
    (known,) = learner.data.grouped
    np.testing.assert_array_equal(known[learner.rows], made("lite0", "plain")[learner.rows])
    assert not known[np.setdiff1d(np.arange(N), learner.rows)].any(), "not a number is no feature to compare"


def test_a_fit_that_does_not_reach_its_labels_says_which_minutes_would_do(networks: tuple[Backbone, ...]):
    work = Timed(reading=30)
    work.spent = lambda: 100.0
    with pytest.raises(InputError, match=r"10\) is too short for 7 labelled images .* to at least 11\."):
        start(networks, work, lite0_plain=6)._first_view()
    # 30 seconds of reading, and 570 for 4 of the labels, of which there are 7: (30 + 997.5) / 0.7 seconds.
    work.spent = lambda: 600.0
    with pytest.raises(InputError, match=r"to at least 25\."):
        start(networks, work, lite0_plain=4)._first_view()
    with pytest.raises(InputError, match="none of the images was reached"):
        start(networks, work, lite0_plain=0)._first_view()


def test_the_second_network_comes_first_and_then_each_view_by_both(networks: tuple[Backbone, ...]):
    learner = start(networks, Timed(head=6, tests=20, results=3, lite0_plain=10))
    learner._first_view()
    learner.calls.clear()
    learner.n_taught = 1
    assert learner._more_features()
    assert [call[:2] for call in learner.calls[:3]] == [("lite2", "plain"), ("lite0", "crop"), ("lite2", "crop")]
    assert len(learner.calls) == 1 + 2 * 4, "a mirrored photo may be of another class"
    for _, _, rows, ends in learner.calls:
        assert rows == learner.rows.tolist()
        assert ends == 5000 - (12 + 40 + 3)
    assert learner.work.asked[0] == (25, 55)
    assert learner.work.asked[1] == (10, 25, 55), "both views, then the head of two networks and the results"
    assert learner._used() == (list(networks), list(learner._views()))
    stacked = learner._stacked()
    assert stacked.shape == (5, len(learner.rows), 2 * D)
    both = np.concatenate([made("lite0", "crop"), made("lite2", "crop")], axis=1)
    np.testing.assert_array_equal(stacked[1], both[learner.rows])


def test_without_time_for_the_second_network_the_first_gets_its_views_alone(networks: tuple[Backbone, ...]):
    learner = start(networks, Timed(lite0_plain=10))
    learner.work.most = 13.9
    learner._first_view()
    assert learner._more_features()
    assert set(learner.features) == {("lite0", "plain"), ("lite0", "crop")}, "a strong one would take 14 seconds"
    assert learner._used() == ([networks[0]], ["plain", "crop"])


def test_a_view_that_does_not_reach_all_photos_is_not_used_and_the_last(networks: tuple[Backbone, ...]):
    learner = start(networks, Timed(lite0_plain=10), lite2_plain=9, lite0_crop=9)
    learner._first_view()
    assert not learner._more_features()
    assert [call[:2] for call in learner.calls] == [("lite0", "plain"), ("lite2", "plain"), ("lite0", "crop")]
    assert learner._used() == ([networks[0]], ["plain"])


# --- heads ------------------------------------------------------------------------------------------------------------


def outcome(*wrong: int) -> OutOfFold:
    """Answers for 40 photos of class 0, wrong on these."""
    logits = np.zeros((40, 2), np.float32)
    logits[:, 0] = 1
    logits[list(wrong)] = 0, 1
    everyone = np.arange(40)
    return OutOfFold(everyone, np.zeros(40, np.int64), logits, 1.0, everyone)


def test_a_model_is_worse_if_it_is_clearly_wrong_more_often_on_the_same_photos():
    assert is_worse(outcome(*range(12)), outcome(0))
    assert not is_worse(outcome(*range(2)), outcome(0)), "that may be chance"
    assert not is_worse(outcome(0), outcome(*range(12)))
    empty = np.zeros(0, np.int64)
    nothing = OutOfFold(empty, empty, np.zeros((0, 2), np.float32), 1.0, empty)
    assert not is_worse(nothing, nothing)


@pytest.fixture
def taught(networks: tuple[Backbone, ...], monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Has looked at the photos, and tests heads in no time: both recipes are equally good."""
    learner = start(networks, Timed(head=6, tests=20, results=3, lite0_plain=10), lite0_plain=9)
    learner._first_view()
    monkeypatch.setattr(
        module, "fit_head", lambda features, labels, n, *, seed: labels_alone(features, labels, n, seed=0)
    )
    monkeypatch.setattr(module, "label_doubts", lambda features, labels, *_, **__: np.arange(len(labels)) / 10)
    monkeypatch.setattr(module, "_whole", lambda networks, head, size: (nn.Identity(), networks[0].spec))
    monkeypatch.setattr(Seen, "_tested", lambda self, features, recipe: outcome(0, 1))
    return learner


def test_the_head_of_all_photos_is_learned_only_if_it_its_tests_and_the_results_fit(taught: Seen):
    first = taught._labels_alone()
    assert taught.work.done[-1] == "labels alone"
    assert (first.baseline, first.doubts) == (None, None)
    taught.work.most = 28
    assert taught._learned(first) is first
    assert taught.work.asked.pop() == (6, 20, 3)
    assert "head" not in taught.work.done
    taught.work.most, taught.work.pieces["tests"] = 32, 0.0
    assert taught._learned(first) is first, "five folds are expected to take five times as long as a head"
    assert taught.work.asked[-1] == (30, 3)
    assert (taught.work.done[-1], taught.n_taught) == ("head", 0)
    taught.work.most = 33
    assert taught._learned(first) is not first
    assert (taught.work.done[-1], taught.n_taught) == ("tests", 1)


def test_a_label_is_doubted_by_photos_themselves_once(taught: Seen):
    first = taught._labels_alone()
    found = taught._learned(first)
    assert found.baseline is not None
    assert found.doubts is not None
    np.testing.assert_array_equal(found.doubts[taught.rows], np.arange(9) / 10)
    assert np.isnan(np.delete(found.doubts, taught.rows)).all()
    taught.doubts[:] = 7.0
    again = taught._learned(first).doubts
    assert again is not None
    assert (again == 7.0).all()


@pytest.mark.parametrize(
    ("alone", "found", "earlier", "is_used"),
    [(0, 0, 0, True), (12, 0, 12, True), (0, 12, 12, False), (12, 12, 0, False), (0, 1, 0, True)],
)
def test_a_head_is_used_unless_it_is_clearly_worse_than_the_labels_alone_or_than_the_model_before(
    alone: int, found: int, earlier: int, is_used: bool, taught: Seen, monkeypatch: pytest.MonkeyPatch
):
    first = replace(taught._labels_alone(), out_of_fold=outcome(*range(earlier)))
    wrong = {labels_alone: alone, module.fit_head: found}
    monkeypatch.setattr(Seen, "_tested", lambda self, features, recipe: outcome(*range(wrong[recipe])))
    assert (taught._learned(first) is not first) == is_used


def test_a_model_answers_for_the_photos_that_were_reached(taught: Seen):
    found = taught._labels_alone()
    late = np.setdiff1d(np.arange(N), [*taught.rows, 3])
    assert found.missing == {3: "truncated", int(late[0]): "not reached in the given minutes"}
    assert np.flatnonzero(np.isnan(found.logits).any(1)).tolist() == sorted(found.missing)
    assert found.features is not None
    assert not found.features[sorted(found.missing)].any()
    features = made("lite0", "plain")[taught.rows]
    np.testing.assert_array_equal(found.features[taught.rows], features)
    head = labels_alone(features[None], LABELS[taught.rows], 3, seed=0)
    np.testing.assert_allclose(found.logits[taught.rows], head.logits(features), rtol=1e-4, atol=1e-4)
    assert (found.n_views, found.title, found.backbones) == (1, "EfficientNet-Lite0", taught.backbones[:1])
    assert found.known is not None
    assert len(found.known.features) == 7, "the labelled ones"


@pytest.mark.parametrize("n", [1, 2])
def test_the_shipped_network_gives_the_logits_of_the_head_for_the_features_side_by_side(
    n: int, networks: tuple[Backbone, ...]
):
    draws = np.random.default_rng(0)
    used = list(networks[:n])
    head = Head(draws.normal(size=(3, 1280 * n)).astype(np.float32), np.array([1, -2, 3], np.float32))
    network, spec = module._whole(used, head, 32)
    pixels = torch.from_numpy(draws.normal(size=(2, 3, 32, 32)).astype(np.float32))
    with torch.inference_mode():
        found = network(pixels).numpy()
        features = np.concatenate([one.network().eval()(pixels).numpy() for one in used], axis=1)
    assert features.shape[1] == 1280 * n
    np.testing.assert_allclose(found, head.logits(features), rtol=1e-3, atol=1e-3 * np.abs(found).max())
    assert spec == (used[0].spec if n == 1 else LitePairSpec.of(used[0].spec, used[1].spec))
    assert not network.training


# --- which networks ---------------------------------------------------------------------------------------------------


class Told(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, sentence: str) -> None:
        self.messages.append(sentence)


def test_a_name_is_one_network_and_auto_is_both_as_far_as_they_are_installed(
    networks: tuple[Backbone, ...], monkeypatch: pytest.MonkeyPatch
):
    told = Told()
    assert choose_backbones("auto", told) == networks
    assert choose_backbones("lite2", told) == networks[1:]
    assert choose_backbones("none", told) == ()
    missing = {"lite2"}

    def find(name: str) -> Backbone:
        if name in missing:
            raise MissingBackboneError("Install it.")
        return find_backbone(name)

    monkeypatch.setattr(module, "find_backbone", find)
    assert choose_backbones("auto", told) == networks[:1]
    assert told.messages == []
    missing.add("lite0")
    assert choose_backbones("auto", told) == ()
    assert len(told.messages) == 1
    assert told.messages[0].startswith("No pretrained network is there")
    assert told.messages[0].endswith("Install it.")


def test_a_resumed_fit_has_its_networks_in_their_order(networks: tuple[Backbone, ...]):
    assert resumed_backbones(("lite2", "lite0"), "auto", Path("fit")) == networks[::-1]
    assert resumed_backbones((), "none", Path("fit")) == ()


def test_small_photos_are_enlarged_less_and_another_network_has_its_own_size(networks: tuple[Backbone, ...]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SIZE", 224)
        patch.setattr(module, "_SMALL_SIZE", 160)
        assert [pretrained_size(networks, side) for side in (20, 48, 49, 500)] == [160, 160, 224, 224]
    other = replace(networks[0], spec=WideResNetSpec(depth=10, widen=1), size=77)
    assert [pretrained_size((other,), side) for side in (20, 500)] == [77, 77]
