"""Silent mistakes in scikit-learn's estimators, outputs per pixel, and files."""

import itertools
import os
import sys
import time

import numpy as np
from catalogue import Catalogue, Patch, during, replace, wrap
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import StandardScaler

from meanteacher import files
from meanteacher.core import UNLABELLED
from meanteacher.estimator import SemiSupervisedClassifier, arrays, classifier, labels
from meanteacher.train import TrainState
from meanteacher.views.basic import Move, warped

MUTANTS = Catalogue()
of_estimators = MUTANTS.of("scikit-learn")
of_dense = MUTANTS.of("outputs per pixel")
of_files = MUTANTS.of("files")


@of_estimators
def labels_of_a_table_stand_one_row_below(patch: Patch) -> None:
    def wrong(real, given, known, classes):
        positions = real(given, known, classes)
        labelled = positions != UNLABELLED
        positions[labelled] = positions[labelled].roll(1)
        return positions

    wrap(patch, labels.encoded, wrong)


@of_estimators
def rows_without_a_label_are_of_the_first_class(patch: Patch) -> None:
    wrap(patch, labels.encoded, lambda real, given, known, classes: real(given, known, classes).clamp_min(0))


@of_estimators
def rows_without_a_label_are_a_class(patch: Patch) -> None:
    def change(inner, *given):
        inner.setattr(classifier, "read_labels", lambda y: (np.asarray(y), np.ones(len(y), dtype=bool)))

    during(patch, SemiSupervisedClassifier.fit, change)


@of_estimators
def score_counts_rows_without_a_label_as_errors(patch: Patch) -> None:
    patch.setattr(SemiSupervisedClassifier, "score", ClassifierMixin.score)


@of_estimators
def minutes_of_an_estimator_are_seconds(patch: Patch) -> None:
    def wrong(real, *given, ends, **options):
        now = time.perf_counter()
        return real(*given, ends=None if ends is None else now + (ends - now) / 60, **options)

    wrap(patch, arrays.run, wrong)


@of_estimators
def estimator_keeps_the_student(patch: Patch) -> None:
    patch.setattr(TrainState, "predictor", lambda self, method: self.student)


@of_estimators
def student_and_teacher_of_a_table_change_their_views(patch: Patch) -> None:
    wrap(patch, arrays._weak_and_strong, lambda real, *given: real(*given)[::-1])


@of_estimators
def teacher_of_a_table_sees_nine_times_the_noise(patch: Patch) -> None:
    def wrong(real, given, shape, noise):
        _, strong = real(given, shape, noise)
        return real(given, shape, 9 * noise)[0], strong

    wrap(patch, arrays._weak_and_strong, wrong)


@of_estimators
def weights_of_the_methods_stand_one_row_below(patch: Patch) -> None:
    values = list(arrays._WEIGHTS.values())
    patch.setattr(arrays, "_WEIGHTS", dict(zip(arrays._WEIGHTS, [values[-1], *values[:-1]], strict=True)))


@of_estimators
def rare_classes_weigh_less(patch: Patch) -> None:
    wrap(patch, arrays.ClassWeighted.__init__, lambda real, self, m, w: real(self, m, tuple(1 / each for each in w)))


@of_estimators
def noise_reaches_beyond_the_nearest_neighbour(patch: Patch) -> None:
    """The distance of two rows instead of the deviation of a feature."""
    wrap(patch, arrays.local_scale, lambda real, rows: real(rows) * (2 * rows.shape[1]) ** 0.5)


@of_estimators
def columns_keep_their_scales(patch: Patch) -> None:
    patch.setattr(StandardScaler, "transform", lambda self, X: np.array(X))


@of_estimators
def one_outlier_sets_the_scale_of_a_column(patch: Patch) -> None:
    replace(patch, classifier._without_outliers, lambda X: X)


@of_estimators
def pixels_of_images_are_mixed_with_their_channels(patch: Patch) -> None:
    def wrong(real, array):
        images = real(array)
        return images.permute(0, 2, 3, 1).reshape(images.shape) if array.ndim == 4 else images

    wrap(patch, arrays.as_images, wrong)


@of_dense
def teachers_prediction_is_moved_otherwise_than_the_image(patch: Patch) -> None:
    """Each call moves an image as another one of the batch, as if it were drawn anew."""
    calls = itertools.count()

    def wrong(self, x):
        return warped(x, self._scaled(x.shape[-2:]).roll(next(calls), 0).to(x.dtype))

    patch.setattr(Move, "__call__", wrong)


@of_dense
def smaller_predictions_move_by_as_many_pixels_as_the_image(patch: Patch) -> None:
    patch.setattr(Move, "_scaled", lambda self, size: self.source)


@of_dense
def labels_of_pixels_stay_where_the_image_is_moved(patch: Patch) -> None:
    patch.setattr(Move, "labels", lambda self, labels: labels.long())


@of_dense
def pixels_from_outside_are_of_the_first_class(patch: Patch) -> None:
    wrap(patch, Move.labels, lambda real, self, labels: real(self, labels.long() + UNLABELLED) - UNLABELLED)


@of_files
def link_is_written_through(patch: Patch) -> None:
    patch.setattr(files, "_NO_FOLLOW", 0)


@of_files
def size_limit_of_a_file_is_ignored(patch: Patch) -> None:
    wrap(patch, files.read_regular, lambda real, path, most, **options: real(path, sys.maxsize, **options))


@of_files
def pipe_is_read_as_an_empty_file(patch: Patch) -> None:
    def wrong(path, flags, mode, buffering=-1):
        return os.fdopen(os.open(path, flags | files._SPECIAL, 0o666), mode, buffering)

    replace(patch, files._opened, wrong)


@of_files
def interrupted_write_takes_the_name(patch: Patch) -> None:
    replace(patch, files.atomic_file, lambda path: path.open("wb"))
