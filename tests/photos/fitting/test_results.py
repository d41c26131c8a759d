"""The numbers that a fit reports: who has an answer and from whom, and what the tables and the gallery say of it."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting import results
from meanteacher.photos.fitting.data import FitData, Learned
from meanteacher.photos.fitting.estimate import OutOfFold, error_estimate
from meanteacher.photos.fitting.label_next import Suggestion
from meanteacher.photos.fitting.results import answers_of
from meanteacher.photos.folder.cache import Decoded
from meanteacher.photos.folder.duplicates import Duplicates
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.tables import NONE_OF_THESE
from meanteacher.photos.model.predict import Known
from meanteacher.records import Since

NAMES = ("h.png", "b.png", "=c.png", "z.png", "a.png", "y.png", "d.png", "x.png", "f.png", "w.png", "g.png", "e.png")
LABELS = [2, -1, 0, 1, 2, -1, 2, -1, 1, -1, -1, -1]
"""Of "ant" there is one label, so it is not tested. Photo 5 cannot be read, 10 is of no class, 11 came too late."""
TESTED = [0, 3, 4, 6, 8]
MISSING = {5: "truncated", 10: NONE_OF_THESE, 11: "not reached in the given minutes"}


@pytest.fixture
def data() -> FitData:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)
    labels, near = np.array(LABELS), np.arange(12)
    photos = Photos(
        Path("x.npz"), NAMES, labels, ("ant", "bee", "-cat"), pixels, none_of_these=frozenset({10}),
        random=frozenset({6, 3}),
    )  # fmt: skip
    return FitData(
        photos=photos,
        decoded=Decoded(pixels.transpose(0, 3, 1, 2), {5: "truncated"}),
        duplicates=Duplicates((), near, near),
        left_out={k: MISSING[k] for k in (5, 10)},
        labels=labels,
        taken=np.full(12, np.nan),
        group_by=None,
    )


def log(*p: list[float]) -> np.ndarray:
    return np.log(np.array(p, np.float32))


@pytest.fixture
def learned() -> Learned:
    """Its own answers for labelled photos are those that the labels taught, so they differ from the tested ones."""
    answers = np.full((12, 3), 1 / 3)
    answers[[1, 7, 9]] = [0.7, 0.1, 0.2], [0.1, 0.25, 0.65], [0.05, 0.05, 0.9]
    logits = 2 * np.log(answers).astype(np.float32)  # the temperature is 2
    logits[list(MISSING)] = np.nan
    tested = log([0.1, 0.2, 0.7], [0.2, 0.25, 0.55], [0.05, 0.03, 0.92], [0.6, 0.3, 0.1], [0.01, 0.98, 0.01])
    positions = np.array(TESTED)
    directions = np.array([[1, 0], [0, 1]], np.float32)
    features = np.zeros((12, 2), np.float32)
    features[1], features[7], features[9] = (3, 0), (-1, -1), (3, 4)
    return Learned(
        network=nn.Identity(),
        normalise=nn.Identity(),
        spec=cast(Any, None),
        logits=logits,
        out_of_fold=OutOfFold(positions, np.array(LABELS)[positions], 2 * tested, 2.0, positions),
        baseline=None,
        missing=MISSING,
        title="a network",
        features=features,
        known=Known(torch.from_numpy(directions), 0.4),
    )


def test_labelled_photos_get_the_answers_of_the_test_and_others_those_of_the_model(data: FitData, learned: Learned):
    answers = answers_of(learned, data.labels)
    assert answers.unlabelled.tolist() == [1, 7, 9]
    p = answers.probabilities
    np.testing.assert_allclose(p[[1, 7, 9]], [[0.7, 0.1, 0.2], [0.1, 0.25, 0.65], [0.05, 0.05, 0.9]], atol=1e-5)
    np.testing.assert_allclose(p[[0, 3]], [[0.1, 0.2, 0.7], [0.2, 0.25, 0.55]], atol=1e-5)
    assert np.isnan(p[[2, 5, 10, 11]]).all()
    assert answers.guesses.tolist() == [2, 0, UNLABELLED, 2, 2, UNLABELLED, 0, 2, 1, 2, UNLABELLED, UNLABELLED]
    assert answers.why_none.keys() == {2, *MISSING}
    assert {k: answers.why_none[k] for k in MISSING} == MISSING
    assert "none could be tested" in answers.why_none[2]


def test_a_doubt_is_how_much_more_probable_another_class_is(data: FitData, learned: Learned):
    doubts = answers_of(learned, data.labels).doubts
    assert np.flatnonzero(~np.isnan(doubts)).tolist() == TESTED
    np.testing.assert_allclose(doubts[TESTED], [0, 0.3, 0, 0.5, 0], atol=1e-5)
    known = np.linspace(0, 1, 12)
    assert answers_of(replace(learned, doubts=known), data.labels).doubts is known


def test_unlabelled_photos_alone_are_compared_with_the_known_ones(data: FitData, learned: Learned):
    strange = answers_of(learned, data.labels).strangeness
    assert np.flatnonzero(~np.isnan(strange)).tolist() == [1, 7, 9]
    np.testing.assert_allclose(strange[[1, 7, 9]], [0, (1 + np.sqrt(0.5)) / 0.4, 0.5], atol=1e-5)
    for unknown in (replace(learned, known=None), replace(learned, features=None)):
        assert np.isnan(answers_of(unknown, data.labels).strangeness).all()


def rows(text: str) -> list[dict[str, str]]:
    assert text.startswith("\ufeff")
    return list(csv.DictReader(text.removeprefix("\ufeff").splitlines()))


def test_the_table_of_predictions_holds_label_answer_and_reason_of_each_photo(data: FitData, learned: Learned):
    table = rows(results._prediction_rows(data, answers_of(learned, data.labels)))
    assert [row["path"] for row in table] == [name if name[0] != "=" else f"'{name}" for name in NAMES]
    assert [row["given"] for row in table] == [["ant", "bee", "'-cat", ""][k] for k in LABELS]
    cells = "w.png", "", "'-cat", "0.9000", "ant", "0.0500", "bee", "0.0500", "0.50", "", ""
    assert tuple(table[9].values()) == cells
    assert (table[3]["guess"], table[3]["confidence"], table[3]["doubt"]) == ("'-cat", "0.5500", "0.30")
    assert [k for k, row in enumerate(table) if not row["guess"]] == [2, 5, 10, 11]
    assert [row["problem"] for row in table if row["problem"]][1:] == list(MISSING.values())


def test_the_table_of_what_to_label_next_holds_the_guess_and_the_reason(data: FitData, learned: Learned):
    answers = answers_of(learned, data.labels)
    asked = [Suggestion(7, "unsure"), Suggestion(1, "=like another")]
    assert rows(results._label_next_rows(data.photos, answers, asked)) == [
        {"path": "x.png", "guess": "'-cat", "confidence": "0.6500", "reason": "unsure"},
        {"path": "b.png", "guess": "ant", "confidence": "0.7000", "reason": "'=like another"},
    ]


def test_the_fit_before_is_compared_on_photos_labelled_then_or_drawn_at_random_since(
    data: FitData, learned: Learned, tmp_path: Path
):
    answers = answers_of(learned, data.labels)
    assert results._since(tmp_path, data, answers) is None
    results.keep_earlier_answers(tmp_path)  # there are none
    before = [
        ("h.png", "'-cat", "bee"),  # labelled then, wrong then and right now
        ("z.png", "", "bee"),  # drawn at random since, right then and wrong now
        ("a.png", "", "ant"),  # labelled since, because the model was unsure
        ("d.png", "'-cat", ""),  # not tested then
        ("=c.png", "ant", "ant"),  # not tested now
        ("f.png", "bee", "bee"),
        ("x.png", "bee", "ant"),  # its label is gone
    ]
    lines = ["path,given,guess", *(",".join(row) for row in before)]
    (tmp_path / "predictions.csv").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    results.keep_earlier_answers(tmp_path)
    assert not (tmp_path / "predictions.csv").exists()
    assert results._since(tmp_path, data, answers) == Since(n=3, before=1, now=1)
    nothing = replace(data, photos=replace(data.photos, names=tuple(f"new {name}" for name in NAMES)))
    assert results._since(tmp_path, nothing, answers) is None


def test_each_class_has_its_labels_tests_errors_and_share(data: FitData, learned: Learned):
    answers, tested = answers_of(learned, data.labels), learned.out_of_fold
    found = results._per_class(data, answers, tested, error_estimate(tested, np.array([0.2, 0.5, 0.3])))
    assert [one.name for one in found] == ["ant", "bee", "-cat"]
    assert [one.n_labelled for one in found] == [1, 2, 3]
    assert [one.n_tested for one in found] == [0, 2, 3]
    assert [one.n_predicted for one in found] == [1, 0, 2]
    assert [one.share for one in found] == [0.2, 0.5, 0.3]
    assert [one.error for one in found] == [None, 0.5, pytest.approx(1 / 3)]


def test_photos_that_the_model_is_sure_of_are_wrong_as_often_as_in_the_mix_of_the_folder(learned: Learned):
    tested, estimate = learned.out_of_fold, error_estimate(learned.out_of_fold, np.array([0.0, 0.6, 0.4]))
    # Both answers are exactly as probable.
    even = np.array([[0, 0, -1e9], [0, -1e9, 0]], np.float32)
    tested = replace(tested, logits=np.concatenate([even[:1], tested.logits[1:]]))
    unlabelled = np.array([[0.93, 0.04, 0.03], [0.5, 0.5, 0.0], [0.4, 0.3, 0.3], [0.1, 0.8999, 0.0001]], np.float32)
    half, more, much, most = results._sure(unlabelled, tested, estimate)
    assert [one.confidence for one in (half, more, much, most)] == [0.5, 0.8, 0.9, 0.95]
    assert [one.share for one in (half, more, much, most)] == [0.75, 0.5, 0.25, 0]
    # Confidences 0.5, 0.55, 0.92, 0.6, 0.98 of labels 2, 1, 2, 2, 1, of which the first, second and fourth are wrong.
    # A photo of class 1 stands for 0.6 / 2 of the folder, one of class 2 for 0.4 / 3.
    assert (half.n, more.n, much.n, most.n) == (5, 2, 2, 1)
    assert half.error == pytest.approx(0.3 + 2 * 0.4 / 3)
    assert more.error == 0
    assert most.error == 0


def test_without_unlabelled_photos_the_tested_ones_show_how_many_are_sure_and_without_both_none_is(learned: Learned):
    tested = learned.out_of_fold
    estimate = error_estimate(tested, np.full(3, 1 / 3))
    nothing = np.zeros((0, 3), np.float32)
    assert [one.share for one in results._sure(nothing, tested, estimate)[1:]] == pytest.approx([0.4, 0.4, 0.2], abs=0)
    empty = np.zeros(0, np.int64)
    none = OutOfFold(empty, empty, nothing, 1.0, empty)
    for one in results._sure(nothing, none, error_estimate(none, np.full(3, 1 / 3))):
        assert (one.share, one.error, one.n) == (0.0, None, 0)


def test_a_sure_photo_that_is_wrong_in_every_test_has_an_error_of_one(learned: Learned):
    labels = np.array([1, 2, 1, 1, 0])
    tested = replace(learned.out_of_fold, labels=labels, logits=np.array([[9, 0, 0]] * 5, np.float32))
    found = results._sure(np.zeros((0, 3), np.float32), tested, error_estimate(tested, np.array([0.0, 0.7, 0.3])))
    assert [one.error for one in found] == [1.0] * 4


def test_the_gallery_shows_doubtful_labels_strangers_suggestions_and_the_surest_photos(data: FitData, learned: Learned):
    answers = answers_of(learned, data.labels)
    shown = results._gallery(data, answers, [Suggestion(9, "why"), Suggestion(1, "because")])
    assert [(one.name, one.reason) for one in shown["disagreements"]] == [("d.png", "labelled -cat, looks like ant")]
    assert [(one.name, one.reason) for one in shown["strangers"]] == [("x.png", "perhaps of none of the classes")]
    assert [(one.name, one.reason) for one in shown["label_next"]] == [("w.png", "why"), ("b.png", "because")]
    assert [(one.name, one.reason) for one in shown["most_confident"]] == [("w.png", ""), ("b.png", ""), ("x.png", "")]
    (picture,) = shown["strangers"]
    assert (picture.label, picture.confidence) == ("-cat", pytest.approx(0.65))
    assert picture.thumb.startswith("data:image/jpeg")


def test_a_label_that_agrees_with_the_answer_looks_like_the_second_class(data: FitData, learned: Learned):
    """Neighbours may doubt a label that the head agrees with."""
    doubts = np.full(12, np.nan)
    doubts[[0, 3]] = 0.4, 0.9
    answers = answers_of(replace(learned, doubts=doubts), data.labels)
    found = results._gallery(data, answers, [])["disagreements"]
    assert [one.reason for one in found] == ["labelled bee, looks like -cat", "labelled -cat, looks like bee"]


def test_a_row_of_the_gallery_has_the_twelve_highest_values_of_equal_ones_the_first():
    values = np.array([0.1, 0.9, 0.5, 0.5, *np.linspace(0.6, 0.8, 11)])
    found = results._most(np.arange(100, 115), values)
    assert found == [101, *range(114, 103, -1)]
    assert results._most(np.arange(4), np.array([0.5, 0.9, 0.5, 0.7])) == [1, 3, 0, 2]


def test_the_report_counts_photos_of_no_class_neither_as_unlabelled_nor_as_unreadable(data: FitData, tmp_path: Path):
    n_labels = np.bincount(data.labels[data.labelled])
    found = results._described(data, n_labels)
    assert (found.n_images, found.n_labelled, found.n_unlabelled, found.n_unreadable) == (12, 6, 4, 1)
    assert (found.labelled_per_class, found.size, found.source, found.labels_file) == ((1, 2, 3), 4, "npz", None)
    in_files = replace(data.photos, arrays=None, labels_file=tmp_path / "labels.csv")
    found = results._described(replace(data, photos=in_files), n_labels)
    assert (found.source, found.labels_file) == ("csv", str((tmp_path / "labels.csv").resolve()))
    assert results._described(replace(data, photos=replace(in_files, labels_file=None)), n_labels).source == (
        "class folders"
    )
