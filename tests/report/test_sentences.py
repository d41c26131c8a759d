import pytest

from meanteacher.report import RecordError, answer


@pytest.fixture
def runs(run):
    def runs(method, *errors, **changes):
        return [run(method, seed, student=0.9, teacher=e, **changes) for seed, e in enumerate(errors)]

    return runs


def test_the_answer_is_one_sentence_where_the_difference_is_clear(runs):
    records = runs("mean-teacher", 0.05, 0.06, 0.07) + runs("supervised", 0.10, 0.14, 0.12)
    assert answer(records) == [
        "With 40 labels, Mean Teacher errs on 6.0 % of the test images and supervised-only on 12.0 %: "
        "6.0 points less, standard error 1.0 over 3 label draws."
    ]


def test_a_difference_within_two_standard_errors_is_said_not_to_be_shown(runs):
    records = runs("mean-teacher", 0.10, 0.02, 0.12) + runs("supervised", 0.10, 0.10, 0.10)
    first, second = answer(records)
    assert "2.0 points less, standard error 3.1" in first
    assert second.startswith("The difference is within two standard errors: these runs do not show which")


def test_a_method_that_errs_more_is_said_to_err_more(runs):
    (sentence,) = answer(runs("mean-teacher", 0.2, 0.21, 0.22) + runs("supervised", 0.1, 0.1, 0.1))
    assert "11.0 points more" in sentence


def test_equal_errors_are_no_difference(runs):
    first, second = answer(runs("mean-teacher", 0.1, 0.1) + runs("supervised", 0.1, 0.1))
    assert "no difference to that precision, standard error 0.0" in first
    assert "within two standard errors" in second


def test_one_label_draw_is_not_called_a_result(runs):
    first, second = answer(runs("mean-teacher", 0.05) + runs("supervised", 0.10))
    assert first.endswith("5.0 points less over 1 label draw.")
    assert second == "One label draw cannot tell a better method from a luckier one."


def test_two_label_draws_come_with_a_warning(runs):
    _, second = answer(runs("mean-teacher", 0.05, 0.06) + runs("supervised", 0.20, 0.20))
    assert "two label draws is itself uncertain" in second


def test_the_sentence_is_about_the_draws_both_ran(runs):
    (sentence,) = answer(runs("mean-teacher", 0.05, 0.06, 0.07, 0.99) + runs("supervised", 0.1, 0.14, 0.12))
    assert "errs on 6.0 %" in sentence
    assert sentence.endswith("over 3 label draws that both ran.")


def test_mean_teacher_leads_even_where_another_method_errs_less(runs):
    records = runs("pi-model", 0.01, 0.02, 0.03) + runs("supervised", 0.1, 0.14, 0.12)
    first, second = answer(records + runs("mean-teacher", 0.05, 0.06, 0.07))
    assert first.startswith("With 40 labels, Mean Teacher errs on 6.0 %")
    assert second.startswith("Pi model errs on 2.0 %")


def test_without_a_baseline_nothing_is_compared(runs):
    assert answer(runs("mean-teacher", 0.10, 0.12, 0.17)) == [
        "With 40 labels, Mean Teacher errs on 13.0 ± 3.6 % of the test images "
        "(mean and standard deviation over 3 label draws).",
        "There are no supervised-only runs to compare with.",
    ]


def test_a_baseline_alone_has_nothing_to_be_compared_with(runs):
    first, second = answer(runs("supervised", 0.1, n_labelled=1))
    assert first == "With 1 label, Supervised-only errs on 10.0 % of the test images."
    assert second == "There is no other method to compare with."


def test_no_complete_run_is_no_answer(runs):
    with pytest.raises(RecordError, match="None of 1 runs is complete"):
        answer(runs("supervised", 0.1, status="running"))
