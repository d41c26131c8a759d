"""Silent mistakes in a fit and in what it leaves: all of them give a model, an error and a page that look right."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from catalogue import Catalogue, Patch, during, replace, wrap
from scipy.special import softmax

from meanteacher import stats
from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting import answer, crossval, label_next, results, split, warm_start
from meanteacher.photos.folder import duplicates
from meanteacher.photos.model import predict
from meanteacher.photos.model.bundle import Classifier, Seen, load
from meanteacher.train import TrainState

MUTANTS = Catalogue()
held_out = MUTANTS.of("fit with a held-out part")
folds = MUTANTS.of("fit in folds")
going_on = MUTANTS.of("fit that goes on from another")
of_results = MUTANTS.of("results of a fit")


def _students(patch: Patch, when: Callable[[np.ndarray], bool]) -> None:
    """Trainings give their student instead of their teacher, depending on what they hold out."""

    def change(inner, self, method, held_out, *rest, **options):
        if when(held_out):
            inner.setattr(TrainState, "predictor", lambda self, method: self.student)

    during(patch, crossval.CrossValidation.train, change)


def _compared(patch: Patch, model: Callable[[crossval.Comparison], crossval.TrainedModel]) -> None:
    """Another model ships."""

    def wrong(real, self, **options):
        found = real(self, **options)
        return dataclasses.replace(found, model=model(found))

    wrap(patch, crossval.CrossValidation.compare, wrong)


def _per_class(patch: Patch, change: Callable[..., dict[str, Any]]) -> None:
    """Other numbers of each class."""

    def wrong(real, data, truth, result, *rest):
        rows = real(data, truth, result, *rest)
        return tuple(dataclasses.replace(row, **change(row, k, truth, result)) for k, row in enumerate(rows))

    wrap(patch, results._per_class, wrong)


# --- a fit with a held-out part ---------------------------------------------------------------------------------------


@held_out
def student_is_judged_and_shipped_instead_of_the_teacher(patch: Patch) -> None:
    _students(patch, lambda held_out: True)


@held_out
def worse_of_the_two_methods_ships(patch: Patch) -> None:
    others = {"mean-teacher": "supervised", "supervised": "mean-teacher"}
    wrap(patch, crossval.better_method, lambda real, results: others[real(results)])


@held_out
def supervised_model_ships_under_the_name_of_mean_teacher(patch: Patch) -> None:
    _compared(patch, lambda found: found.results["supervised"].first)


@held_out
def copies_of_an_image_stand_on_both_sides(patch: Patch) -> None:
    def wrong(real, photos, decoded, duplicates):
        return real(photos, decoded, dataclasses.replace(duplicates, near=np.arange(len(photos))))

    wrap(patch, split.prepare, wrong)


@held_out
def copies_that_were_saved_again_stand_on_both_sides(patch: Patch) -> None:
    replace(patch, duplicates._near_groups, lambda images, exact: exact)


@held_out
def labels_of_judging_images_teach(patch: Patch) -> None:
    def wrong(real, self, held_out):
        return real(self, held_out[:0])[0], real(self, held_out)[1]

    wrap(patch, split.FitData.training_rows, wrong)


@held_out
def judging_images_are_learned_from_without_their_labels(patch: Patch) -> None:
    def wrong(real, self, held_out):
        labelled, unlabelled = real(self, held_out)
        return labelled, np.union1d(unlabelled, held_out)

    wrap(patch, split.FitData.training_rows, wrong)


@held_out
def copies_of_judging_images_are_learned_from_without_a_label(patch: Patch) -> None:
    def wrong(real, self, held_out):
        return real(self, held_out)[0], real(self, held_out[:0])[1]

    wrap(patch, split.FitData.training_rows, wrong)


@held_out
def images_that_taught_the_model_judge_it_as_new_ones(patch: Patch) -> None:
    wrap(patch, Seen.kinds, lambda real, self, digests: np.full_like(real(self, digests), "new"))


@held_out
def images_that_were_held_out_are_remembered_as_taught(patch: Patch) -> None:
    def wrong(real, data, split, *rest):
        return real(data, dataclasses.replace(split, how="folds"), *rest)

    wrap(patch, results._seen, wrong)


@held_out
def files_that_are_no_images_are_learned_from_as_black_ones(patch: Patch) -> None:
    def wrong(real, photos, decoded, duplicates):
        return real(photos, dataclasses.replace(decoded, unreadable={}), duplicates)

    wrap(patch, split.prepare, wrong)


@held_out
def one_class_judges_for_all(patch: Patch) -> None:
    """The first quarter of the labelled images by their names, as when they are not shuffled."""

    def wrong(labels, groups, n_parts, seed, **options):
        return tuple(np.array_split(np.flatnonzero(labels != UNLABELLED), n_parts))

    replace(patch, split._stratified_parts, wrong)


# --- a fit in folds ---------------------------------------------------------------------------------------------------


@folds
def students_are_judged_and_a_teacher_ships(patch: Patch) -> None:
    _students(patch, lambda held_out: len(held_out) > 0)


@folds
def teachers_are_judged_and_a_student_ships(patch: Patch) -> None:
    _students(patch, lambda held_out: len(held_out) == 0)


@folds
def mean_teacher_ships_where_supervised_is_better(patch: Patch) -> None:
    replace(patch, crossval.better_method, lambda found: "mean-teacher")


@folds
def last_training_is_of_mean_teacher_whichever_is_better(patch: Patch) -> None:
    def wrong(real, self, method, held_out, *rest, **options):
        return real(self, method if len(held_out) else "mean-teacher", held_out, *rest, **options)

    wrap(patch, crossval.CrossValidation.train, wrong)


@folds
def first_model_judges_every_fold(patch: Patch) -> None:
    """It has learned from the images of the others."""
    first = {}

    def wrong(real, self, method, held_out, *rest, **options):
        model = real(self, method, held_out, *rest, **options)
        return first.setdefault((self.out, method), model) if len(held_out) else model

    wrap(patch, crossval.CrossValidation.train, wrong)


@folds
def outputs_of_the_folds_are_compared_with_labels_in_another_order(patch: Patch) -> None:
    patch.setattr(split.EvaluationSplit, "positions", property(lambda self: np.sort(np.concatenate(self.parts))))


@folds
def model_of_the_first_fold_ships(patch: Patch) -> None:
    """It has learned from two thirds of the labels."""
    _compared(patch, lambda found: found.results[found.better].first)


# --- a fit that goes on from another ----------------------------------------------------------------------------------


@going_on
def rows_of_the_last_layer_are_kept_by_position(patch: Patch) -> None:
    def wrong(real, self, problem):
        old = load(self.start).class_names
        by_position = tuple(
            old[min(row, len(old) - 1)] if name in old else name for row, name in enumerate(self.class_names)
        )
        return real(dataclasses.replace(self, class_names=by_position), problem)

    wrap(patch, warm_start.Continued.build, wrong)


@going_on
def new_part_is_held_out_from_labels_that_taught_the_model(patch: Patch) -> None:
    wrap(patch, split.choose_split, lambda real, data, earlier_held_out, **how: real(data, None, **how))


@going_on
def model_that_every_label_taught_is_judged_by_some_of_them(patch: Patch) -> None:
    def wrong(real, data, earlier_held_out=None, **how):
        return real(data, earlier_held_out or None, **how)

    wrap(patch, split.choose_split, wrong)


@going_on
def folds_go_on_from_the_model_that_their_labels_taught(patch: Patch) -> None:
    def change(inner, self, *, continued):
        def wrong(real, self, method, **options):
            return real(self, method, **options | {"continued": continued})

        wrap(inner, crossval.CrossValidation.evaluate, wrong)

    during(patch, crossval.CrossValidation.compare, change)


@going_on
def copies_of_judging_images_that_were_labelled_since_teach(patch: Patch) -> None:
    def wrong(real, data, *given, **how):
        return real(dataclasses.replace(data, groups=np.arange(len(data.groups))), *given, **how)

    wrap(patch, split.choose_split, wrong)


# --- the results of a fit ---------------------------------------------------------------------------------------------


@of_results
def temperature_is_fitted_to_the_outputs_of_the_other_method(patch: Patch) -> None:
    def change(inner, config, validation, comparison, *rest, **options):
        other = comparison.results["mean-teacher"].logits
        inner.setattr(results, "calibration", lambda logits, truth: stats.calibration(other, truth))

    during(patch, results.write_results, change)


@of_results
def temperature_is_fitted_to_images_that_taught_the_model(patch: Patch) -> None:
    def change(inner, config, validation, comparison, *rest, **options):
        data, model = validation.stand.data, comparison.model
        size = validation.stand.plan.size
        shipped = Classifier(model.network, model.normalise, data.photos.class_names, size, 1.0, {})
        images = data.decoded.images[validation.split.positions].transpose(0, 2, 3, 1)
        fitted = np.log(shipped.predict_proba(images))
        inner.setattr(results, "calibration", lambda logits, truth: stats.calibration(fitted, truth))

    during(patch, results.write_results, change)


@of_results
def temperature_multiplies_the_outputs(patch: Patch) -> None:
    wrap(patch, stats.fitted_temperature, lambda real, logits, labels: 1 / real(logits, labels))


@of_results
def calibration_is_judged_by_the_images_it_was_fitted_to(patch: Patch) -> None:
    def wrong(real, logits, labels):
        found = real(logits, labels)
        after = softmax(logits / found["temperature"], axis=1)
        return found | {"after": stats.calibration_error(after, labels)}

    wrap(patch, stats.calibration, wrong)


@of_results
def predictions_have_no_temperature(patch: Patch) -> None:
    def change(inner, *given, **options):
        def wrong(real, self, *images, **how):
            return real(dataclasses.replace(self, temperature=1.0), *images, **how)

        wrap(inner, Classifier.predict_proba, wrong)

    during(patch, results.write_results, change)


@of_results
def model_ships_without_its_temperature(patch: Patch) -> None:
    def wrong(real, self, *given, **options):
        real(dataclasses.replace(self, temperature=1.0), *given, **options)

    wrap(patch, Classifier.save, wrong)


@of_results
def confusion_matrix_is_transposed(patch: Patch) -> None:
    wrap(patch, results.confusion, lambda real, truth, guess, n_classes: real(guess, truth, n_classes))


@of_results
def confusions_are_those_of_the_other_method(patch: Patch) -> None:
    def change(inner, config, validation, comparison, *rest, **options):
        other = comparison.results["mean-teacher"].logits.argmax(1)
        wrap(inner, results.confusion, lambda real, truth, guess, n_classes: real(truth, other, n_classes))

    during(patch, results.write_results, change)


@of_results
def errors_of_the_methods_change_places(patch: Patch) -> None:
    wrap(patch, answer.estimate, lambda real, how, ours, theirs: real(how, theirs, ours))


@of_results
def model_carries_the_error_of_the_other_method(patch: Patch) -> None:
    def change(inner, config, validation, comparison, *rest, **options):
        other = answer.error_of(comparison.results["mean-teacher"].wrong)

        def wrong(**fields):
            estimate = fields["about"]["estimate"] | dataclasses.asdict(other)
            return Classifier(**fields | {"about": fields["about"] | {"estimate": estimate}})

        inner.setattr(results, "Classifier", wrong)

    during(patch, results.write_results, change)


@of_results
def interval_is_one_of_90_percent(patch: Patch) -> None:
    patch.setattr(stats, "CONFIDENCE", 0.9)
    patch.setattr(stats, "_Z", 1.6449)


@of_results
def interval_of_no_errors_has_no_width(patch: Patch) -> None:
    """Wald's, which is narrow where there are few images."""

    def wrong(wrong, n):
        share = wrong / n
        half = stats._Z * math.sqrt(share * (1 - share) / n)
        return stats.Interval(share, max(0.0, share - half), min(1.0, share + half))

    replace(patch, stats.error_interval, wrong)


@of_results
def paired_interval_treats_the_pairs_as_strangers(patch: Patch) -> None:
    def wrong(real, wrong, baseline_wrong):
        found = real(wrong, baseline_wrong)
        p, q, n = wrong.mean(), baseline_wrong.mean(), len(wrong)
        half = stats._Z * math.sqrt((p * (1 - p) + q * (1 - q)) / n)
        return dataclasses.replace(found, difference=stats.Interval(q - p, q - p - half, q - p + half))

    wrap(patch, stats.difference_on_images, wrong)


@of_results
def paired_interval_has_its_sign_turned(patch: Patch) -> None:
    wrap(patch, stats._paired_interval, lambda real, better, worse, n: real(worse, better, n))


@of_results
def difference_is_that_of_mean_teacher_minus_the_baseline(patch: Patch) -> None:
    wrap(patch, stats.difference_on_images, lambda real, ours, theirs: real(theirs, ours))


@of_results
def errors_that_both_make_count_as_a_difference(patch: Patch) -> None:
    wrap(patch, stats.difference_on_images, lambda real, ours, theirs: real(ours & ~theirs, theirs))


@of_results
def errors_of_a_class_are_counted_among_its_predictions(patch: Patch) -> None:
    """Of what is called a fern, how much is none, instead of how many ferns are called something else."""

    def wrong(row, k, truth, result):
        among = result.wrong[result.logits.argmax(1) == k]
        return {"error": row.error if row.error is None else float(among.mean())}

    _per_class(patch, wrong)


@of_results
def judged_images_of_a_class_are_counted_by_their_prediction(patch: Patch) -> None:
    _per_class(patch, lambda row, k, truth, result: {"n_judged": int((result.logits.argmax(1) == k).sum())})


@of_results
def labels_of_unreadable_files_are_counted(patch: Patch) -> None:
    def wrong(real, config, validation, *rest, **options):
        data = validation.stand.data
        stand = dataclasses.replace(validation.stand, data=dataclasses.replace(data, labels=data.photos.labels))
        return real(config, dataclasses.replace(validation, stand=stand), *rest, **options)

    wrap(patch, results.write_results, wrong)


@of_results
def unreadable_files_are_counted_among_the_predictions(patch: Patch) -> None:
    def wrong(real, data, *rest):
        return real(dataclasses.replace(data, usable=np.arange(len(data.photos))), *rest)

    wrap(patch, results._per_class, wrong)


@of_results
def predictions_of_unreadable_files_push_the_others_down(patch: Patch) -> None:
    """As when what cannot be read is left out of the array but not of the names."""

    def wrong(names, probabilities, class_names, unreadable):
        pushed = np.roll(probabilities, len(unreadable), axis=0)
        return predict.prediction_rows(names, pushed, class_names, unreadable)

    patch.setattr(results, "prediction_rows", wrong)


@of_results
def surest_images_are_asked_about_next(patch: Patch) -> None:
    def wrong(real, probabilities, candidates, *rest, **options):
        return real(probabilities, candidates, *rest, **options | {"n": len(candidates)})[::-1][:20]

    wrap(patch, label_next.label_next, wrong)


@of_results
def images_with_a_label_are_asked_about_next(patch: Patch) -> None:
    def wrong(real, probabilities, candidates, *rest, **options):
        return real(probabilities, np.arange(len(probabilities)), *rest, **options)

    wrap(patch, label_next.label_next, wrong)


@of_results
def copies_of_one_image_are_asked_about_next(patch: Patch) -> None:
    def wrong(real, probabilities, candidates, groups, *rest, **options):
        return real(probabilities, candidates, np.arange(len(groups)), *rest, **options)

    wrap(patch, label_next.label_next, wrong)


@of_results
def positions_among_the_candidates_are_taken_for_images(patch: Patch) -> None:
    def wrong(real, probabilities, candidates, *rest, **options):
        return [
            dataclasses.replace(one, index=candidates.tolist().index(one.index))
            for one in real(probabilities, candidates, *rest, **options)
        ]

    wrap(patch, label_next.label_next, wrong)
