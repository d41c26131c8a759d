"""What must hold of a fit from end to end: who taught and who judged, what ships, and every number that is told.

Each check takes the folder that a fit left and compares it with what `fit_world` computes from the images, the
checkpoints and the shipped weights.
"""

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import fit_world
import numpy as np
import pytest
from catalogue import Checks, named
from fit_world import CLASSES, METHODS, NEW_CLASS, Fit, Judged, calibration_error, paired, softmax, under, wilson
from safetensors.torch import load_file

from meanteacher.core import Problem
from meanteacher.photos.fitting import crossval, results
from meanteacher.photos.fitting.warm_start import read_earlier_fit
from meanteacher.photos.model.bundle import load

_KINDS = {"mean-teacher": "MeanTeacher", "supervised": "Supervised"}
_CLOSE = 1e-3
"""Between an output in single and in double precision."""


# --- who teaches, who judges ------------------------------------------------------------------------------------------


def no_image_judges_what_it_taught(fit: Fit) -> None:
    names, labelled = fit.photos.names, {fit.index(name) for name in fit.labels}
    readable = [k for k, name in enumerate(names) if name not in fit.photos.unreadable]
    judges: list[int] = []
    for name, run in fit.runs.items():
        taught, judging = set(run.split["labelled"]), set(run.split["validation"])
        assert not taught & judging, f"{name}: images judge what they taught"
        assert taught | judging == labelled, f"{name}: labels are lost, or images without one teach"
        # Who is neither labelled nor judges is learned from without a label, unless it is a copy of one that judges.
        copies = {
            n
            for pair in fit.photos.copies
            if {fit.index(n) for n in pair} & judging
            for n in pair
            if n not in fit.labels
        }
        assert run.split["examples"] == [len(readable) - len(copies)], f"{name}: images are learned from that must not"
        judges += sorted(judging) if name.startswith("supervised") else []
        for one, other in fit.photos.copies:
            sides = {fit.index(n) in judging for n in (one, other) if n in fit.labels}
            assert len(sides) < 2, f"{name}: {one} and {other} are copies on both sides"
    assert len(set(judges)) == len(judges), "an image judges twice"
    if fit.content["estimate"]["how"] == "folds":
        assert set(judges) == labelled, "an image with a label never judges"
    assert fit.content["held_out"] == ([] if set(judges) == labelled else [names[k] for k in judges])
    for one in METHODS:
        alike = {n.removeprefix(one): run.split for n, run in fit.runs.items() if n.startswith(one) and "all" not in n}
        assert alike == {
            n.removeprefix(METHODS[0]): run.split
            for n, run in fit.runs.items()
            if n.startswith(METHODS[0]) and "all" not in n
        }, "the methods are compared on different images"


def every_class_is_judged_in_its_share(fit: Fit) -> None:
    of_all = np.array([list(fit.labels.values()).count(name) for name in fit.class_names])
    of_judged = np.bincount(fit.judged.truth, minlength=len(fit.class_names))
    share = len(fit.judged.rows) / len(fit.labels)
    assert (abs(of_judged - share * of_all) <= 3).all(), f"{of_judged} judge, of {of_all}"


def the_normalisation_knows_only_images_that_teach(fit: Fit) -> None:
    readable = [k for k, name in enumerate(fit.photos.names) if name not in fit.photos.unreadable]
    for name, run in fit.runs.items():
        judging = set(run.split["validation"])
        if not judging:
            continue
        hidden = {fit.index(n) for pair in fit.photos.copies if {fit.index(n) for n in pair} & judging for n in pair}
        seen = [k for k in readable if k not in hidden | judging]
        pixels, found = fit.photos.pixels[seen] / 255, run.tensors("normalise")
        for part, expected in (("mean", pixels.mean((0, 2, 3))), ("deviation", pixels.std((0, 2, 3)))):
            assert np.allclose(found[part].flatten(), expected, atol=1e-5), f"{name}: {part} of other images"


def what_judges_are_the_outputs_of_the_teachers(fit: Fit) -> None:
    better = fit.judged.better
    for method in METHODS:
        found = fit.given[2].results[method].logits
        assert np.allclose(found, fit.judged.logits[method], atol=_CLOSE), f"{method}: other outputs are judged"
    run = next(run for name, run in fit.runs.items() if name.startswith(better) and run.split["validation"])
    teacher, student = (
        run.logits(weights, run.split["validation"]) for weights in (run.teacher, run.tensors("student"))
    )
    assert abs(teacher - student).max() > 10 * _CLOSE, "student and teacher are alike, so this tells nothing"


# --- what ships -------------------------------------------------------------------------------------------------------


def what_ships_is_the_teacher_of_the_better_method(fit: Fit) -> None:
    better, how = fit.judged.better, fit.content["estimate"]["how"]
    assert fit.content["answer"]["shipped"] == better, "the other method is said to ship"
    manifest = json.loads((fit.out / "model" / "model.json").read_text())
    assert manifest["about"]["method"] == better, "the model is said to be of the other method"
    run = fit.runs[better if how == "held-out" else f"{better}-on-all-labels"]
    assert run.recipe["training"]["method"]["is"].endswith(_KINDS[better]), "the last training is of the other method"
    weights = load_file(fit.out / "model" / "weights.safetensors")
    network, teacher, student = under("network.", weights), run.teacher, run.tensors("student")
    assert any(not teacher[name].equal(student[name]) for name in student), "both are equal, so this tells nothing"
    assert network.keys() == teacher.keys()
    assert all(network[name].equal(teacher[name]) for name in teacher), "other weights ship than the better teacher's"
    normalise = run.tensors("normalise")
    assert all(under("normalise.", weights)[name].equal(normalise[name]) for name in normalise)
    assert manifest["class_names"] == fit.class_names, "the classes are in another order"


# --- what is told -----------------------------------------------------------------------------------------------------


def errors_and_intervals_are_those_of_the_judged_outputs(fit: Fit) -> None:
    estimate, n = fit.content["estimate"], len(fit.judged.truth)
    assert estimate["n"] == n
    for method in METHODS:
        said, wrong = estimate["errors"][method], int(fit.judged.wrong(method).sum())
        assert said["wrong"] == wrong, f"{method}: {said['wrong']} errors are told, {wrong} were made"
        expected = (wrong / n, *wilson(wrong, n))
        assert np.allclose([said[key] for key in ("error", "low", "high")], expected, atol=1e-6), f"{method}: interval"
    difference = [estimate["difference"][key] for key in ("points", "low", "high")]
    points = 100 * np.array(paired(*(fit.judged.wrong(method) for method in METHODS)))
    assert np.allclose(difference, points, atol=1e-4), f"the difference is {points}, told is {difference}"
    verdict = "yes" if points[1] > 0 else "no" if points[2] < 0 else "unclear"
    assert fit.content["answer"]["helped"] == verdict, "the answer is not what the interval says"
    about = json.loads((fit.out / "model" / "model.json").read_text())["about"]["estimate"]
    assert about["wrong"] == fit.judged.wrong(fit.judged.better).sum(), "the model carries the error of another"


def confusions_and_classes_are_counted_by_the_true_class(fit: Fit) -> None:
    guess, truth = fit.judged.logits[fit.judged.better].argmax(1), fit.judged.truth
    table = fit_world.confusion(truth, guess, len(fit.class_names))
    assert fit.content["confusion"] == table, "the confusion matrix is another"
    predicted = [row["label"] for row in fit.table("predictions.csv") if not row["problem"]]
    labelled = list(fit.labels.values())
    assert [row["name"] for row in fit.content["per_class"]] == fit.class_names
    for k, row in enumerate(fit.content["per_class"]):
        n = sum(table[k])
        assert row["n_judged"] == n, f"{row['name']}: n_judged"
        assert row["n_labelled"] == labelled.count(row["name"]), f"{row['name']}: n_labelled"
        assert row["n_predicted"] == predicted.count(row["name"]), f"{row['name']}: n_predicted"
        error = None if n == 0 else 1 - table[k][k] / n
        assert row["error"] == (error if error is None else pytest.approx(error)), f"{row['name']}: error"
    data = fit.content["data"]
    assert data["labelled_per_class"] == [labelled.count(name) for name in fit.class_names]
    readable = len(fit.photos.names) - len(fit.photos.unreadable)
    counts = (len(fit.photos.names), len(labelled), readable - len(labelled), len(fit.photos.unreadable))
    assert tuple(data[f"n_{key}"] for key in ("images", "labelled", "unlabelled", "unreadable")) == counts


def the_temperature_is_fitted_to_the_judged_outputs(fit: Fit) -> None:
    logits, truth = fit.judged.logits[fit.judged.better], fit.judged.truth
    said = fit.content["calibration"]
    assert said["temperature"] == pytest.approx(fit_world.temperature(logits, truth), rel=0.02), "another temperature"
    manifest = json.loads((fit.out / "model" / "model.json").read_text())
    assert manifest["temperature"] == said["temperature"], "the model has another temperature than is told"
    assert said["before"] == pytest.approx(calibration_error(softmax(logits), truth), abs=0.01)
    # Each image is judged with the temperature of those that it did not help to fit.
    other = np.empty_like(logits)
    for half in (0, 1):
        fitted = fit_world.temperature(logits[1 - half :: 2], truth[1 - half :: 2])
        other[half::2] = softmax(logits[half::2] / fitted)
    assert said["after"] == pytest.approx(calibration_error(other, truth), abs=0.005), "calibration judged by itself"


# --- what is predicted, and asked next --------------------------------------------------------------------------------


def predictions_are_those_of_the_shipped_model(fit: Fit) -> None:
    rows = fit.table("predictions.csv")
    assert [row["path"] for row in rows] == list(fit.photos.names), "rows are missing, or in another order"
    for row, p in zip(rows, fit.probabilities, strict=True):
        if row["path"] in fit.photos.unreadable:
            assert not row["label"], "a file that is no image has a label"
            assert row["problem"]
            continue
        order = np.argsort(-p)
        for k, (label, confidence) in zip(
            order, (("label", "confidence"), ("second", "second_confidence")), strict=False
        ):
            assert float(row[confidence]) == pytest.approx(p[k], abs=_CLOSE), f"{row['path']}: {confidence}"
            said = p[fit.class_names.index(row[label])]
            assert said == pytest.approx(p[k], abs=_CLOSE), f"{row['path']}: {row[label]}"


def the_hesitant_images_without_a_label_are_asked_about_next(fit: Fit) -> None:
    rows, p = fit.table("label-next.csv"), fit.probabilities
    same = {other: one for one, other in fit.photos.copies if other not in fit.labels and one not in fit.labels}
    asked = [same.get(row["path"], row["path"]) for row in rows]
    possible = {same.get(n, n) for n in fit.photos.names if n not in fit.labels and n not in fit.photos.unreadable}
    assert len(set(asked)) == len(asked), "two copies of an image are asked about"
    assert set(asked) <= possible, "an image with a label, or that cannot be read, is asked about"
    assert len(asked) == min(20, len(possible)), "another number of images is asked about"
    turns: dict[tuple[int, ...], list[float]] = {}
    at_turn = []
    for name, row in zip(asked, rows, strict=True):
        q = p[fit.index(name)]
        first, second = np.argsort(-q)[:2]
        assert row["guess"] == fit.class_names[first] or q[first] - q[second] < _CLOSE, "another guess"
        assert float(row["confidence"]) == pytest.approx(q.max(), abs=_CLOSE), "another confidence"
        queue = turns.setdefault(tuple(sorted((int(first), int(second)))), [])
        queue.append(float(q[first] - q[second]))
        at_turn.append(len(queue))
    assert at_turn == sorted(at_turn), "a pair of classes has a second turn before another has had its first"
    for queue in (*turns.values(), [queue[0] for queue in turns.values()]):
        assert all(a <= b + _CLOSE for a, b in itertools.pairwise(queue)), "surer images are asked about first"


def hidden_answers_are_mostly_found(fit: Fit) -> None:
    """By the rows of predictions.csv, for images whose labels no run has seen."""
    hidden = {
        name: label
        for name, label in fit.photos.truth.items()
        if name not in fit.labels and label in fit.class_names and not name.startswith("unlabelled/of-")
    }
    said = {row["path"]: row["label"] for row in fit.table("predictions.csv")}
    right = sum(said[name] == label for name, label in hidden.items())
    assert right > len(hidden) / 2, f"{right} of {len(hidden)} hidden answers are found; by chance it is a third"


def images_that_taught_the_model_are_known_again(fit: Fit) -> None:
    """By `evaluate`, on the very folder that it was fitted to: only what it has never seen may judge it."""
    told = load(fit.out).evaluate(fit.photos.root, device="cpu")
    run = fit.runs[fit.judged.better if fit.content["held_out"] else f"{fit.judged.better}-on-all-labels"]
    pixels, names = fit.photos.pixels, fit.photos.names
    taught = {pixels[k].tobytes() for k in run.split["labelled"]}
    judges = [k for k, n in enumerate(names) if n in fit.photos.labels({})]
    new = [k for k in judges if pixels[k].tobytes() not in taught]
    assert told["judged"] == ("new" if new else "training"), "another kind of images judges"
    assert told["n_judged"] == len(new), f"{told['n_judged']} images judge, {len(new)} are new"
    assert told["seen"]["training"]["n_judged"] == len(judges) - len(new), "another number of images taught it"
    wrong = sum(
        fit.class_names[p.argmax()] != fit.labels[names[k]] for k, p in enumerate(fit.probabilities) if k in new
    )
    assert told["wrong"] == wrong, "another number of errors on new images"


# --- going on from an earlier fit -------------------------------------------------------------------------------------


def images_that_judged_before_judge_again(fit: Fit) -> None:
    before = set(fit_world.held_out().content["held_out"])
    same = {frozenset(pair) for pair in fit.photos.copies}
    judges = [fit.photos.names[row] for row in fit.judged.rows]
    new = [n for n in judges if n not in before and not any(frozenset((n, b)) in same for b in before)]
    assert not new, f"{new} judge a model that they have taught"
    assert before <= set(judges), "images that could judge do not"
    for name, run in fit.runs.items():
        assert run.recipe["training"]["model"]["is"].endswith("Continued"), f"{name} starts anew"


def folds_do_not_go_on_from_a_model_that_their_labels_taught(fit: Fit) -> None:
    assert fit.content["estimate"]["how"] == "folds", "images judge a model that may have learned from them"
    for name, run in fit.runs.items():
        goes_on = run.recipe["training"]["model"]["is"].endswith("Continued")
        assert goes_on == name.endswith("on-all-labels"), f"{name} goes on from the earlier model, or not"


def a_network_that_goes_on_keeps_the_row_of_each_class() -> None:
    start = fit_world.held_out()
    old = under("network.", load_file(start.out / "model" / "weights.safetensors"))
    names = ("ash", NEW_CLASS, "birch", "cedar")
    problem = Problem(n_classes=len(names), n_examples=1, input_shape=start.photos.pixels.shape[1:])
    new = read_earlier_fit(start.out).continued(names).build(problem).state_dict()
    for row, name in enumerate(names):
        if name in CLASSES:
            assert new["head.weight"][row].equal(old["head.weight"][CLASSES.index(name)]), f"{name}: another class's"
    others = [name for name in old if name != "head.weight"]
    assert all(new[name].equal(old[name]) for name in others), "the layers below are not the earlier model's"


# --- areas ------------------------------------------------------------------------------------------------------------

_SPLIT = (
    no_image_judges_what_it_taught,
    every_class_is_judged_in_its_share,
    the_normalisation_knows_only_images_that_teach,
    what_judges_are_the_outputs_of_the_teachers,
)
_RESULTS = (
    what_ships_is_the_teacher_of_the_better_method,
    errors_and_intervals_are_those_of_the_judged_outputs,
    confusions_and_classes_are_counted_by_the_true_class,
    the_temperature_is_fitted_to_the_judged_outputs,
    predictions_are_those_of_the_shipped_model,
    the_hesitant_images_without_a_label_are_asked_about_next,
    images_that_taught_the_model_are_known_again,
)


def _of(make: Callable[[], Fit], checks: Iterable[Callable[[Fit], None]]) -> Checks:
    """Checks of one fit, which is made when the first of them asks for it."""
    once = cache(make)
    return {name: lambda check=check: check(once()) for name, check in named(checks).items()}


def of_a_held_out_part() -> Checks:
    def make() -> Fit:
        return fit_world.make_fit(fit_world.photos(30), "fit", untaught="supervised")

    return _of(make, (*_SPLIT, *_RESULTS, hidden_answers_are_mostly_found))


def of_folds() -> Checks:
    def make() -> Fit:
        return fit_world.make_fit(fit_world.photos(10), "fit", untaught="mean-teacher")

    return _of(make, (*_SPLIT, *_RESULTS))


def of_going_on() -> Checks:
    """From a model with images that have not taught it, and from one that every label has taught."""
    given = fit_world.photos(30)
    added = {name: label for name, label in given.truth.items() if label == NEW_CLASS or "/of-" in name}

    def held_out() -> Fit:
        start = fit_world.held_out().out
        return fit_world.make_fit(given, "more", untaught="supervised", added=added, start=start)

    def folds() -> Fit:
        return fit_world.make_fit(given, "more", untaught="supervised", start=fit_world.in_folds().out)

    return {
        **named((a_network_that_goes_on_keeps_the_row_of_each_class,)),
        **_of(held_out, (images_that_judged_before_judge_again, no_image_judges_what_it_taught, *_RESULTS)),
        **_of(folds, (folds_do_not_go_on_from_a_model_that_their_labels_taught,)),
    }


def of_results() -> Checks:
    """What is written about outputs that are known, without any training."""

    def make() -> Fit:
        done = fit_world.in_folds()
        judged = _made_up(done.judged)
        config, validation, comparison, findings = done.given
        outputs = {
            method: crossval.EvaluationResult(
                judged.logits[method], judged.wrong(method), comparison.results[method].first
            )
            for method in METHODS
        }
        out = Path(tempfile.mkdtemp(dir=done.out.parent)) / "results"
        out.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(results, "write_fit_pages", lambda *_: None)
            results.write_results(
                dataclasses.replace(config, out=out),
                validation,
                dataclasses.replace(comparison, results=outputs),
                findings,
                **done.options,
            )
        written = dataclasses.replace(done, out=out)
        vars(written)["judged"] = judged
        return written

    return _of(make, _RESULTS)


def _made_up(judged: Judged) -> Judged:
    """Outputs of two methods that err often, not alike and not evenly, supervised-only less often."""
    draws = np.random.default_rng(0)
    n, n_classes = len(judged.truth), len(CLASSES)
    likes = np.eye(n_classes)[judged.truth]
    favourite = np.array([0.8, 0.0, -0.4])
    logits = {
        method: draws.normal(size=(n, n_classes)) * 1.5 + weight * likes + favourite
        for method, weight in (("mean-teacher", 0.6), ("supervised", 2.2))
    }
    return Judged(judged.rows, judged.truth, logits)
