"""What must hold of a fit: who may know which label, what ships, and that every number is the one that was counted."""

from collections.abc import Callable
from functools import cache

import fit_world
import numpy as np
import pytest
from catalogue import Checks, named
from fit_world import ANOTHER, CLASSES, Fit

from meanteacher.photos.fitting.estimate import OutOfFold
from meanteacher.photos.fitting.heads import Head
from meanteacher.photos.model.bundle import load

_CLOSE = 5e-3
"""Features are kept in half precision."""


def no_label_is_tested_by_a_model_that_knows_it_or_a_copy_of_the_photo(fit: Fit) -> None:
    """The first photo of each class looks like the next class, and so does its copy: a model that has seen one of them
    would agree with the label of the other."""
    rows = {row["path"]: row for row in fit.judged}
    for label, other in zip(CLASSES, (*CLASSES[1:], CLASSES[0]), strict=True):
        for name in (f"{label}/00.png", f"{label}/copy-00.png"):
            assert rows[name]["guess"] == other, f"{name}: the answer knows its label"


def every_readable_label_is_tested_once(fit: Fit) -> None:
    assert {row["path"]: row["given"] for row in fit.judged} == fit.photos.labels
    for row in fit.table("predictions.csv"):
        if row["path"] in fit.photos.unreadable:
            assert row["problem"], "a file that is no image has an answer"
            assert not row["guess"]


def the_estimate_weighs_each_class_by_its_share_of_the_folder(fit: Fit) -> None:
    estimate, classes = fit.content["estimate"], fit.content["per_class"]
    wrong = {name: [row["guess"] != name for row in fit.judged if row["given"] == name] for name in CLASSES}
    expected = sum(row["share"] * np.mean(wrong[row["name"]]) for row in classes)
    assert estimate["error"] == pytest.approx(expected), "another error"
    assert (estimate["n"], estimate["wrong"]) == (len(fit.judged), sum(map(sum, wrong.values())))
    assert estimate["low"] < estimate["error"] < estimate["high"]
    shares = [row["share"] for row in classes]
    assert sum(shares) == pytest.approx(1)
    assert shares[0] > 0.36, "the most frequent class of the folder is not the most frequent one of the estimate"
    about = fit.manifest["about"]["estimate"]
    assert about["error"] == estimate["error"], "the model carries another error"


def confusions_and_classes_are_counted_by_the_true_class(fit: Fit) -> None:
    truth, guess = (np.array([CLASSES.index(row[key]) for row in fit.judged]) for key in ("given", "guess"))
    table = fit_world.confusion(truth, guess, len(CLASSES))
    assert fit.content["confusion"] == table, "the confusion matrix is another"
    free = [row["guess"] for row in fit.answers if not row["given"]]
    labelled = list(fit.photos.labels.values())
    for k, row in enumerate(fit.content["per_class"]):
        assert row["name"] == CLASSES[k]
        assert row["n_tested"] == sum(table[k]), f"{row['name']}: n_tested"
        assert row["n_labelled"] == labelled.count(row["name"]), f"{row['name']}: n_labelled"
        assert row["n_predicted"] == free.count(row["name"]), f"{row['name']}: n_predicted"
        assert row["error"] == pytest.approx(1 - table[k][k] / sum(table[k])), f"{row['name']}: error"
    data, readable = fit.content["data"], len(fit.photos.names) - len(fit.photos.unreadable)
    counts = (len(fit.photos.names), len(labelled), readable - len(labelled), len(fit.photos.unreadable))
    assert tuple(data[f"n_{key}"] for key in ("images", "labelled", "unlabelled", "unreadable")) == counts


def answers_for_unlabelled_photos_are_those_of_the_shipped_model(fit: Fit) -> None:
    assert [row["path"] for row in fit.table("predictions.csv")] == list(fit.photos.names), "another order"
    assert tuple(fit.manifest["class_names"]) == CLASSES, "the classes are in another order"
    for row in fit.answers:
        if not row["given"]:
            p = fit.probabilities[fit.index(row["path"])]
            assert float(row["confidence"]) == pytest.approx(p.max(), abs=_CLOSE), f"{row['path']}: confidence"
            assert p[CLASSES.index(row["guess"])] == pytest.approx(p.max(), abs=_CLOSE), f"{row['path']}: guess"


def answers_for_labelled_photos_are_those_of_cross_validation(fit: Fit) -> None:
    logits = {fit.photos.names[k]: row for k, row in zip(fit.tested.positions, fit.tested.logits, strict=True)}
    told = fit.content["calibration"]["temperature"]
    assert fit.manifest["temperature"] == pytest.approx(told), "the model has another temperature than is told"
    for row in fit.judged:
        p = fit_world.softmax(logits[row["path"]][None] / told)[0]
        assert float(row["confidence"]) == pytest.approx(p.max(), abs=_CLOSE), f"{row['path']}: confidence"


def the_error_is_that_of_the_model_that_ships(fit: Fit) -> None:
    """Regression on the labels is fitted and tested as well, as a baseline."""
    shipped = load(fit.out).network[-1].weight.detach().numpy()
    heads = {name for name, each in fit.recipes if isinstance(each, Head) and np.array_equal(each.weight, shipped)}
    assert len(heads) == 1, "the head of the model is none of those that were fitted"
    tests = [each for name, each in fit.recipes if name in heads and isinstance(each, OutOfFold)]
    assert np.array_equal(fit.tested.logits, tests[-1].logits), "the error is that of another model"


def sure_answers_are_counted_among_unlabelled_and_judged_by_labelled_photos(fit: Fit) -> None:
    free = [float(row["confidence"]) for row in fit.answers if not row["given"]]
    shares = {row["name"]: row["share"] / row["n_tested"] for row in fit.content["per_class"]}
    for told in fit.content["sure"]:
        sure = [row for row in fit.judged if float(row["confidence"]) >= told["confidence"]]
        assert told["share"] == pytest.approx(np.mean([c >= told["confidence"] for c in free]), abs=0.01)
        assert told["n"] == len(sure)
        if sure:
            weights = [shares[row["given"]] for row in sure]
            wrong = [row["given"] != row["guess"] for row in sure]
            assert told["error"] == pytest.approx(np.average(wrong, weights=weights), abs=0.01)


def labels_that_look_wrong_are_shown_and_no_others(fit: Fit) -> None:
    rows = {row["path"]: row for row in fit.judged}
    shown = {picture["name"]: picture["reason"] for picture in fit.content["gallery"]["disagreements"]}
    assert set(shown) == {name for name, row in rows.items() if float(row["doubt"]) >= 0.4}
    assert next(iter(shown)) in {ANOTHER, *(f"{label}/00.png" for label in CLASSES)}, "a wrong label is not shown first"
    for name, reason in shown.items():
        start, other = f"labelled {rows[name]['given']}, looks like ", rows[name]["guess"]
        assert reason.startswith(start)
        assert reason.removeprefix(start) != rows[name]["given"]
        assert other in (rows[name]["given"], reason.removeprefix(start))


def unlabelled_images_are_asked_about_next_and_each_picture_once(fit: Fit) -> None:
    asked = [row["path"] for row in fit.table("label-next.csv")]
    same = {other: one for one, other in fit.photos.copies}
    possible = {n for n in fit.photos.names if n not in fit.photos.labels and n not in fit.photos.unreadable}
    assert set(asked) <= possible, "an image with a label, or that cannot be read, is asked about"
    once = [same.get(name, name) for name in asked]
    assert len(set(once)) == len(once), "two copies of an image are asked about"
    assert len(once) == len({same.get(name, name) for name in possible}), "another number of images is asked about"


def images_that_taught_the_model_are_known_again(fit: Fit) -> None:
    told = load(fit.out).evaluate(fit.photos.root, device="cpu")
    assert told["judged"] == "training", "images that taught the model judge it"
    assert told["seen"]["training"]["n_judged"] == len(fit.photos.labels)


CHECKS: tuple[Callable[[Fit], None], ...] = (
    no_label_is_tested_by_a_model_that_knows_it_or_a_copy_of_the_photo,
    every_readable_label_is_tested_once,
    the_estimate_weighs_each_class_by_its_share_of_the_folder,
    confusions_and_classes_are_counted_by_the_true_class,
    answers_for_unlabelled_photos_are_those_of_the_shipped_model,
    answers_for_labelled_photos_are_those_of_cross_validation,
    the_error_is_that_of_the_model_that_ships,
    sure_answers_are_counted_among_unlabelled_and_judged_by_labelled_photos,
    labels_that_look_wrong_are_shown_and_no_others,
    unlabelled_images_are_asked_about_next_and_each_picture_once,
    images_that_taught_the_model_are_known_again,
)


def of_a_fit() -> Checks:
    """Checks of one fit, which is made when the first of them asks for it."""
    once = cache(fit_world.make_fit)
    return {name: lambda check=check: check(once()) for name, check in named(CHECKS).items()}
