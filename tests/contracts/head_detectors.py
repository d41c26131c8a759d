"""What must hold of features, heads, their tests and what to label next, on features whose classes are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import temporary_folder

from backbone_support import small_networks
from clusters import clusters, shown
from meanteacher.core import UNLABELLED, InputError
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.features.extraction import Extraction
from meanteacher.photos.fitting import heads, pretrained, scratch, work
from meanteacher.photos.fitting.estimate import cross_validated, label_doubts
from meanteacher.photos.fitting.heads import logistic_regression
from meanteacher.photos.fitting.label_next import label_next
from meanteacher.photos.fitting.pretrained import labels_alone, resumed_backbones
from meanteacher.schedules import Cosine, LinearWarmUp, Product


def _of_chance() -> tuple[np.ndarray, np.ndarray]:
    """Features that say nothing about the labels, of so many dimensions that a classifier learns each by heart."""
    draws = np.random.default_rng(4)
    return draws.normal(size=(1, 60, 150)).astype(np.float32), draws.integers(3, size=60)


def a_label_that_judges_has_taught_nothing() -> None:
    features, labels = _of_chance()
    tested = cross_validated(features, labels, 3, groups=np.arange(60), seed=0)
    assert tested.wrong.mean() > 0.45, f"chance is right about {1 - tested.wrong.mean():.0%} of the labels"


def a_doubt_does_not_know_its_label() -> None:
    features, labels = _of_chance()
    doubts = label_doubts(features[0], labels, 3, groups=np.arange(60), seed=0)
    assert np.mean(doubts > 0) > 0.4, "labels are confirmed by themselves"


def the_baseline_sees_the_photos_themselves() -> None:
    features, truth = clusters(3, 90, n_views=4)
    labels = shown(truth, 7)
    known = labels != UNLABELLED
    expected = logistic_regression(features[0][known], labels[known], 3)
    assert np.array_equal(labels_alone(features, labels, 3, seed=0).weight, expected.weight), "it sees another view"


def each_class_is_shown_alike_and_the_student_sees_what_the_teacher_does_not() -> None:
    labels = np.array([0] * 40 + [1] * 4 + [UNLABELLED] * 60)
    rows, views = heads._drawn(labels, 6, np.random.default_rng(0))
    n_labelled = 32
    share = np.mean(labels[rows[:, :n_labelled]] == 1)
    assert 0.45 < share < 0.55, f"a class with a tenth of the labels has {share:.0%} of the rows"
    assert set(np.unique(views[:, n_labelled:])) == {3, 4, 5}, "the student sees the teacher's views"
    assert set(np.unique(views[:, :n_labelled])) == set(range(6)), "labelled photos are shown in some views only"


_NUMBERS: dict[Any, dict[str, object]] = {
    heads: {
        "_STRENGTH": 10.0,
        "_TEMPERATURE": 0.45,
        "_FEWEST": 20,
        "_MOST": 10_000,
        "_UNEQUAL": 3.0,
        "_SHRINKING": 10.0,
        "_DIMENSIONS": 128,
        "_NEIGHBOURS": (5, 10),
        "_FROM_NEIGHBOURS": 0.5,
        "_SPREADS": 5,
        "_TEACHER_VIEWS": 3,
        "_ROUNDS": 60,
        "_STEPS": 10,
        "_LABELLED_ROWS": 32,
        "_ROWS": 256,
        "_DECAY": 0.99,
        "_THRESHOLD": 0.7,
        "_SHARPENING": 0.1,
        "_RATE": Product((LinearWarmUp(first=0.0, value=0.1, steps=20), Cosine(value=1.0, steps=600))),
    },
    pretrained: {"_DEFAULT": ("lite0", "lite2"), "_SIZE": 224, "_SMALL_SIZE": 160, "_FIRST_SHARE": 0.7, "SMALL": 48},
    scratch: {
        "_ROWS": 192,
        "_LABELLED_ROWS": 96,
        "_WIDTHS": (1.0, 0.5, 0.25),
        "_MANY_LABELS": 1000,
        "_TRAINING_SHARE": 0.85,
        "_TRIAL_SHARE": 0.08,
        "_TRIAL_SECONDS": 60.0,
        "_TRIAL_RATIO": 1.2,
        "_TRIAL_STEPS": 150,
    },
    work: {"_SLOWER": 1.25, "_READING_SHARE": 0.5},
}
"""What docs/experiments has measured."""


def a_fit_has_these_numbers() -> None:
    for module, numbers in _NUMBERS.items():
        found = {name: getattr(module, name) for name in numbers}
        assert found == numbers, f"{module.__name__} has other numbers: {found}"


def an_image_is_asked_about_if_it_is_unsure_and_unlike_every_label() -> None:
    """562 labels of two kinds, the first 500 of one; of the images without a label some are of a third kind."""
    draws = np.random.default_rng(0)
    centres = 5 * np.eye(4, 20)
    kinds = np.repeat([0, 1, 0, 1, 2, 3], [500, 62, 6, 9, 5, 7])
    features = (centres[kinds] + draws.normal(size=(len(kinds), 20)) / 4).astype(np.float32)
    probabilities = np.full((len(kinds), 2), 0.5, np.float32)
    probabilities[kinds == 3] = [0.999, 0.001]
    probabilities[:, 0] += draws.uniform(0, 1e-3, len(kinds))
    candidates, labelled = np.arange(562, len(kinds)), np.arange(562)
    options: dict[str, Any] = {"n": 1, "features": features, "labelled": labelled}
    (chosen,) = label_next(probabilities, candidates, np.arange(len(kinds)), ["a", "b"], **options)
    assert kinds[chosen.index] == 2, "an image is asked about that is sure, or like one with a label"
    (chosen,) = label_next(probabilities[561:], np.array([0, 25]), np.arange(28), ["a", "b"], n=1)
    assert chosen.index == 0, "a sure image is asked about"


def features_are_those_of_the_pixels() -> None:
    """Also if the file of an earlier fit is full of zeros, or of another folder."""
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        small_networks(patch)

        def looked(images: np.ndarray, pixels: str) -> np.ndarray:
            network = find_backbone("lite0")
            options: dict[str, Any] = {"view": "plain", "flip": True, "order": np.arange(5)}
            found = Extraction(images=images, backbone=network, file=folder / pixels, **options).run()
            return np.array(found)

        first = looked(images, "pixels")
        (file,) = folder.glob("*.npy")
        stored = np.load(file, mmap_mode="r+")
        stored[2:4] = 0
        stored.flush()
        assert np.array_equal(looked(images, "pixels"), first), "features are used that are not as they were written"
        other = looked(images[::-1].copy(), "others")
        assert np.array_equal(other, first[::-1]), "features are those of other pixels"


def a_folder_loads_nothing_unasked() -> None:
    with pytest.raises(InputError, match="begun with the network 'timm:resnet18'"):
        resumed_backbones(("lite0", "timm:resnet18"), "auto", Path("fit"))


DETECTORS = (
    a_label_that_judges_has_taught_nothing,
    a_doubt_does_not_know_its_label,
    the_baseline_sees_the_photos_themselves,
    each_class_is_shown_alike_and_the_student_sees_what_the_teacher_does_not,
    a_fit_has_these_numbers,
    an_image_is_asked_about_if_it_is_unsure_and_unlike_every_label,
    features_are_those_of_the_pixels,
    a_folder_loads_nothing_unasked,
)
