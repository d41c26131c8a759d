"""Silent mistakes in tables and pages: a number beside another's name, or of another kind than it says."""

import dataclasses
from collections.abc import Callable
from statistics import pstdev
from typing import Any

from catalogue import Catalogue, Patch, replace, wrap

import methods_page
from meanteacher import records
from meanteacher.photos.pages import fit_page
from meanteacher.report import compare, figures, page

MUTANTS = Catalogue()
of_records = MUTANTS.of("tables of runs")
of_fits = MUTANTS.of("report of a fit")


def _swap_words(patch: Patch, function: Callable[..., str], one: str, other: str) -> None:
    words = {one: other, other: one}
    wrap(patch, function, lambda real, *given: " ".join(words.get(word, word) for word in real(*given).split(" ")))


def _change_rows(patch: Patch, function: Callable[..., list[Any]], change: Callable[[Any], dict[str, Any]]) -> None:
    """Change fields of each row of a table."""

    def wrong(real: Callable[..., list[Any]], *given: Any, **options: Any) -> list[Any]:
        return [dataclasses.replace(row, **change(row)) for row in real(*given, **options)]

    wrap(patch, function, wrong)


# --- tables of runs ---------------------------------------------------------------------------------------------------


@of_records
def spread_is_the_standard_error(patch: Patch) -> None:
    def wrong(real, values):
        found = real(values)
        return found and dataclasses.replace(found, deviation=found.deviation and found.deviation / found.n**0.5)

    wrap(patch, compare.spread, wrong)


@of_records
def spread_is_divided_by_the_number_of_runs(patch: Patch) -> None:
    """Instead of by one less: three runs look a fifth closer together."""
    patch.setattr(compare, "stdev", pstdev)


@of_records
def errors_on_test_and_validation_images_change_places(patch: Patch) -> None:
    patch.setattr(records.ModelErrors, "on", lambda self, part: self.validation if part == "test" else self.test)


@of_records
def errors_of_the_teacher_stand_in_the_column_of_the_student(patch: Patch) -> None:
    _change_rows(patch, compare.summarise, lambda row: {"student": row.teacher})


@of_records
def runs_are_paired_in_the_order_of_their_files(patch: Patch) -> None:
    def wrong(real, runs):
        found = real(runs)
        return dict(zip(sorted(found), found.values(), strict=True))

    wrap(patch, compare.one_run_per_seed, wrong)
    replace(patch, compare._same_labelled_set, lambda one, other: None)


@of_records
def standard_error_is_not_divided_by_the_root_of_the_pairs(patch: Patch) -> None:
    def wrong(real, *given, **options):
        found = real(*given, **options)
        return dataclasses.replace(found, standard_error=found.standard_error * found.n**0.5)

    wrap(patch, compare.paired_difference, wrong)


@of_records
def baseline_and_method_change_places_in_a_difference(patch: Patch) -> None:
    patch.setattr(compare.Pair, "difference", property(lambda self: self.baseline - self.other))


@of_records
def lower_is_called_higher(patch: Patch) -> None:
    _swap_words(patch, page._points, "lower,", "higher,")


@of_records
def students_error_stands_for_that_of_the_run(patch: Patch) -> None:
    patch.setattr(records.Record, "error", lambda self, part: self.errors.last.student.on(part))


@of_records
def validation_error_stands_for_the_test_error(patch: Patch) -> None:
    patch.setattr(records.Record, "error", lambda self, part: self.errors.last.teacher.validation)


@of_records
def best_step_is_reported_instead_of_the_last(patch: Patch) -> None:
    """Chosen by looking at errors, so that they flatter."""

    patch.setattr(records.Record, "error", lambda self, part: self.errors.best_validation.teacher.on(part))


@of_records
def student_and_teacher_change_places_when_gathered(patch: Patch) -> None:
    def wrong(real, record):
        content = real(record)
        last = content["errors"]["last"]
        last["student"], last["teacher"] = last["teacher"], last["student"]
        return content

    wrap(patch, methods_page.to_json, wrong)


# --- the report of a fit ----------------------------------------------------------------------------------------------


@of_fits
def printed_confusion_matrix_is_transposed(patch: Patch) -> None:
    def wrong(real, fit):
        names, rows = zip(*real(fit), strict=True)
        return list(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    wrap(patch, fit_page.matrix, wrong)


@of_fits
def confusions_are_told_the_other_way_round(patch: Patch) -> None:
    _change_rows(patch, fit_page.confused_pairs, lambda pair: {"true": pair.mistaken_for, "mistaken_for": pair.true})


@of_fits
def confusions_are_counted_of_the_predicted_class(patch: Patch) -> None:
    def wrong(real, fit):
        names, rows = zip(*fit_page.matrix(fit), strict=True)
        totals = {name: sum(row[k] for row in rows) for k, name in enumerate(names)}
        return [dataclasses.replace(pair, of=totals[pair.mistaken_for]) for pair in real(fit)]

    wrap(patch, fit_page.confused_pairs, wrong)


@of_fits
def right_answers_of_a_class_are_called_wrong(patch: Patch) -> None:
    _change_rows(patch, fit_page.class_rows, lambda row: {"error": 1 - row.error})


@of_fits
def labels_of_a_class_are_those_that_were_judged(patch: Patch) -> None:
    _change_rows(patch, fit_page.class_rows, lambda row: {"n_labelled": row.n_tested})


@of_fits
def errors_before_and_now_change_places(patch: Patch) -> None:
    def wrong(real, fit):
        since = dataclasses.replace(fit.since, before=fit.since.now, now=fit.since.before)
        return real(dataclasses.replace(fit, since=since))

    wrap(patch, fit_page.since_sentence, wrong)


@of_records
def student_and_teacher_change_places_in_a_curve(patch: Patch) -> None:
    others = {"student": "teacher", "teacher": "student"}
    wrap(patch, figures.curve, lambda real, runs, part, model: real(runs, part, others[model]))


@of_records
def curve_is_averaged_where_only_some_runs_were_evaluated(patch: Patch) -> None:
    wrap(patch, figures.at_common_steps, lambda real, points, n_runs: {s: [v] for s, v in points})


@of_records
def changed_recipe_is_compared_with_the_unchanged_baseline(patch: Patch) -> None:
    def wrong(recipe, baseline):
        return len(compare.shared_path([recipe.partition("+")[0], baseline.partition("+")[0]])), "+" not in baseline

    replace(patch, compare._nearness, wrong)


@of_records
def recipe_is_compared_with_the_baseline_of_another_task(patch: Patch) -> None:
    replace(patch, compare._nearness, lambda recipe, baseline: (-len(baseline), True))
