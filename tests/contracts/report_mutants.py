"""Silent mistakes in tables and pages: a number beside another's name, or of another kind than it says."""

from statistics import pstdev

from catalogue import Catalogue, Patch, replace, rewrite

from meanteacher.photos.pages import fit_page, fit_tables
from meanteacher.report import compare, methods_page, page, records

MUTANTS = Catalogue()
of_records = MUTANTS.of("tables of runs")
of_fits = MUTANTS.of("report of a fit")


# --- tables of runs ---------------------------------------------------------------------------------------------------


@of_records
def spread_is_the_standard_error(patch: Patch) -> None:
    rewrite(patch, compare.spread, "stdev(measured) if", "stdev(measured) / len(measured) ** 0.5 if")


@of_records
def spread_is_divided_by_the_number_of_runs(patch: Patch) -> None:
    """Instead of by one less: three runs look a fifth closer together."""
    patch.setattr(compare, "stdev", pstdev)


@of_records
def runs_that_diverged_are_averaged_too(patch: Patch) -> None:
    rewrite(patch, compare.summarise, "if record.complete:", "if record.last is not None:")


@of_records
def errors_of_the_teacher_stand_in_the_column_of_the_student(patch: Patch) -> None:
    rewrite(patch, compare.summarise, "error.student for error in errors", "error.teacher for error in errors")


@of_records
def runs_are_paired_in_the_order_of_their_files(patch: Patch) -> None:
    rewrite(
        patch,
        compare.paired_difference,
        "Pair(seed, ours[seed].error(part), theirs[seed].error(part)) for seed in seeds",
        "Pair(seed, one.error(part), other.error(part)) "
        "for seed, one, other in zip(seeds, ours.values(), theirs.values())",
    )


@of_records
def standard_error_is_not_divided_by_the_root_of_the_pairs(patch: Patch) -> None:
    rewrite(patch, compare.paired_difference, "stdev(differences) / len(pairs) ** 0.5", "stdev(differences)")


@of_records
def baseline_and_method_change_places_in_a_difference(patch: Patch) -> None:
    rewrite(patch, compare.Pair.difference.fget, "self.other - self.baseline", "self.baseline - self.other")


@of_records
def lower_is_called_higher(patch: Patch) -> None:
    rewrite(patch, page._points, "difference.mean < 0", "difference.mean > 0")


@of_records
def students_error_stands_for_that_of_the_run(patch: Patch) -> None:
    rewrite(
        patch,
        records.Errors.shipped.fget,
        "self.student if self.teacher is None else self.teacher",
        "self.teacher if self.student is None else self.student",
    )


@of_records
def validation_error_stands_for_the_test_error(patch: Patch) -> None:
    real = records.Record.errors
    patch.setattr(records.Record, "errors", lambda self, part: real(self, "validation"))


@of_records
def best_step_is_reported_instead_of_the_last(patch: Patch) -> None:
    """Chosen by looking at errors, so that they flatter."""
    rewrite(patch, records._record, 'field["errors"]["last"]', 'field["errors"]["best_validation"]')


@of_records
def student_and_teacher_change_places_when_gathered(patch: Patch) -> None:
    rewrite(patch, methods_page._run, '("student", "teacher")', '("teacher", "student")')


# --- the report of a fit ----------------------------------------------------------------------------------------------


@of_fits
def errors_stand_beside_the_other_model(patch: Patch) -> None:
    rewrite(
        patch,
        fit_tables._interval,
        "else display_name(method)",
        "else display_name(BASELINE if method == OURS else OURS)",
    )


@of_fits
def accuracy_is_called_error(patch: Patch) -> None:
    rewrite(patch, fit_tables._interval, "(estimate[key] for key in", "(1 - estimate[key] for key in")


@of_fits
def ends_of_the_interval_change_places(patch: Patch) -> None:
    rewrite(patch, fit_tables._interval, '("error", "low", "high")', '("error", "high", "low")')


@of_fits
def printed_confusion_matrix_is_transposed(patch: Patch) -> None:
    rewrite(
        patch,
        fit_tables.matrix,
        "zip(names, confusion, strict=True)",
        "zip(names, zip(*confusion, strict=True), strict=True)",
    )


@of_fits
def confusions_are_told_the_other_way_round(patch: Patch) -> None:
    rewrite(patch, fit_tables.confused_pairs, "Confused(names[i], names[j]", "Confused(names[j], names[i]")


@of_fits
def confusions_are_counted_of_the_predicted_class(patch: Patch) -> None:
    rewrite(patch, fit_tables.confused_pairs, "sum(confusion[i])", "sum(row[j] for row in confusion)")


@of_fits
def right_answers_of_a_class_are_called_wrong(patch: Patch) -> None:
    rewrite(patch, fit_tables.class_rows, "round(row['error'] * ", "round((1 - row['error']) * ")


@of_fits
def labels_of_a_class_are_those_that_were_judged(patch: Patch) -> None:
    rewrite(patch, fit_tables.class_rows, 'n_labelled=row["n_labelled"]', 'n_labelled=row["n_judged"]')


@of_fits
def fewer_errors_are_called_more(patch: Patch) -> None:
    real = fit_page.difference_sentence

    def wrong(fit):
        words = {"fewer": "more", "more": "fewer"}
        return " ".join(words.get(word, word) for word in real(fit).split(" "))

    replace(patch, real, wrong)


@of_fits
def gain_is_claimed_that_may_be_chance(patch: Patch) -> None:
    rewrite(patch, fit_page.supported, 'bool(difference and difference["low"] > 0)', "True")


@of_fits
def other_model_is_said_to_be_in_the_folder(patch: Patch) -> None:
    rewrite(patch, fit_page.shipped_sentence, "if shipped == OURS:", "if shipped != OURS:")
