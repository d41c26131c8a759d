"""Training from scratch: how its time is divided, what each network is trained on, and when it is chosen."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from meanteacher.core import Interrupted
from meanteacher.photos.fitting import scratch
from meanteacher.records import Trial, WorkRecord
from meanteacher.stats import error_interval
from meanteacher.train import Callback

SECONDS = {1.0: 0.4, 0.5: 0.1, 0.25: 0.04}
"""width -> seconds of a step."""


@pytest.mark.parametrize(
    ("seconds", "width", "n_tested", "steps"),
    [
        (4000, 1.0, 4, 1700),  # 8,500 steps for five networks
        (2000, 0.5, 5, 2833),
        (600, 0.5, 2, 1700),
        (280, 0.25, 2, 1983),
        (130, 0.25, 1, 1381),  # two networks, neither of which gets the steps that are wanted
        (1, 0.25, 1, 60),
    ],
)
def test_as_many_folds_are_tested_as_leave_each_network_enough_steps(
    seconds: float, width: float, n_tested: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(training: Any, **options: Any) -> list[float]:
        each = SECONDS[training.model.width]
        return [9.0, 0.5 * each, 1.5 * each]

    monkeypatch.setattr(scratch, "step_seconds", timed)
    monkeypatch.setattr(scratch, "time", SimpleNamespace(perf_counter=lambda: 70.0))
    work: Any = SimpleNamespace(record=SimpleNamespace(flip=False), ends=70 + seconds, device="cpu")
    images, labels = np.zeros((4, 3, 8, 8), np.uint8), np.array([0, 1, -1, -1])
    assert scratch._length(images, labels, 2, work) == (width, steps, n_tested)


# --- the training of one network --------------------------------------------------------------------------------------


def prepared(n_labels: int, method: str = "mean-teacher", *, flip: bool = True) -> Any:
    """Labels of two classes at odd positions."""
    labels = np.full(2 * n_labels + 3, -1)
    labels[1 : 2 * n_labels : 2] = np.arange(n_labels) % 2
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 8, 8), dtype=np.uint8)
    return images, labels, scratch._prepared(images, labels, 2, method, 0.25, 70, flip=flip)


def test_both_methods_see_as_many_labelled_images_per_step_and_one_image_is_the_test_set() -> None:
    images, labels, (training, data, split) = prepared(5)
    assert (training.batch.size, training.batch.labelled, training.batch.unlabelled_pool) == (192, 96, "all")
    assert (training.steps, training.evaluate_every, training.model.width) == (70, 70, 0.25)
    assert split.labelled.tolist() == [1, 3, 5, 7, 9]
    assert split.unlabelled.tolist() == [0, 2, 4, 6, 8, 10, 11, 12]
    assert len(split.validation) == 0
    np.testing.assert_array_equal(data.train.images.numpy(), images)
    assert data.train.labels.tolist() == labels.tolist()
    assert (data.train.class_names, len(data.test)) == (("0", "1"), 1)
    np.testing.assert_array_equal(data.test.images.numpy(), images[1:2])
    assert data.test.labels.tolist() == [0]
    _, _, (alone, _, _) = prepared(5, "supervised")
    assert (alone.batch.size, alone.batch.labelled) == (96, 96)


def test_labelled_rows_get_the_weak_view_from_a_thousand_labels_on() -> None:
    assert prepared(999)[2][0].labelled_view is None
    assert prepared(1000)[2][0].labelled_view is not None


class Told(Callback):
    def __init__(self, *, stops: bool = False) -> None:
        self.stops = stops
        self.said: list[Any] = []

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.said.append((task, done, total))

    def on_message(self, sentence: str) -> None:
        self.said.append(sentence)

    def should_stop(self) -> bool:
        return self.stops


def test_each_network_gets_its_share_of_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(scratch, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def run(training: Any, **given: Any) -> Any:
        ran.append(given)
        state = SimpleNamespace(predictor=lambda method: ("predictor", method), normalise="normalise")
        return SimpleNamespace(record=None, restored=lambda device: state)

    monkeypatch.setattr(scratch, "run_training", run)
    callback = Told()
    work: Any = SimpleNamespace(callback=callback, device="cpu", record=SimpleNamespace(flip=False))
    train = scratch.Training(
        method="mean-teacher", width=0.25, steps=60, folder=tmp_path, n_runs=3, ends=1000.0, work=work
    )
    images, labels, _ = prepared(4)
    (tmp_path / "mean-teacher-2").mkdir()
    (tmp_path / "mean-teacher-2" / "run.json").write_text("{}")
    for now in (100.0, 500.0, 990.0, 1200.0):
        clock.now = now
        found = train(images[None], labels, 2, seed=5)
        assert (found.network[0], found.normalise) == ("predictor", "normalise")
    # 900 seconds for three, 500 for two, and ten for the last. The time is over before the fourth.
    assert [given["callbacks"][0]._ends for given in ran] == [400, 750, 1000, 1200]
    assert [given["callbacks"][0]._task for given in ran] == [
        *(f"Training network {k} of 3" for k in (1, 2, 3)),
        "Training network 4 of 4",
    ]
    assert [given["out"].name for given in ran] == [f"mean-teacher-{k}" for k in (1, 2, 3, 4)]
    assert [given["resume"] for given in ran] == [False, True, False, False]
    assert {given["seed"] for given in ran} == {5}
    callback.stops = True
    with pytest.raises(Interrupted):
        train(images[None], labels, 2, seed=5)


def test_a_run_is_shown_as_a_task_and_stops_with_the_fit_or_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=9.0)
    monkeypatch.setattr(scratch, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    told = Told()
    shown = scratch._Shown(told, "Training network 1 of 2", 50, 10.0)
    shown.on_log(cast(Any, SimpleNamespace(step=20)))
    shown.on_alarm(cast(Any, SimpleNamespace(sentence="Nothing is learned.")))
    assert told.said == [("Training network 1 of 2", 20, 50), "Training network 1 of 2: Nothing is learned."]
    assert not shown.should_stop()
    clock.now = 10.0
    assert not shown.should_stop()
    clock.now = 10.5
    assert shown.should_stop()
    clock.now, told.stops = 9.0, True
    assert shown.should_stop()


# --- the whole of it --------------------------------------------------------------------------------------------------


class Noted:
    """Instead of training: answers each image with the class of its first pixel."""

    made: ClassVar[list["Noted"]] = []

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given, n_done=0, runs=[])
        self.made.append(self)

    def __call__(self, images: np.ndarray, labels: np.ndarray, n_classes: int, *, seed: int) -> Any:
        self.n_done += 1
        self.runs.append((self.n_runs, labels.tolist()))
        return SimpleNamespace(
            network="network",
            normalise="normalise",
            logits=lambda x: np.eye(n_classes, dtype=np.float32)[x[:, 0, 0, 0]],
        )


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> type[Noted]:
    monkeypatch.setattr(Noted, "made", [])
    monkeypatch.setattr(scratch, "Training", Noted)
    monkeypatch.setattr(scratch, "time", SimpleNamespace(perf_counter=lambda: 200.0))
    return Noted


def some_data(labels: list[int]) -> Any:
    """Photo 1 cannot be read; the first pixel of each is its position modulo three."""
    n = len(labels)
    images = np.zeros((n, 3, 8, 8), np.uint8)
    images[:, 0, 0, 0] = np.arange(n) % 3
    given = np.array(labels)
    return SimpleNamespace(
        usable=np.setdiff1d(np.arange(n), [1]),
        labels=given,
        labelled=np.flatnonzero(given >= 0),
        photos=type("Some", (), {"class_names": ("a", "b", "c"), "__len__": lambda self: n})(),
        decoded=SimpleNamespace(images=images),
        groups=lambda: 50 + np.arange(n),
        left_out={1: "truncated"},
    )


class Noting(Told):
    """The work of a fit."""

    def __init__(self, **record: Any) -> None:
        super().__init__()
        self.record = WorkRecord(fingerprint="", device="cpu", flip=False, backbones=(), **record)
        self.callback, self.folder, self.cache, self.ends, self.device = self, Path("fit"), Path(), 1200.0, "cpu"
        self.pieces: list[str] = []

    def note(self, pieces: dict[str, float]) -> None:
        self.pieces.append("noted")

    def piece(self, name: str) -> Any:
        self.pieces.append(name)
        return nullcontext()


def test_a_fit_from_scratch_tests_the_planned_folds_and_ships_a_network_of_all_labels(
    noted: type[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = some_data([2, -1, -1, 0, 1, 2, 0, 1, 2, 0])
    planned: list[Any] = []
    monkeypatch.setattr(scratch, "_length", lambda *given: planned.append(given) or (0.5, 900, 2))
    work: Any = Noting(minutes=10)
    (found,) = scratch.train_from_scratch(data, work)
    (images, labels, n_classes, _), (train,) = planned[0], noted.made
    assert (len(images), labels.tolist(), n_classes) == (9, [2, -1, 0, 1, 2, 0, 1, 2, 0], 3)
    assert (work.record.width, work.record.steps, work.record.n_tested) == (0.5, 900, 2)
    assert work.pieces == ["noted", "training"]
    assert (train.method, train.width, train.steps, train.folder) == ("mean-teacher", 0.5, 900, Path("fit/runs"))
    # Half of the time beyond the planned steps is for the last network: 0.15 / 2 of the thousand seconds.
    assert train.ends == pytest.approx(1200 - 75)
    assert [n_runs for n_runs, _ in train.runs] == [3, 3, 3]
    assert train.runs[-1][1] == labels.tolist()
    assert (found.title, found.n_views, found.baseline, found.missing) == ("FastNet", 1, None, {1: "truncated"})
    assert (found.network, found.normalise, found.spec.width) == ("network", "normalise", 0.5)
    assert np.flatnonzero(np.isnan(found.logits).any(1)).tolist() == [1]
    assert found.logits[data.usable].argmax(1).tolist() == [0, 2, 0, 1, 2, 0, 1, 2, 0]
    tested = found.out_of_fold
    assert tested.labels.tolist() == data.labels[tested.positions].tolist()
    assert tested.groups.tolist() == (50 + tested.positions).tolist()
    assert 0 < len(tested.positions) < len(data.labelled)
    assert tested.logits.argmax(1).tolist() == (tested.positions % 3).tolist()


def test_a_resumed_fit_from_scratch_keeps_its_width_steps_and_folds(
    noted: type[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_length", None)
    work: Any = Noting(minutes=10, width=0.25, steps=60, n_tested=1)
    list(scratch.train_from_scratch(some_data([2, -1, -1, 0, 1, 2, 0, 1, 2, 0]), work))
    (train,) = noted.made
    assert (train.width, train.steps) == (0.25, 60)
    assert [n_runs for n_runs, _ in train.runs] == [2, 2]


def a_trial(
    data: Any, wrong: int, monkeypatch: pytest.MonkeyPatch, *, minutes: float = 10
) -> tuple[Trial, list[Any], Noting]:
    """A trial in which the pretrained network makes so many errors, and the one from scratch none."""
    asked: list[Any] = []

    def tested(features: np.ndarray, *, labels: np.ndarray, fit: Any, groups: np.ndarray, **given: Any) -> Any:
        asked.append((features, labels, groups, fit))
        errors = wrong if fit is scratch.labels_alone else 0
        return SimpleNamespace(wrong=np.arange(len(labels)) < errors)

    monkeypatch.setattr(scratch, "cross_validated", tested)
    work = Noting(minutes=minutes)
    features = np.arange(len(data.labels), dtype=np.float16)[:, None]
    network: Any = SimpleNamespace(work=work, look_at=lambda rows: features, backbones=[SimpleNamespace(title="LITE")])
    return scratch.choose_network(network, data), asked, work


def test_a_trial_takes_labels_of_each_class_alike_and_both_networks_see_the_same_ones(
    noted: type[Noted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scratch, "_TRIAL_LABELS", 6)
    monkeypatch.chdir(tmp_path)
    data = some_data([2, -1, 0, 0, 1, 2, 0, 1, 2, 0, -1, 2, 2, 0, 1])
    trial, ((features, labels, groups, _), (images, again, _, train)), work = a_trial(data, 1, monkeypatch)
    # Thirteen labels, so every third of each class.
    rows = [0, 2, 4, 9, 11]
    assert (trial.n, trial.chosen) == (5, "scratch")
    assert features[0, :, 0].tolist() == rows
    assert images.shape == (1, 5, 3, 8, 8)
    assert images[0, :, 0, 0, 0].tolist() == [k % 3 for k in rows]
    assert labels.tolist() == again.tolist() == [2, 0, 1, 0, 2]
    assert groups.tolist() == [50 + k for k in rows]
    assert (train.method, train.width, train.n_runs) == ("supervised", 0.25, 5)
    assert work.said[0].startswith("Trying a pretrained network and one from scratch")
    assert work.said[-1] == trial.sentence
    assert list(tmp_path.iterdir()) == [], "the runs of a trial are left"


@pytest.mark.parametrize(("minutes", "seconds"), [(10, 48), (30, 60), (0.1, 1)])
def test_a_trial_takes_a_small_share_of_the_minutes(
    minutes: float, seconds: float, noted: type[Noted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    a_trial(some_data([2, -1, 0, 0, 1, 2, 1]), 1, monkeypatch, minutes=minutes)
    (train,) = noted.made
    assert train.ends == pytest.approx(200 + seconds)


def test_a_network_from_scratch_is_not_tried_if_a_guess_would_nearly_do(
    noted: type[Noted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of nine guesses six are wrong, so six errors, which are taken 1.2 times, are too many."""
    monkeypatch.chdir(tmp_path)
    data = some_data([2, -1, 0, 0, 1, 2, 0, 1, 1, 2])
    found, asked, _ = a_trial(data, 6, monkeypatch)
    assert (len(asked), found.scratch, found.chosen) == (1, None, "scratch")
    found, asked, _ = a_trial(data, 4, monkeypatch)
    assert (len(asked), found.chosen) == (2, "scratch")


# --- the outcome of a trial -------------------------------------------------------------------------------------------


def outcome(pretrained: int, scratch_wrong: int | None, n: int = 40) -> Trial:
    wrong = (None if k is None else np.arange(n) < k for k in (pretrained, scratch_wrong))
    return scratch._result(*cast(Any, wrong), "LITE")


@pytest.mark.parametrize(
    ("pretrained", "other", "chosen", "why"),
    [
        (10, 5, "scratch", "it was wrong on 12.5 %, the pretrained network LITE on 25.0 %."),
        (10, 10, "scratch", "on 25.0 %, but training improves a network from scratch more."),
        (10, 12, "scratch", "it was wrong on 30.0 %, the pretrained network LITE on 25.0 %, but training improves"),
        (10, 13, "pretrained", "it was wrong on 25.0 %, a small network from scratch on 32.5 %."),
        (30, None, "scratch", "the pretrained network LITE was wrong on 75.0 % of them, hardly better than a guess."),
    ],
)
def test_the_pretrained_network_stays_if_the_other_makes_over_a_fifth_more_errors(
    pretrained: int, other: int | None, chosen: str, why: str
) -> None:
    found = outcome(pretrained, other)
    assert (found.chosen, found.n) == (chosen, 40)
    named = {"scratch": "a small network from scratch", "pretrained": "the pretrained network LITE"}[chosen]
    sentence = found.sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert sentence.startswith(f"A short trial on 40 labelled images chose {named}: ")
    assert why in sentence
    assert found.pretrained is not None
    assert (found.pretrained.error, found.pretrained.wrong) == (pretrained / 40, pretrained)
    interval = error_interval(pretrained, 40)
    assert (found.pretrained.low, found.pretrained.high) == (interval.low, interval.high)
    assert (None if found.scratch is None else found.scratch.wrong) == other


def test_without_a_second_label_of_a_class_there_is_nothing_to_try() -> None:
    found = outcome(0, None, n=0)
    assert (found.chosen, found.n, found.pretrained, found.scratch) == ("pretrained", 0, None, None)
    assert "LITE" in found.sentence
