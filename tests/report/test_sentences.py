import pytest

from meanteacher.report import answer
from meanteacher.report.compare import baseline_differences


@pytest.fixture
def runs(run):
    def runs(method, *errors, **changes):
        return [run(method, seed, student=0.9, teacher=e, **changes) for seed, e in enumerate(errors)]

    return runs


def test_the_answer_is_one_sentence_where_the_difference_is_clear(runs):
    records = runs("mean-teacher", 0.05, 0.06, 0.07) + runs("supervised", 0.10, 0.14, 0.12)
    assert answer(records) == [
        "With 40 labels, the test error is 6.0 % with Mean Teacher and 12.0 % with supervised-only training: "
        "6.0 points lower, with a standard error of 1.0 over 3 label draws."
    ]


def test_a_difference_within_two_standard_errors_is_said_not_to_be_shown(runs):
    records = runs("mean-teacher", 0.10, 0.02, 0.12) + runs("supervised", 0.10, 0.10, 0.10)
    first, second = answer(records)
    assert "2.0 points lower, with a standard error of 3.1" in first
    assert second == (
        "Within two standard errors of supervised-only training, so these runs do not show a difference: Mean Teacher."
    )


def test_a_higher_error_is_said_to_be_higher(runs):
    (sentence,) = answer(runs("mean-teacher", 0.2, 0.21, 0.22) + runs("supervised", 0.1, 0.1, 0.1))
    assert "11.0 points higher" in sentence


def test_equal_errors_are_no_difference(runs):
    first, second = answer(runs("mean-teacher", 0.1, 0.1) + runs("supervised", 0.1, 0.1))
    assert "no difference to that precision, with a standard error of 0.0" in first
    assert "Within two standard errors" in second


def test_one_label_draw_is_not_called_a_result(runs):
    first, second = answer(runs("mean-teacher", 0.05) + runs("supervised", 0.10))
    assert first.endswith("5.0 points lower over 1 label draw.")
    assert second == "Compared on one label draw only, which cannot show which method is better: Mean Teacher."


def test_two_label_draws_come_with_a_warning(runs):
    _, second = answer(runs("mean-teacher", 0.05, 0.06) + runs("supervised", 0.20, 0.20))
    assert "two label draws only, so the standard error is itself uncertain" in second


def test_the_sentence_is_about_the_draws_both_ran(runs):
    (sentence,) = answer(runs("mean-teacher", 0.05, 0.06, 0.07, 0.99) + runs("supervised", 0.1, 0.14, 0.12))
    assert "is 6.0 % with" in sentence
    assert sentence.endswith("over 3 label draws that both ran.")


def test_mean_teacher_leads_even_where_another_method_has_a_lower_error(runs):
    records = runs("pi-model", 0.01, 0.02, 0.03) + runs("supervised", 0.1, 0.14, 0.12)
    first, second = answer(records + runs("mean-teacher", 0.05, 0.06, 0.07))
    assert first.startswith("With 40 labels, the test error is 6.0 % with Mean Teacher")
    assert second.startswith("The test error is 2.0 % with Pi model and 12.0 %")
    assert answer(records + runs("mean-teacher", 0.05, 0.06, 0.07), brief=True) == [first]


def test_methods_of_which_the_same_must_be_said_share_a_sentence(runs):
    records = runs("supervised", 0.1, 0.14, 0.12) + runs("mean-teacher", 0.05, 0.06, 0.07)
    told = answer(records + runs("vat", 0.02) + runs("fixmatch", 0.03) + runs("pi-model", 0.1, 0.15, 0.12), brief=True)
    assert told[1:] == [
        "Compared on one label draw only, which cannot show which method is better: VAT and FixMatch.",
        "Within two standard errors of supervised-only training, so these runs do not show a difference: Pi model.",
    ]


def test_a_method_on_other_label_draws_is_shown_and_not_compared(run, runs):
    records = [*runs("supervised", 0.1, 0.12), run("mean-teacher", 7, teacher=0.05)]
    assert answer(records) == [
        "With 40 labels, the test error is 5.0 % with Mean Teacher.",
        "Not compared, since supervised-only training ran on other label draws: Mean Teacher.",
    ]


def test_a_recipe_is_compared_with_the_baseline_of_the_nearest_name(runs):
    records = [
        *runs("supervised", 0.1, recipe="fast/svhn-500/supervised"),
        *runs("supervised", 0.2, recipe="small/svhn-500/supervised"),
        *runs("supervised", 0.3, recipe="small/svhn-500/supervised+steps=9"),
        *runs("mean-teacher", 0.05, recipe="fast/svhn-500"),
        *runs("mean-teacher", 0.05, recipe="small/svhn-500/mean-teacher"),
        *runs("mean-teacher", 0.05, recipe="small/svhn-500/mean-teacher+steps=9"),
        *runs("mean-teacher", 0.05, recipe="of-my-own"),
    ]
    differences = baseline_differences(records)
    assert {recipe: difference.pairs[0].baseline for recipe, difference in differences.items()} == {
        "fast/svhn-500": 0.1,
        "small/svhn-500/mean-teacher": 0.2,
        "small/svhn-500/mean-teacher+steps=9": 0.3,
        "of-my-own": 0.1,
    }


def test_without_a_baseline_nothing_is_compared(runs):
    assert answer(runs("mean-teacher", 0.10, 0.12, 0.17)) == [
        "With 40 labels, the test error is 13.0 ± 3.6 % with Mean Teacher "
        "(mean and standard deviation over 3 label draws).",
        "There are no supervised-only runs to compare with.",
    ]


def test_a_baseline_alone_has_nothing_to_be_compared_with(runs):
    first, second = answer(runs("supervised", 0.1, n_labelled=1))
    assert first == "With 1 label, the test error is 10.0 % with supervised-only training."
    assert second == "There is no other method to compare with."
