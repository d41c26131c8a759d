"""What a fit says first about its model."""

import numpy as np

from meanteacher.photos.fitting.estimate import OutOfFold, error_estimate
from meanteacher.photos.pages.sentences import headline
from meanteacher.records import ClassResult

NAMES = ("daisy", "rose", "tulip", "lily", "moss")


def said(wrong: list[int], n: int = 10) -> str:
    """The headline about n tested photos of each class, of which so many were taken for the next class."""
    labels = np.repeat(np.arange(len(NAMES)), n)
    missed = np.concatenate([np.arange(n) < w for w in wrong])
    logits = np.eye(len(NAMES), dtype=np.float32)[(labels + missed) % len(NAMES)]
    tested = OutOfFold(np.arange(len(labels)), labels, logits, 1.0, np.arange(len(labels)))
    estimate = error_estimate(tested, np.full(len(NAMES), 1 / len(NAMES)))
    per_class = [
        ClassResult(name=name, n_labelled=n, n_tested=n, error=error, n_predicted=0, share=0.2)
        for name, error in zip(NAMES, estimate.per_class, strict=True)
    ]
    return headline(estimate, per_class, n_next=2)


def test_the_weakest_class_is_named() -> None:
    assert (
        said([0, 1, 4, 0, 0]) == "Right on about 9 of 10 new photos (71 to 97 %). Weakest: tulip. Next: label these 2."
    )
    assert "Weakest" not in said([0, 0, 0, 0, 0])


def test_classes_that_are_hardly_ever_recognised_are_named_instead() -> None:
    assert ". Hardly ever recognised: rose. Next" in said([2, 8, 7, 0, 0])
    assert ". Hardly ever recognised: rose and tulip. Next" in said([2, 8, 9, 0, 0])
    assert ". Hardly ever recognised: daisy, rose, tulip and 2 more. Next" in said([9, 8, 9, 10, 8])
    assert "Hardly" not in said([0, 2, 0, 0, 0], n=2), "two photos are too few to say so"
