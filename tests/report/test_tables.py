import pytest

from meanteacher.formats import percentage
from meanteacher.report import RecordError, display_name, load_record, summarise, to_text


def test_a_row_holds_mean_and_standard_deviation_over_runs(run):
    errors = (0.10, 0.12, 0.17)
    (row,) = summarise([run(seed=seed, student=2 * e, teacher=e) for seed, e in enumerate(errors)])
    # The deviations are -0.03, -0.01 and 0.04; their squares sum to 0.0026, and half of that is 0.0013.
    assert row.n_runs == 3
    assert row.teacher.mean == pytest.approx(0.13)
    assert row.teacher.deviation == pytest.approx(0.0013**0.5)
    assert row.student.mean == pytest.approx(0.26)
    assert row.student.deviation == pytest.approx(2 * 0.0013**0.5)


def test_a_single_run_has_no_spread(run):
    (row,) = summarise([run()])
    assert row.teacher.deviation is None
    assert "±" not in to_text([row])


def test_the_baseline_comes_first_and_unknown_methods_last(run):
    methods = ["zigzag", "mean-teacher", "supervised", "pi-model", "a-new-one"]
    rows = summarise([run(method) for method in methods])
    assert [row.label for row in rows] == [
        "Supervised-only",
        "Pi model",
        "Mean Teacher",
        "A new one",
        "Zigzag",
    ]


def test_a_recipe_is_not_averaged_over_different_numbers_of_labels(run):
    rows = summarise([run(n_labelled=100, teacher=0.02), run(n_labelled=40, teacher=0.08)])
    assert [(row.n_labelled, row.teacher.mean) for row in rows] == [(40, 0.08), (100, 0.02)]


def test_recipes_that_share_a_method_are_told_apart(run):
    rows = summarise([run(recipe="fast"), run(recipe="slow"), run("supervised")])
    assert [row.label for row in rows] == ["Supervised-only", "Mean Teacher (fast)", "Mean Teacher (slow)"]
    names = ("a/b", "a/b/minutes-10", "a/b/minutes-3")
    labels = [row.label for row in summarise([run(recipe=name) for name in names])]
    assert labels == ["Mean Teacher (b)", "Mean Teacher (b/minutes-3)", "Mean Teacher (b/minutes-10)"]


def test_a_run_counted_twice_is_refused(run):
    with pytest.raises(RecordError, match=r"both digits/mean-teacher with seed 0. Keep one"):
        summarise([run(seed=0), run(seed=0)])


def test_two_versions_of_a_recipe_are_not_averaged(content, run, write):
    changed = content(seed=1)
    changed["recipe"]["fingerprint"] = "another"
    with pytest.raises(RecordError, match=r"two different recipes digits/mean-teacher.*Keep the runs of one"):
        summarise([run(seed=0), load_record(write(changed))])


def test_an_error_that_was_not_measured_is_a_dash(run):
    (row,) = summarise([run()], part="validation")
    assert row.teacher is None
    assert to_text([row]).splitlines()[-1].split()[-2:] == ["–", "–"]


def test_a_table_holds_percentages(run):
    records = [run("supervised", seed, student=e, teacher=e) for seed, e in enumerate((0.10, 0.12, 0.17))]
    assert to_text(summarise(records)) == (
        "Method           Recipe             Labels  Runs  Student error, %  Teacher error, %\n"
        "Supervised-only  digits/supervised      40     3        13.0 ± 3.6        13.0 ± 3.6\n"
    )


def test_plain_text_is_aligned(run):
    records = [run("supervised"), run("mean-teacher", recipe="a much longer name of a recipe")]
    lines = to_text(summarise(records)).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:2] == ["Supervised-only", "digits/supervised"]


def test_large_test_sets_earn_a_second_digit(run):
    assert "8.00" in to_text(summarise([run(n_test=10_000)]))
    assert "8.00" not in to_text(summarise([run(n_test=9_999)]))


def test_a_difference_that_rounds_to_zero_has_no_sign():
    assert percentage(-0.0001, 597) == "0.0"


def test_methods_have_names_people_read():
    assert display_name("supervised") == "Supervised-only"
    assert display_name("virtual-adversarial-training") == "Virtual adversarial training"
