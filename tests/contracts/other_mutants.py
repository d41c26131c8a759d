"""Silent mistakes in scikit-learn's estimators, outputs per pixel, files, and scaled twins."""

import itertools

from catalogue import Catalogue, Patch, rewrite

from meanteacher import files
from meanteacher.estimator import SemiSupervisedClassifier, arrays
from meanteacher.paper import scaled
from meanteacher.views.dense import Move
from meanteacher.views.geometry import warped

MUTANTS = Catalogue()
of_estimators = MUTANTS.of("scikit-learn")
of_dense = MUTANTS.of("outputs per pixel")
of_files = MUTANTS.of("files")
of_twins = MUTANTS.of("scaled twins")


@of_estimators
def labels_of_a_table_stand_one_row_below(patch: Patch) -> None:
    rewrite(patch, arrays.encoded, "= torch.from_numpy(found)", "= torch.from_numpy(found).roll(1)")


@of_estimators
def rows_without_a_label_are_of_the_first_class(patch: Patch) -> None:
    rewrite(patch, arrays.encoded, "torch.full((len(y),), UNLABELLED)", "torch.zeros(len(y), dtype=torch.int64)")


@of_estimators
def rows_without_a_label_are_a_class(patch: Patch) -> None:
    rewrite(patch, SemiSupervisedClassifier.fit, "np.unique(y[known])", "np.unique(y)")


@of_estimators
def score_counts_rows_without_a_label_as_errors(patch: Patch) -> None:
    rewrite(patch, SemiSupervisedClassifier.score, "known = ~unlabelled(labels)", "known = labels == labels")


@of_dense
def teachers_prediction_is_moved_otherwise_than_the_image(patch: Patch) -> None:
    """Each call moves an image as another one of the batch, as if it were drawn anew."""
    calls = itertools.count()

    def wrong(self, x):
        return warped(x, self._scaled(x.shape[-2:]).roll(next(calls), 0).to(x.dtype))

    patch.setattr(Move, "__call__", wrong)


@of_dense
def smaller_predictions_move_by_as_many_pixels_as_the_image(patch: Patch) -> None:
    rewrite(patch, Move.__call__, "self._scaled(x.shape[-2:])", "self.source")


@of_dense
def labels_of_pixels_stay_where_the_image_is_moved(patch: Patch) -> None:
    patch.setattr(Move, "labels", lambda self, labels: labels.long())


@of_dense
def pixels_from_outside_are_of_the_first_class(patch: Patch) -> None:
    rewrite(patch, Move.labels, " - UNLABELLED)", ")", ".long() + UNLABELLED", ".long()")


@of_files
def link_is_written_through(patch: Patch) -> None:
    rewrite(patch, files.append_to, " | _NO_FOLLOW", "")


@of_files
def size_limit_of_a_file_is_ignored(patch: Patch) -> None:
    rewrite(patch, files.read_regular, "if size > most:", "if False:")


@of_files
def pipe_is_read_as_an_empty_file(patch: Patch) -> None:
    rewrite(patch, files._opened, "if not stat.S_ISREG(found):", "if False:")


@of_files
def interrupted_write_takes_the_name(patch: Patch) -> None:
    rewrite(patch, files.atomic_file, "part.unlink(missing_ok=True)", "part.exists() and part.replace(path)")


@of_twins
def ramp_ups_of_a_twin_take_as_long_as_the_papers(patch: Patch) -> None:
    rewrite(patch, scaled._in_time, "replace(schedule, steps=max(1, round(ramp_up * steps)))", "schedule")


@of_twins
def average_of_a_twin_reaches_back_as_far_as_the_papers(patch: Patch) -> None:
    rewrite(patch, scaled._shorter, "_HORIZON * steps / 1000 / (1 - decay)", "1 / (1 - decay)")


@of_twins
def supervised_twin_has_rows_without_a_label(patch: Patch) -> None:
    rewrite(patch, scaled.scaled, "rows = _LABELLED_ROWS if supervised else _BATCH", "rows = _BATCH")
