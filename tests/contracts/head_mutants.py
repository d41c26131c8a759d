"""Silent mistakes in what a fit computes from: features, heads, their tests, and what to label next."""

from collections.abc import Callable
from typing import Any

import numpy as np
from catalogue import Catalogue, Patch, during, replace, wrap

from meanteacher.photos.features import extraction
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.fitting import estimate, heads, label_next, pretrained, scratch, work
from meanteacher.schedules import Constant, Product

MUTANTS = Catalogue()
of_heads = MUTANTS.of("heads and features")


@of_heads
def all_folds_start_from_the_classifier_of_the_first(patch: Patch) -> None:
    """It was fitted to labels that judge the other folds."""

    def change(inner: Patch, *given: Any, **options: Any) -> None:
        real, first = heads.logistic_regression, []

        def wrong(*given: Any) -> heads.Head:
            first.append(first[0] if first else real(*given))
            return first[-1]

        replace(inner, heads.logistic_regression, wrong)

    during(patch, estimate.cross_validated, change)


@of_heads
def labels_are_doubted_by_themselves(patch: Patch) -> None:
    def change(inner: Patch, features: Any, labels: Any, n_classes: int, **options: Any) -> None:
        inner.setattr(estimate, "smoothed", lambda *given, **more: np.eye(n_classes)[labels])

    during(patch, estimate.label_doubts, change)


@of_heads
def baseline_sees_the_photos_in_a_strong_view(patch: Patch) -> None:
    wrap(
        patch, pretrained.labels_alone, lambda real, features, *rest, **options: real(features[::-1], *rest, **options)
    )


@of_heads
def students_views_are_those_of_the_teacher(patch: Patch) -> None:
    def wrong(real: Callable[..., Any], labels: Any, n_views: int, draws: Any) -> Any:
        rows, views = real(labels, n_views, draws)
        return rows, views % heads._TEACHER_VIEWS

    wrap(patch, heads._drawn, wrong)


@of_heads
def frequent_labels_fill_the_labelled_rows(patch: Patch) -> None:
    def wrong(real: Callable[..., Any], labels: Any, n_views: int, draws: Any) -> Any:
        rows, views = real(labels, n_views, draws)
        known = np.flatnonzero(labels >= 0)
        rows[:, : heads._LABELLED_ROWS] = draws.choice(known, (len(rows), heads._LABELLED_ROWS))
        return rows, views

    wrap(patch, heads._drawn, wrong)


@of_heads
def teacher_of_a_head_reaches_back_ten_times_as_far(patch: Patch) -> None:
    patch.setattr(heads, "_DECAY", 0.999)


@of_heads
def targets_of_a_head_are_not_sharpened(patch: Patch) -> None:
    patch.setattr(heads, "_SHARPENING", 1.0)


@of_heads
def uncertain_targets_train_a_head(patch: Patch) -> None:
    patch.setattr(heads, "_THRESHOLD", 0.0)


@of_heads
def rate_of_a_head_stays_where_it_begins(patch: Patch) -> None:
    patch.setattr(heads, "_RATE", Product((Constant(0.1),)))


@of_heads
def regression_has_a_tenth_of_its_freedom(patch: Patch) -> None:
    patch.setattr(heads, "_STRENGTH", 1.0)


@of_heads
def first_view_may_take_all_of_the_minutes(patch: Patch) -> None:
    patch.setattr(pretrained, "_FIRST_SHARE", 1.0)


@of_heads
def work_is_started_that_can_hardly_finish(patch: Patch) -> None:
    patch.setattr(work, "_SLOWER", 1.0)


@of_heads
def training_from_scratch_takes_every_second(patch: Patch) -> None:
    patch.setattr(scratch, "_TRAINING_SHARE", 1.0)


@of_heads
def labels_beyond_the_first_500_are_ignored(patch: Patch) -> None:
    def wrong(real: Callable[..., Any], features: Any, unsure: Any, doubt: Any, labelled: Any, n: int) -> Any:
        return real(features, unsure, doubt, labelled[:500], n)

    wrap(patch, label_next._representative, wrong)


@of_heads
def surest_images_are_asked_about_next(patch: Patch) -> None:
    def wrong(real: Callable[..., Any], probabilities: Any, *rest: Any, **options: Any) -> Any:
        sure = probabilities.max(1, keepdims=True)
        doubt = np.where(probabilities == sure, 1 - sure, 0) + sure / probabilities.shape[1]
        return real(doubt, *rest, **options)

    wrap(patch, label_next.label_next, wrong)


@of_heads
def features_that_are_not_as_they_were_written_are_used(patch: Patch) -> None:
    replace(patch, extraction._checks, lambda values: np.zeros((len(values), 2), np.float16))


@of_heads
def features_of_other_pixels_are_used(patch: Patch) -> None:
    def path(self: extraction.Extraction) -> Any:
        return self.file.with_name(f"{self.view}.npy")

    patch.setattr(extraction.Extraction, "path", property(path))


@of_heads
def networks_of_a_resumed_fit_are_those_that_its_folder_names(patch: Patch) -> None:
    replace(patch, pretrained.resumed_backbones, lambda names, wanted, out: tuple(map(find_backbone, names)))
