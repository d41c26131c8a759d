"""The measurement on tables hides what it says, and tests on rows that no contender has seen."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from benchmarks import tables


@pytest.mark.parametrize("name", tables.DATA)
def test_ten_labels_per_class_are_shown_and_the_test_rows_are_others(name: str):
    train, truth, shown, test, expected = tables.split(name, 0)
    known = shown != -1
    assert np.array_equal(shown[known], truth[known])
    assert set(np.bincount(shown[known])) == {tables.LABELS}
    assert abs(len(truth) - len(expected)) <= 1
    x, _ = tables.DATA[name](return_X_y=True)
    # All rows, each in one half.
    assert sorted(np.concatenate([train, test]).tolist()) == sorted(x.tolist())
    assert not np.array_equal(shown, tables.split(name, 1)[2])


def test_errors_are_shares_of_the_test_rows_and_of_the_hidden_ones():
    given = tables.split("wine", 0)
    _, truth, shown, _, expected = given
    found = tables.measure(DummyClassifier(strategy="constant", constant=1), given)
    assert found["test"] == pytest.approx((expected != 1).mean())
    assert found["unlabelled"] == pytest.approx((truth[shown == -1] != 1).mean())
