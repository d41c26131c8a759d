"""The estimators hold to scikit-learn's contract, by scikit-learn's own checks."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.utils.estimator_checks import check_classifiers_classes, check_estimator

from meanteacher import MeanTeacherClassifier, SemiSupervisedClassifier
from meanteacher.core import InputError

EXPECTED = {
    "check_classifiers_classes": "its last part has the classes -1 and 1, and -1 marks rows without a label here as in "
    "scikit-learn's own semi-supervised classifiers, which the check knows by name"
}
both = pytest.mark.parametrize("estimator", [MeanTeacherClassifier(steps=20), SemiSupervisedClassifier(steps=20)])


@both
def test_scikit_learns_own_checks_pass_but_for_one(estimator: Any):
    results = check_estimator(estimator, expected_failed_checks=EXPECTED, on_skip=None)
    assert len(results) > 50
    statuses: dict[str, list[Any]] = {status: [] for status in ("passed", "skipped", "xfail")}
    for result in results:
        statuses[result["status"]].append(result)
    # Arrays of other libraries are checked where SCIPY_ARRAY_API is set.
    assert {result["check_name"] for result in statuses["skipped"]} <= {"check_array_api_input"}
    (failed,) = statuses["xfail"]
    assert failed["check_name"] == "check_classifiers_classes"
    assert isinstance(failed["exception"], InputError)
    assert "two classes" in str(failed["exception"])


@both
def test_the_one_check_passes_as_it_does_for_scikit_learns_semi_supervised_classifiers(estimator: Any):
    check_classifiers_classes("LabelSpreading", estimator)


@both
@pytest.mark.parametrize("kind", ["U", "O"])
def test_strings_are_classes(estimator: Any, kind: str):
    X, y = make_blobs(30, random_state=0, cluster_std=0.1)
    names = np.take(["one", "two", "three"], y).astype(kind)
    model = clone(estimator).set_params(random_state=0).fit(X, names)
    assert model.classes_.tolist() == ["one", "three", "two"]
    assert np.array_equal(model.predict(X), names)


def test_mean_teacher_is_the_default_of_both():
    assert MeanTeacherClassifier().get_params() == SemiSupervisedClassifier("mean-teacher").get_params()
