"""Silent mistakes in a fit and in what it leaves: all of them give a model, an error and a page that look right."""

import numpy as np
from catalogue import Catalogue, Patch, replace, rewrite

from meanteacher import stats
from meanteacher.photos.fitting import answer, crossval, label_next, results, split, warm_start
from meanteacher.photos.folder import duplicates
from meanteacher.photos.model import evaluate

MUTANTS = Catalogue()
held_out = MUTANTS.of("fit with a held-out part")
folds = MUTANTS.of("fit in folds")
going_on = MUTANTS.of("fit that goes on from another")
of_results = MUTANTS.of("results of a fit")


# --- a fit with a held-out part ---------------------------------------------------------------------------------------


@held_out
def student_is_judged_and_shipped_instead_of_the_teacher(patch: Patch) -> None:
    rewrite(patch, crossval.CrossValidation.train, "state.predictor(recipe.method)", "state.student")


@held_out
def worse_of_the_two_methods_ships(patch: Patch) -> None:
    rewrite(patch, crossval.better_method, "min(", "max(")


@held_out
def supervised_model_ships_under_the_name_of_mean_teacher(patch: Patch) -> None:
    rewrite(patch, crossval.CrossValidation.compare, "results[better].first", 'results["supervised"].first')


@held_out
def copies_of_an_image_stand_on_both_sides(patch: Patch) -> None:
    rewrite(patch, split.prepare, "duplicates.near", "np.arange(len(photos))")


@held_out
def copies_that_were_saved_again_stand_on_both_sides(patch: Patch) -> None:
    rewrite(patch, duplicates.find_duplicates, "_near_groups(images, exact)", "exact")


@held_out
def labels_of_judging_images_teach(patch: Patch) -> None:
    rewrite(
        patch,
        split.FitData.training_rows,
        "np.setdiff1d(self.usable[is_labelled], held_out)",
        "self.usable[is_labelled]",
    )


@held_out
def judging_images_are_learned_from_without_their_labels(patch: Patch) -> None:
    rewrite(
        patch,
        split.FitData.training_rows,
        "self.usable[~is_labelled & ~is_copy]",
        "np.union1d(self.usable[~is_labelled & ~is_copy], held_out)",
    )


@held_out
def copies_of_judging_images_are_learned_from_without_a_label(patch: Patch) -> None:
    rewrite(patch, split.FitData.training_rows, "self.usable[~is_labelled & ~is_copy]", "self.usable[~is_labelled]")


@held_out
def images_that_taught_the_model_judge_it_as_new_ones(patch: Patch) -> None:
    rewrite(patch, evaluate.evaluate, 'counted = (kinds == kind) & (kind != "training")', 'counted = kinds != ""')


@held_out
def images_that_were_held_out_are_remembered_as_taught(patch: Patch) -> None:
    rewrite(patch, results._seen, 'split.how == "held-out"', "False")


@held_out
def files_that_are_no_images_are_learned_from_as_black_ones(patch: Patch) -> None:
    rewrite(patch, split.prepare, "sorted(decoded.unreadable)", "[]")


@held_out
def one_class_judges_for_all(patch: Patch) -> None:
    """The first quarter of the labelled images by their names, as when they are not shuffled."""
    rewrite(
        patch,
        split.draw_split,
        "_stratified_parts(labels, groups, n_parts, seed)[:1]",
        "(labelled[: len(labelled) // n_parts],)",
    )


# --- a fit in folds ---------------------------------------------------------------------------------------------------


@folds
def students_are_judged_and_a_teacher_ships(patch: Patch) -> None:
    rewrite(
        patch,
        crossval.CrossValidation.train,
        "state.predictor(recipe.method)",
        "(state.student if len(held_out) else state.predictor(recipe.method))",
    )


@folds
def teachers_are_judged_and_a_student_ships(patch: Patch) -> None:
    rewrite(
        patch,
        crossval.CrossValidation.train,
        "state.predictor(recipe.method)",
        "(state.predictor(recipe.method) if len(held_out) else state.student)",
    )


@folds
def mean_teacher_ships_where_supervised_is_better(patch: Patch) -> None:
    replace(patch, crossval.better_method, lambda found: "mean-teacher")


@folds
def last_training_is_of_mean_teacher_whichever_is_better(patch: Patch) -> None:
    rewrite(patch, crossval.CrossValidation.compare, "self.train(better, _NONE", 'self.train("mean-teacher", _NONE')


@folds
def first_model_judges_every_fold(patch: Patch) -> None:
    """It has learned from the images of the others."""
    rewrite(patch, crossval.CrossValidation.evaluate, "predict_logits(model.network", "predict_logits(first.network")


@folds
def outputs_of_the_folds_are_compared_with_labels_in_another_order(patch: Patch) -> None:
    rewrite(
        patch,
        split.EvaluationSplit.positions.fget,
        "np.concatenate(self.parts)",
        "np.sort(np.concatenate(self.parts))",
    )


@folds
def model_of_the_first_fold_ships(patch: Patch) -> None:
    """It has learned from two thirds of the labels."""
    rewrite(patch, crossval.CrossValidation.compare, "results[better].kept(model)", "results[better].first")


# --- a fit that goes on from another ----------------------------------------------------------------------------------


@going_on
def rows_of_the_last_layer_are_kept_by_position(patch: Patch) -> None:
    rewrite(
        patch, warm_start.Continued.build, "old.class_names.index(class_name)", "min(row, len(old.class_names) - 1)"
    )


@going_on
def new_part_is_held_out_from_labels_that_taught_the_model(patch: Patch) -> None:
    real = split.choose_split
    replace(patch, real, lambda data, earlier_held_out, **how: real(data, None, **how))


@going_on
def model_that_every_label_taught_is_judged_by_some_of_them(patch: Patch) -> None:
    rewrite(patch, split.choose_split, 'if earlier_held_out is not None and split.how == "held-out":', "if False:")


@going_on
def folds_go_on_from_the_model_that_their_labels_taught(patch: Patch) -> None:
    rewrite(patch, crossval.CrossValidation.compare, 'continued and self.split.how == "held-out"', "continued")


@going_on
def copies_of_judging_images_that_were_labelled_since_teach(patch: Patch) -> None:
    rewrite(
        patch,
        split.choose_split,
        "np.flatnonzero(np.isin(data.groups, data.groups[held]) & is_labelled)",
        "np.array(held)",
    )


# --- the results of a fit ---------------------------------------------------------------------------------------------


@of_results
def temperature_is_fitted_to_the_outputs_of_the_other_method(patch: Patch) -> None:
    rewrite(
        patch,
        results.write_results,
        "calibration(better.logits, truth)",
        'calibration(comparison.results["mean-teacher"].logits, truth)',
    )


@of_results
def temperature_is_fitted_to_images_that_taught_the_model(patch: Patch) -> None:
    rewrite(
        patch,
        results.write_results,
        "calibration(better.logits, truth)",
        "calibration(np.log(Classifier(model.network, model.normalise, photos.class_names, plan.size, 1.0, {})"
        ".predict_proba(data.decoded.images[split.positions].transpose(0, 2, 3, 1))), truth)",
    )


@of_results
def temperature_multiplies_the_outputs(patch: Patch) -> None:
    rewrite(patch, stats.fitted_temperature, "logits / math.exp(log_temperature)", "logits * math.exp(log_temperature)")


@of_results
def calibration_is_judged_by_the_images_it_was_fitted_to(patch: Patch) -> None:
    rewrite(patch, stats.calibration, "halves == half, halves != half", "halves == half, halves == half")


@of_results
def predictions_have_no_temperature(patch: Patch) -> None:
    rewrite(
        patch,
        results.write_results,
        "classifier.predict_proba(",
        "__import__('dataclasses').replace(classifier, temperature=1.0).predict_proba(",
    )


@of_results
def model_ships_without_its_temperature(patch: Patch) -> None:
    rewrite(
        patch,
        results.write_results,
        "classifier.save(",
        "__import__('dataclasses').replace(classifier, temperature=1.0).save(",
    )


@of_results
def confusion_matrix_is_transposed(patch: Patch) -> None:
    rewrite(patch, results._confusion, "(truth, guess)", "(guess, truth)")


@of_results
def confusions_are_those_of_the_other_method(patch: Patch) -> None:
    rewrite(
        patch,
        results.write_results,
        "_confusion(truth, better.logits.argmax(1)",
        '_confusion(truth, comparison.results["mean-teacher"].logits.argmax(1)',
    )


@of_results
def errors_of_the_methods_change_places(patch: Patch) -> None:
    real = answer.estimate
    replace(patch, real, lambda how, ours, theirs: real(how, theirs, ours))


@of_results
def model_carries_the_error_of_the_other_method(patch: Patch) -> None:
    rewrite(patch, results.write_results, "errors[comparison.better] |", 'errors["mean-teacher"] |')


@of_results
def interval_is_one_of_90_percent(patch: Patch) -> None:
    patch.setattr(stats, "CONFIDENCE", 0.9)
    patch.setattr(stats, "_Z", 1.6449)


@of_results
def interval_of_no_errors_has_no_width(patch: Patch) -> None:
    """Wald's, which is narrow where there are few images."""
    rewrite(
        patch,
        stats.error_interval,
        "return Interval(wrong / n, float(low), float(high))",
        "share = wrong / n\n    half = _Z * math.sqrt(share * (1 - share) / n)\n"
        "    return Interval(share, share - half, share + half)",
    )


@of_results
def paired_interval_treats_the_pairs_as_strangers(patch: Patch) -> None:
    rewrite(
        patch,
        stats.difference_on_images,
        "low, high = _paired_interval(better, worse, n)",
        "p, q = wrong.mean(), baseline_wrong.mean()\n    half = _Z * math.sqrt((p * (1 - p) + q * (1 - q)) / n)\n"
        "    low, high = q - p - half, q - p + half",
    )


@of_results
def paired_interval_has_its_sign_turned(patch: Patch) -> None:
    rewrite(patch, stats._paired_interval, "middle = (b - c) / m", "middle = (c - b) / m")


@of_results
def difference_is_that_of_mean_teacher_minus_the_baseline(patch: Patch) -> None:
    real = stats.difference_on_images
    replace(patch, real, lambda ours, theirs: real(theirs, ours))


@of_results
def errors_that_both_make_count_as_a_difference(patch: Patch) -> None:
    rewrite(patch, stats.difference_on_images, "int((baseline_wrong & ~wrong).sum())", "int(baseline_wrong.sum())")


@of_results
def errors_of_a_class_are_counted_among_its_predictions(patch: Patch) -> None:
    """Of what is called a fern, how much is none, instead of how many ferns are called something else."""
    rewrite(
        patch,
        results._per_class,
        "float(result.wrong[truth == k].mean()) if (truth == k).any()",
        "float(result.wrong[result.logits.argmax(1) == k].mean()) if (truth == k).any()",
    )


@of_results
def judged_images_of_a_class_are_counted_by_their_prediction(patch: Patch) -> None:
    rewrite(patch, results._per_class, "int((truth == k).sum())", "int((result.logits.argmax(1) == k).sum())")


@of_results
def labels_of_unreadable_files_are_counted(patch: Patch) -> None:
    rewrite(
        patch,
        results.write_results,
        "data.labels != UNLABELLED",
        "photos.labels != UNLABELLED",
    )


@of_results
def unreadable_files_are_counted_among_the_predictions(patch: Patch) -> None:
    rewrite(patch, results._per_class, "probabilities[data.usable]", "probabilities")


@of_results
def predictions_of_unreadable_files_push_the_others_down(patch: Patch) -> None:
    """As when what cannot be read is left out of the array but not of the names."""
    rewrite(
        patch,
        results.write_results,
        "prediction_rows(photos.names, probabilities,",
        "prediction_rows(photos.names, np.roll(probabilities, len(photos) - len(usable), axis=0),",
    )


@of_results
def surest_images_are_asked_about_next(patch: Patch) -> None:
    rewrite(
        patch,
        label_next.label_next,
        'np.argsort(best - second_best, kind="stable")',
        'np.argsort(second_best - best, kind="stable")',
    )


@of_results
def images_with_a_label_are_asked_about_next(patch: Patch) -> None:
    real = label_next.label_next

    def wrong(probabilities, candidates, *rest, **options):
        return real(probabilities, np.arange(len(probabilities)), *rest, **options)

    replace(patch, real, wrong)


@of_results
def copies_of_one_image_are_asked_about_next(patch: Patch) -> None:
    rewrite(patch, label_next.label_next, "np.unique(groups[candidates[order]],", "np.unique(candidates[order],")


@of_results
def positions_among_the_candidates_are_taken_for_images(patch: Patch) -> None:
    rewrite(patch, label_next.label_next, "append(int(candidates[position]))", "append(int(position))")
