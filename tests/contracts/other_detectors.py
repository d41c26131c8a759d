"""What must hold of scikit-learn's estimators, of outputs per pixel, and of files."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from catalogue import refused, temporary_folder
from numpy.typing import NDArray
from torch import Tensor, nn

from meanteacher import methods
from meanteacher.core import UNLABELLED, Batch, Problem
from meanteacher.estimator import SemiSupervisedClassifier, arrays, classifier
from meanteacher.estimator.arrays import ClassWeighted, array_training, as_images, local_scale
from meanteacher.estimator.labels import encoded, read_labels
from meanteacher.files import append_to, atomic_file, read_regular
from meanteacher.schedules import Constant
from meanteacher.teacher import teacher_of
from meanteacher.train import Pace, TrainState
from meanteacher.views import Chain, FeatureDropout, Noise, Warp

# --- scikit-learn -----------------------------------------------------------------------------------------------------

_Y = np.array(["owl", "cat", "-1", "cat", "dog", "-1"])


def a_label_is_that_of_its_row_and_none_is_made_up() -> None:
    labels = encoded(*read_labels(_Y), np.array(["cat", "dog", "owl"])).tolist()
    assert labels == [2, 0, UNLABELLED, 0, 1, UNLABELLED], "rows have labels of others, or such as nobody gave"


def classes_are_those_that_were_named() -> None:
    rows = np.random.default_rng(0).normal(size=(12, 3))
    model = SemiSupervisedClassifier("supervised", steps=2, hidden=(4,), random_state=0)
    assert model.fit(rows, np.tile(_Y, 2)).classes_.tolist() == ["cat", "dog", "owl"], "a class is not one"
    assert model.predict_proba(rows).shape == (12, 3), "there is a probability of something else"


class _Says(SemiSupervisedClassifier):
    """Says the same in any case."""

    def predict(self, X: Any) -> NDArray[Any]:
        return np.array(["owl", "dog", "cat", "cat", "dog", "dog"])


def a_score_counts_rows_with_a_label() -> None:
    score = _Says().score(np.zeros((6, 3)), _Y)
    assert abs(score - 3 / 4) < 1e-9, f"three of four rows with a label are right, and the score is {score}"


def a_fit_has_the_minutes_it_is_granted() -> None:
    ends: list[float] = []

    class Noted(Pace):
        def __init__(self, **options: Any) -> None:
            ends.append(options["ends"])
            super().__init__(**options)

    rows = np.random.default_rng(0).normal(size=(12, 3))
    began = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "Pace", Noted)
        model = SemiSupervisedClassifier("supervised", steps=2, hidden=(4,), compare=False, minutes=50, random_state=0)
        model.fit(rows, np.tile(_Y, 2))
    assert ends, "the time is not limited"
    assert all(2900 < end - began < 3100 + time.perf_counter() - began for end in ends), "50 minutes are not 3000 s"


def a_fit_keeps_the_teacher() -> None:
    rows, states = np.random.default_rng(0).normal(size=(12, 3)), []

    def noted(real: Callable[..., TrainState], *given: Any, **options: Any) -> TrainState:
        states.append(real(*given, **options))
        return states[-1]

    model = SemiSupervisedClassifier(steps=6, hidden=(4,), compare=False, random_state=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "run", partial(noted, classifier.run))
        model.fit(rows, np.tile(_Y, 2))
    kept, (state,) = model._network.state_dict(), states
    for network, same in ((teacher_of(state.memory).predictor(), True), (state.student, False)):
        equal = all(torch.equal(kept[name], value.to(kept[name])) for name, value in network.state_dict().items())
        assert equal is same, "the network that is kept is not the teacher"


def a_table_is_trained_with_these_numbers() -> None:
    """What a user gets who sets nothing, for a table of 30 columns and one of 4."""
    for method, weight in {"mean-teacher": 3.0, "pi-model": 5.0, "vat": 1.0, "temporal-ensembling": 10.0}.items():
        given = SemiSupervisedClassifier(method)
        training = array_training(given, (30,), n_examples=500, n_labelled=20, noise=0.6)
        chosen: Any = training.method
        assert chosen.weight(10**6) == weight, f"{method} weighs {chosen.weight(10**6)}"
        assert abs(chosen.decay(0) - (1 - 20 / 300)) < 1e-9, "the average reaches back otherwise"
        assert (training.batch.size, getattr(training.batch, "labelled", 0)) == (200, 20), "a batch is another"
    wide = array_training(SemiSupervisedClassifier(), (30,), n_examples=500, n_labelled=20, noise=0.6)
    assert wide.views["student"] == Chain((FeatureDropout(0.3), Noise(0.6))), "the student's view is another"
    assert wide.views["teacher"] == Chain((Noise(0.6 / 3),)), "the teacher's view is another"
    narrow = array_training(SemiSupervisedClassifier(), (4,), n_examples=500, n_labelled=20, noise=0.6)
    assert narrow.views["student"] == Chain((FeatureDropout(0.0), Noise(0.6))), "few features are dropped"


def a_class_of_more_weight_is_predicted_more_often() -> None:
    """The cost is that of logits less the logarithm of the weights: the odds that are learned are multiplied."""
    logits = torch.tensor([[0.3, -0.2, 0.5], [1.0, 0.1, -0.4]])
    weights, labels = (4.0, 1.0, 0.5), torch.tensor([2, 0])
    student = nn.Linear(3, 3)
    nn.init.eye_(student.weight)
    nn.init.zeros_(student.bias)
    plain = methods.Supervised(decay=Constant(0.9), buffers="average")
    weighted = ClassWeighted(plain, weights)
    problem = Problem(n_classes=3, n_examples=2, input_shape=(3,))
    memory = weighted.init(student, problem)
    cost = weighted.forward(student, memory, Batch({"student": logits}, labels, torch.arange(2)), 0).costs
    expected = F.cross_entropy(logits - torch.tensor(weights).log(), labels)
    assert torch.allclose(cost["classification"].value, expected, atol=1e-5), "weights act the other way round"


def the_scale_of_the_noise_is_that_of_neighbours() -> None:
    draws = np.random.default_rng(2)
    rows = np.repeat(draws.normal(size=(40, 6)) * 50, 2, axis=0) + draws.normal(size=(80, 6)) * 0.2
    found = local_scale(torch.from_numpy(rows))
    assert 0.15 < found < 0.25, f"rows that differ by a deviation of 0.2 get noise of {found}"


def a_table_is_standardised_in_spite_of_outliers() -> None:
    draws = np.random.default_rng(1)
    rows = draws.normal(size=(120, 3)) * [1000, 0.01, 1] + [5, -3, 0]
    rows[7] = [1e9, 1e6, -1e7]
    seen = SemiSupervisedClassifier()._inputs(rows, reset=True).numpy()
    usual = np.delete(seen, 7, axis=0)
    assert np.abs(usual.mean(0)).max() < 0.5, "a column has another mean"
    assert 0.5 < usual.std(0).min() <= usual.std(0).max() < 1.5, "a column has another deviation"


def channels_last_images_keep_their_pixels() -> None:
    array = np.random.default_rng(0).integers(256, size=(2, 4, 5, 3)).astype(np.uint8)
    images = as_images(array)
    assert images.shape == (2, 3, 4, 5), "the axes are others"
    assert np.array_equal(images.numpy(), np.moveaxis(array, -1, 1)), "a pixel is elsewhere"


ESTIMATORS = (
    a_fit_has_the_minutes_it_is_granted,
    a_fit_keeps_the_teacher,
    a_table_is_trained_with_these_numbers,
    a_class_of_more_weight_is_predicted_more_often,
    the_scale_of_the_noise_is_that_of_neighbours,
    a_table_is_standardised_in_spite_of_outliers,
    channels_last_images_keep_their_pixels,
    a_label_is_that_of_its_row_and_none_is_made_up,
    classes_are_those_that_were_named,
    a_score_counts_rows_with_a_label,
)


# --- outputs per pixel ------------------------------------------------------------------------------------------------


def _images() -> Tensor:
    """They change little from pixel to pixel, so that values between pixels are known well."""
    coarse = torch.randn(8, 2, 4, 5, generator=torch.Generator().manual_seed(1))
    return F.interpolate(coarse, (24, 32), mode="bicubic")


_WARP = Warp(translate=3.0, degrees=30.0, scale=(0.4, 1.0))


def a_moved_prediction_is_that_of_the_moved_image() -> None:
    images, draws = _images(), torch.Generator().manual_seed(0)
    move = _WARP.draw(images, draws)
    weights = torch.tensor([[2.0, -1.0], [0.5, 1.5]])[:, :, None, None]
    apart = (F.conv2d(move(images), weights) - move(F.conv2d(images, weights))).abs().max()
    assert apart < 1e-3, "the teacher's prediction is moved otherwise than the student's image"


def a_prediction_at_half_the_resolution_moves_by_half_as_many_pixels() -> None:
    images, draws = _images(), torch.Generator().manual_seed(0)
    move = _WARP.draw(images, draws)
    half, wanted = F.avg_pool2d(images, 2), F.avg_pool2d(move(images), 2)
    inside = move.seen((12, 16))[:, None].expand_as(half)
    apart, still = ((x - wanted)[inside].abs().mean() for x in (move(half), half))
    assert apart < 0.2 * still, "a smaller prediction is moved otherwise than the image"


def labels_of_pixels_move_with_the_image() -> None:
    labels, draws = _images().argmax(1), torch.Generator().manual_seed(0)
    shown = F.one_hot(labels, 2).movedim(-1, 1).float()
    move = _WARP.draw(shown, draws)
    moved, seen = move.labels(labels), move.seen()
    clear = seen & (move(shown).amax(1) > 0.75)
    assert clear.float().mean() > 0.2, "nothing is seen, so this tells nothing"
    assert torch.equal(moved[clear], move(shown).argmax(1)[clear]), "labels are those of other pixels"
    outside = move(torch.ones_like(shown))[:, 0] == 0
    assert outside.any(), "nothing comes from outside, so this tells nothing"
    assert (moved[outside] == UNLABELLED).all(), "what comes from outside has a label"


DENSE = (
    a_moved_prediction_is_that_of_the_moved_image,
    a_prediction_at_half_the_resolution_moves_by_half_as_many_pixels,
    labels_of_pixels_move_with_the_image,
)


# --- files ------------------------------------------------------------------------------------------------------------


def nothing_is_written_through_a_link() -> None:
    with temporary_folder() as folder:
        (folder / "outside").write_text("precious")
        (folder / "link").symlink_to(folder / "outside")

        def append() -> None:
            with append_to(folder / "link") as file:
                file.write(b"more")

        refused(append, "a link", OSError)
        assert (folder / "outside").read_text() == "precious", "a file outside is changed"


def a_file_is_read_up_to_its_limit_and_if_it_is_one() -> None:
    with temporary_folder() as folder:
        (folder / "file").write_bytes(bytes(10))
        assert read_regular(folder / "file", 10) == bytes(10)
        refused(lambda: read_regular(folder / "file", 9), "a file beyond the limit", OSError)
        os.mkfifo(folder / "pipe")
        refused(lambda: read_regular(folder / "pipe", 9), "a pipe", OSError)


def half_a_file_takes_no_name() -> None:
    with temporary_folder() as folder:
        (folder / "file").write_text("whole")
        try:
            with atomic_file(folder / "file") as file:
                file.write(b"half")
                raise InterruptedError
        except InterruptedError:
            pass
        assert (folder / "file").read_text() == "whole", "half of a file has taken its name"


FILES = (
    nothing_is_written_through_a_link,
    a_file_is_read_up_to_its_limit_and_if_it_is_one,
    half_a_file_takes_no_name,
)
