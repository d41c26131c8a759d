"""What must hold of scikit-learn's estimators, of outputs per pixel, and of files."""

import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from catalogue import refused, temporary_folder
from numpy.typing import NDArray
from torch import Tensor

from meanteacher.core import UNLABELLED
from meanteacher.estimator import SemiSupervisedClassifier
from meanteacher.estimator.labels import encoded, read_labels
from meanteacher.files import append_to, atomic_file, read_regular
from meanteacher.views import Warp

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


ESTIMATORS = (
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
