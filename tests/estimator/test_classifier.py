"""`MeanTeacherClassifier` and `SemiSupervisedClassifier`: what goes in, what comes out, and what stays as it was."""

import copy
import functools
import pickle
import statistics
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_moons
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from meanteacher import MeanTeacherClassifier, SemiSupervisedClassifier, methods, models
from meanteacher.core import InputError
from meanteacher.estimator import arrays, classifier
from meanteacher.estimator.labels import read_labels
from meanteacher.methods import METHODS
from meanteacher.schedules import Constant
from meanteacher.train import Alarm

Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def moons(seed: int, n: int = 200, labels: int = 6) -> Rows:
    """Points, their classes, and the classes of which a few are shown."""
    X, y = make_moons(n, noise=0.1, random_state=seed)
    shown = np.full(n, -1)
    for label in (0, 1):
        rows = np.flatnonzero(y == label)[: labels // 2]
        shown[rows] = label
    return X, y, shown


def blobs(n: int = 60) -> Rows:
    X, y = make_blobs(n, centers=3, cluster_std=0.4, random_state=0)
    shown = np.where(np.arange(n) < 15, y, -1)
    return X, y, shown


def quick(**changes: Any) -> MeanTeacherClassifier:
    return MeanTeacherClassifier(**{"steps": 40, "random_state": 0, "compare": False, **changes})


# --- learning ---------------------------------------------------------------------------------------------


def test_unlabelled_rows_help_on_two_moons():
    """Measured over 6 draws of points and labels: 7.5 % with them, 14.9 % without."""
    errors: dict[str, list[float]] = {"mean-teacher": [], "supervised": []}
    for seed in range(3):
        X, y, shown = moons(seed)
        for method, found in errors.items():
            model = SemiSupervisedClassifier(method, steps=200, compare=False, random_state=seed).fit(X, shown)
            found.append(1 - model.score(X, y))
    means = {method: statistics.mean(found) for method, found in errors.items()}
    assert means["mean-teacher"] < means["supervised"] - 0.02


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str):
    X, y, shown = blobs()
    model = SemiSupervisedClassifier(method, steps=60, compare=False, random_state=0).fit(X, shown)
    assert model.score(X, y) > 0.9
    assert model.n_steps_ == 60


def test_a_method_may_be_a_value():
    X, y, shown = blobs()
    method = methods.MeanTeacher(decay=Constant(0.9), buffers="own", weight=Constant(3.0))
    model = clone(SemiSupervisedClassifier(method, steps=100, compare=False, random_state=0)).fit(X, shown)
    assert model.score(X, y) > 0.9


OTHER_SETTINGS: dict[str, Any] = {
    "weight": 30.0,
    "decay": 0.5,
    "ramp_up": 1.0,
    "noise": 0.9,
    "feature_dropout": 0.3,
    "hidden": 500,
    "batch_size": 20,
    "learning_rate": 0.1,
    "steps": 39,
    "random_state": 1,
}


@functools.cache
def predicted(**changes: Any) -> np.ndarray:
    X, _, shown = blobs()
    return quick(**changes).fit(X, shown).predict_proba(X)


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_a_setting_reaches_the_method(name: str):
    assert not np.allclose(predicted(**{name: OTHER_SETTINGS[name]}), predicted())


def test_features_may_have_any_scale():
    X, y, shown = blobs()
    scaled = X * [1e-9, 1e9] + [5.0, 1e12]
    assert quick(steps=100).fit(scaled, shown).score(scaled, y) > 0.9


def test_one_row_far_outside_changes_little():
    """With the mean and the deviation of all rows, all but that row would be the same to the network."""
    X, y, shown = blobs()
    far = np.concatenate([X, [[1e6, -1e6]]])
    model = quick(steps=100).fit(far, np.append(shown, -1))
    assert model.score(X, y) > 0.9


def test_noise_is_as_large_as_the_distance_to_the_nearest_neighbour():
    """So that clusters which are close together stay apart, whatever their distance in deviations is."""
    wide, close = (make_blobs(80, centers=[[0, 0], [d, 0], [100, 0]], cluster_std=1.0, random_state=0) for d in (50, 8))
    noises = [quick(steps=1).fit(X, y)._noise for X, y in (wide, close)]
    assert 0 < max(noises) < 0.1
    assert quick(steps=1, noise=0.4).fit(*wide)._noise == 0.4
    X, _, shown = blobs()
    one_value = np.repeat(X[:1], len(X), axis=0)
    assert quick(steps=1).fit(one_value, shown)._noise == 0.0


def test_a_network_of_ones_own_is_trained_from_its_weights_and_not_changed():
    X, y, shown = blobs()
    module = torch.nn.Sequential(torch.nn.Linear(2, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    before = copy.deepcopy(module.state_dict())
    model = clone(quick(module=module, steps=100)).fit(X, shown)
    assert model.score(X, y) > 0.9
    assert [type(layer).__name__ for layer in model._network] == ["Linear", "Tanh", "Linear"]
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    still = quick(module=module, steps=1, learning_rate=0.0).fit(X, shown)
    assert torch.equal(still._network[0].weight.float(), before["0.weight"])
    described = quick(module=models.MlpSpec(hidden=(7,)), steps=2).fit(X, shown)
    assert described._network[1].out_features == 7
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert quick(module=module).partial_fit(X, shown, classes=[0, 1, 2]).predict(X).shape == y.shape
    with pytest.raises(InputError, match=r"needs logits \[B, 2\]"):
        quick(module=module).fit(X, np.where(shown == 2, 0, shown))


def rare(seed: int) -> Rows:
    """Two overlapping classes, 95:5, of which 200 rows have a label."""
    draws = np.random.default_rng(seed)
    y = (draws.random(600) < 0.05).astype(int)
    X = draws.normal(size=(600, 3)) + 1.5 * y[:, None]
    return X, y, np.where(np.arange(600) < 200, y, -1)


@pytest.mark.parametrize("compare", [False, True])
@pytest.mark.parametrize("weight", ["balanced", {0: 1.0, 1: 19.0}])
def test_weights_of_the_classes_raise_the_recall_of_a_rare_one(weight: Any, compare: bool):
    X, y, shown = rare(0)
    plain, weighted = (
        quick(class_weight=given, steps=60, compare=compare).fit(X, shown).predict(X)[y == 1].mean()
        for given in (None, weight)
    )
    assert weighted > plain + 0.1


def test_weights_of_classes_that_do_not_exist_are_refused():
    X, _, shown = blobs()
    with pytest.raises(ValueError, match="not in class_weight"):
        quick(class_weight={"cat": 2.0}).fit(X, shown)
    with pytest.raises(InputError, match="above 0"):
        quick(class_weight={0: 0.0}).fit(X, shown)
    with pytest.raises(InputError, match="balanced"):
        quick(class_weight="balanced").partial_fit(X, shown, classes=[0, 1, 2])
    model = quick(class_weight={0: 3.0}).partial_fit(X, shown, classes=[0, 1, 2])
    assert model._trainer.method.weights == (3.0, 1.0, 1.0)


# --- the simple model -------------------------------------------------------------------------------------


def noisy_plane(n: int = 300) -> Rows:
    """Classes on the sides of a plane through a single cloud: unlabelled rows tell nothing about the border."""
    draws = np.random.default_rng(0)
    X = draws.normal(size=(n, 8))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    return X, y, np.where(np.arange(n) < 40, y, -1)


def test_the_simple_model_predicts_if_cross_validation_on_the_labels_favours_it(capsys: pytest.CaptureFixture[str]):
    X, y, shown = noisy_plane()
    model = quick(compare=True, steps=4, verbose=True).fit(X, shown)  # the network has learned nothing in four steps
    assert model.chosen_ == "logistic regression"
    assert model.n_steps_ == 0
    assert model.accuracies_["logistic regression"] == max(model.accuracies_.values())
    assert model.accuracies_.keys() == {"network", "logistic regression", "kernel logistic regression"}
    assert capsys.readouterr().out.endswith("; logistic regression is chosen\n")
    assert model.score(X, y) > 0.8
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), 2)
    assert np.array_equal(probabilities.argmax(1), model.predict(X))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), probabilities)
    last = model._network[1].weight.float()
    model.partial_fit(X, shown)
    assert model.chosen_ == "network"
    # A few steps from the last network of the comparison; the weights of a new one would be up to 0.35.
    assert 0 < (model._trainer._state.student[1].weight - last).abs().max() < 0.1


def test_the_network_predicts_if_it_is_better_or_is_not_compared(monkeypatch: pytest.MonkeyPatch):
    X, _, shown = blobs()
    draw = quick(compare=True, steps=160).fit(X, shown)
    assert draw.accuracies_["network"] == draw.accuracies_["logistic regression"] == 1.0
    assert draw.chosen_ == "logistic regression"
    monkeypatch.setattr(classifier, "simple_models", lambda *_: {"dummy": DummyClassifier()})
    model = quick(compare=True, steps=160).fit(X, shown)
    assert model.chosen_ == "network"
    assert model.accuracies_["network"] > model.accuracies_["dummy"]
    assert model.n_steps_ == 160
    alone = quick(steps=160).fit(X, shown)
    assert (alone.chosen_, alone.accuracies_) == ("network", {})
    assert np.array_equal(alone.predict_proba(X), model.predict_proba(X))


def test_a_class_with_one_label_is_not_cross_validated():
    X, y, _ = blobs()
    shown = np.full(len(y), -1)
    shown[[np.flatnonzero(y == label)[0] for label in (0, 1, 2)]] = [0, 1, 2]
    assert quick(compare=True, steps=2).fit(X, shown).accuracies_ == {}
    images, labels = pictures(20, 8, 1)
    assert quick(compare=True, steps=2).fit(images, labels).accuracies_ == {}


# --- labels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        lambda y: ["none" if label == 7 else f"class {label}" if label >= 0 else -1 for label in y],
        lambda y: np.array([f"class {label}" if label >= 0 else -1 for label in y], dtype=object),
        lambda y: pd.Series([f"class {label}" if label >= 0 else -1 for label in y]),
    ],
    ids=["list", "objects", "series"],
)
def test_minus_one_marks_unlabelled_rows_among_strings(given: Any):
    X, y, shown = blobs()
    model = quick(steps=100).fit(X, given(shown))
    assert model.classes_.tolist() == ["class 0", "class 1", "class 2"]
    assert model.score(X, [f"class {label}" for label in y]) > 0.9
    same = quick(steps=100).fit(X, shown)
    assert np.array_equal(same.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (lambda y: np.where(y == -1, np.nan, y), [0.0, 1.0, 2.0]),
        (lambda y: [None if label == -1 else f"class {label}" for label in y], ["class 0", "class 1", "class 2"]),
        (
            lambda y: [float("nan") if label == -1 else f"class {label}" for label in y],
            ["class 0", "class 1", "class 2"],
        ),
        (lambda y: pd.Series(y).astype("Int64").replace(-1, pd.NA), [0, 1, 2]),
        (lambda y: pd.Series(y).map({0: "b", 1: "a", 2: "c"}).astype("category"), ["a", "b", "c"]),
        (lambda y: pd.Categorical(pd.Series(y).map({0: "b", 1: "a", 2: "c"})), ["a", "b", "c"]),
        (lambda y: pd.Series(y).map({0: "b", 1: "a", 2: "c"}).astype("string"), ["a", "b", "c"]),
        (lambda y: [None if label == -1 else label > 0 for label in y.tolist()], [False, True]),
        (lambda y: pd.Series(y).map({0: False, 1: True, 2: True}).astype("boolean"), [False, True]),
    ],
    ids=["nan", "none", "nan among strings", "Int64", "category", "categorical", "string", "bool", "boolean"],
)
def test_missing_labels_mark_unlabelled_rows(given: Any, classes: list[Any]):
    X, _, shown = blobs()
    model = quick(steps=3).fit(X, given(shown))
    assert model.classes_.tolist() == classes
    assert [type(each) for each in model.classes_.tolist()] == [type(each) for each in classes]
    assert model.score(X, given(shown)) == np.mean(model.predict(X)[shown != -1] == read_labels(given(shown))[0])
    labels, known = read_labels(given(shown))
    assert np.array_equal(known, shown != -1)
    assert len(labels) == known.sum()


def test_rows_without_label_do_not_count_in_the_score():
    X, y, shown = blobs()
    model = quick(steps=100).fit(X, shown)
    known = shown != -1
    assert model.score(X, shown) == model.score(X[known], y[known])
    wrong = np.where(known, (y + 1) % 3, -1)
    assert model.score(X, wrong) < 0.1
    assert model.score(X[:2], [y[0], (y[1] + 1) % 3], sample_weight=[3, 1]) == 0.75
    with pytest.raises(InputError, match="No row has a label"):
        model.score(X, np.full(len(X), -1))


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.full(60, -1), "two classes"),
        (np.where(np.arange(60) % 2, 1, -1), "give that another name"),
        (np.array(["a", None, None] * 20, dtype=object), "one class, a"),
        (np.full(60, np.nan), "no row has a label"),
        (np.where(np.arange(60) % 2, 1.0, np.inf), "infinity"),
    ],
)
def test_labels_that_name_fewer_than_two_classes_are_refused(y: NDArray[Any], words: str):
    with pytest.raises(InputError, match=words):
        quick().fit(blobs()[0], y)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps"),
        ({"ramp_up": 2.0}, "ramp_up"),
        ({"decay": 1.0}, "decay"),
        ({"noise": -1.0}, "deviation"),
        ({"feature_dropout": 1.0}, "rate"),
        ({"backbone": "lite0"}, "takes images"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_a_wrong_parameter_is_refused_at_the_fit(changes: dict[str, Any], words: str):
    X, _, shown = blobs()
    with pytest.raises(InputError, match=words):
        quick(**changes).fit(X, shown)
    with pytest.raises(InputError, match="method has to be supervised"):
        SemiSupervisedClassifier("mean-student").fit(X, shown)


# --- images -----------------------------------------------------------------------------------------------


def pictures(n: int, side: int, channels: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """[N, H, W, C]: bright at the top, or at the bottom."""
    draws = np.random.default_rng(0)
    y = np.arange(n) % 2
    images = draws.integers(0, 100, (n, side, side, channels), dtype=np.uint8)
    for image, label in zip(images, y, strict=True):
        (image[: side // 2] if label else image[side // 2 :])[:] += 120
    return images, y


@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize("channels", [1, 3])
def test_all_layouts_of_images_give_the_same_model(side: int, channels: int):
    images, y = pictures(40, side, channels)
    shown = np.where(np.arange(40) < 20, y, -1)
    layouts = [images, images.transpose(0, 3, 1, 2), *([images[..., 0]] if channels == 1 else [])]
    found = [quick(steps=3, batch_size=30).fit(layout, shown).predict_proba(layout) for layout in layouts]
    for other in found[1:]:
        assert np.allclose(found[0], other, atol=1e-6)  # one channel has two layouts, which round differently


def test_images_are_learned():
    images, y = pictures(60, 16, 1)
    shown = np.where(np.arange(60) < 20, y, -1)
    model = quick(steps=15, batch_size=40).fit(images[..., 0], shown)
    assert model.score(images[..., 0], y) > 0.9
    small = images[:, ::2, ::2, 0] / 255
    assert quick(steps=60).fit(small, shown).score(small, y) > 0.9
    assert quick(steps=2, batch_size=20, flip=True).fit(images, shown).predict(images[:3]).shape == (3,)


def test_features_of_a_pretrained_network_are_learned():
    images, y = pictures(12, 20, 1)
    shown = np.where(np.arange(12) < 8, y, -1)
    threads = torch.get_num_threads()
    model = quick(backbone="lite0", compare=True).fit(images, shown)
    assert model.score(images, y) == 1.0
    assert torch.get_num_threads() == threads
    # The weights of the pretrained network are not part of the model.
    assert len(pickle.dumps(model)) < 8e6
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(images), model.predict_proba(images))
    with pytest.raises(InputError, match="from 0 to 1"):
        model.predict(images.astype(float))


@pytest.mark.parametrize("shape", [(6, 2, 8, 8), (6, 3, 8, 3), (6, 8, 8, 2, 2)])
def test_other_arrays_are_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="channels"):
        quick().fit(np.zeros(shape), [0, 1, -1, -1, -1, -1])


def test_predictions_are_of_rows_like_those_of_the_fit():
    images, y = pictures(12, 8, 1)
    model = quick(steps=2).fit(images, y)
    with pytest.raises(InputError, match="Expected rows of shape"):
        model.predict(images[:, :, :7])
    with pytest.raises(NotFittedError):
        quick().predict(images)


# --- in scikit-learn --------------------------------------------------------------------------------------


def test_a_pipeline_and_a_grid_search_take_it():
    X, y, shown = blobs(90)
    search = GridSearchCV(make_pipeline(MinMaxScaler(), quick()), {"meanteacherclassifier__noise": [0.1, 0.5]}, cv=2)
    search.fit(X, shown)
    assert search.best_score_ > 0.8
    assert search.predict(X).shape == y.shape


def test_frames_keep_their_names_and_their_order_is_checked():
    X, _, shown = blobs()
    frame = pd.DataFrame(X, columns=["height", "width"])
    model = quick().fit(frame, pd.Series(shown))
    assert model.feature_names_in_.tolist() == ["height", "width"]
    assert np.array_equal(model.predict_proba(frame), quick().fit(X, shown).predict_proba(X))
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame[["width", "height"]])


def test_logarithms_are_those_of_the_probabilities():
    X, _, shown = blobs()
    model = quick(steps=100).fit(X, shown)
    far = np.concatenate([X, 1e9 * X])
    logarithms = model.predict_log_proba(far)
    assert np.isfinite(logarithms).all()
    assert np.allclose(np.exp(logarithms), model.predict_proba(far))


def test_a_pickled_model_predicts_the_same(tmp_path: Path):
    X, _, shown = blobs()
    model = quick().fit(X, shown)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    again = pickle.loads((tmp_path / "model.pickle").read_bytes())
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


# --- randomness, time and words ---------------------------------------------------------------------------


def test_random_state_decides_and_global_states_stay():
    X, _, shown = blobs()
    np.random.seed(3)
    torch.manual_seed(3)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark, torch.get_num_threads()
    one = quick(random_state=5).fit(X, shown).predict_proba(X)
    drawn, again = (quick(random_state=np.random.RandomState(1)).fit(X, shown).predict_proba(X) for _ in range(2))
    free, other = (quick(random_state=None).fit(X, shown).predict_proba(X) for _ in range(2))
    quick().partial_fit(X, shown, classes=[0, 1, 2])
    assert np.array_equal(one, quick(random_state=5).fit(X, shown).predict_proba(X))
    assert np.array_equal(drawn, again)
    assert not np.array_equal(free, other)
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert flags == (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
    )


def test_steps_are_left_out_when_the_minutes_run_short():
    X, _, shown = blobs()
    assert quick(minutes=0.0).fit(X, shown).n_steps_ == 1
    assert quick(minutes=60.0).fit(X, shown).n_steps_ == 40


def test_progress_is_printed_on_request(capsys: pytest.CaptureFixture[str]):
    X, _, shown = blobs()
    quick().fit(X, shown)
    assert capsys.readouterr().out == ""
    quick(verbose=True).fit(X, shown)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step 10 of 40: classification ")
    assert "consistency" in lines[0]
    assert len(lines) == 5
    assert lines[-1].startswith("error on the labelled rows: ")


def test_alarms_are_warnings_but_a_rare_class_is_none():
    X, _, shown = blobs()
    with pytest.warns(ConvergenceWarning, match="'consistency' has trained nothing"):
        quick(weight=0.0, steps=100).fit(X, shown)
    told = arrays._Progress(10, verbose=False, imbalanced=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told.on_alarm(Alarm(3, "collapse", "All are one."))
    with pytest.warns(ConvergenceWarning, match="Step 3: It is dead"):
        told.on_alarm(Alarm(3, "dead-cost", "It is dead."))


# --- rows that arrive -------------------------------------------------------------------------------------


def arrived(model: MeanTeacherClassifier, X: NDArray[Any], shown: NDArray[Any], size: int = 30) -> None:
    for start in range(0, len(X), size):
        model.partial_fit(X[start : start + size], shown[start : start + size], classes=[0, 1, 2])


def test_partial_fit_learns_row_by_row():
    X, y = make_blobs(900, centers=3, cluster_std=0.4, random_state=0)
    shown = np.where(np.arange(900) % 10 == 0, y, -1)
    model = quick()
    arrived(model, X, shown)
    assert model.n_steps_ == 30
    assert model.score(X, y) > 0.9
    again = pickle.loads(pickle.dumps(model))
    for each in (model, again):
        each.partial_fit(X[:30], shown[:30])
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_partial_fit_goes_on_after_a_fit_and_a_fit_begins_anew():
    X, _, shown = blobs()
    model = quick(steps=100).fit(X, shown)
    fitted = model.predict_proba(X)
    model.partial_fit(X[:10], shown[:10])
    assert model.n_steps_ == 101
    # One step from the fitted network, not from a new one.
    assert 0 < np.abs(model.predict_proba(X) - fitted).max() < 0.2
    assert np.array_equal(model.fit(X, shown).predict_proba(X), fitted)


def test_partial_fit_refuses_what_does_not_fit():
    X, _, shown = blobs()
    with pytest.raises(InputError, match="first call"):
        quick().partial_fit(X, shown)
    with pytest.raises(InputError, match="at least two"):
        quick().partial_fit(X, shown, classes=[-1, 1])
    model = quick().partial_fit(X, shown, classes=[0, 1, 2])
    with pytest.raises(InputError, match="cannot change"):
        model.partial_fit(X, shown, classes=[0, 1])
    with pytest.raises(InputError, match="none of the classes"):
        model.partial_fit(X, shown + 1)
    with pytest.raises(InputError, match="every example"):
        SemiSupervisedClassifier("temporal-ensembling").partial_fit(X, shown, classes=[0, 1, 2])


def test_partial_fit_takes_images_and_an_example_at_a_time():
    images, y = pictures(20, 16, 1)
    model = quick().partial_fit(images, y, classes=[0, 1])
    model.partial_fit(images[:1], y[:1])
    assert model.predict(images).shape == (20,)
    fitted = quick(steps=3, batch_size=20).fit(images, y)
    first = fitted._network.whitening.weight.clone()
    fitted.partial_fit(images, y).partial_fit(images, y)
    trained = fitted._trainer._state.student
    assert torch.equal(trained.whitening.weight, first)  # it is fixed, here too
    assert not torch.equal(trained.head.weight, fitted._network.head.weight)
