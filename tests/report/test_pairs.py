import pytest

from meanteacher.report import RecordError, load_record, paired_difference


def runs_of(run, method, errors, **changes):
    return [run(method, seed, student=e, teacher=e, **changes) for seed, e in errors.items()]


@pytest.fixture
def records(run):
    baseline = runs_of(run, "supervised", {0: 0.10, 1: 0.14, 2: 0.12})
    # Written in another order: pairs are made by seed, not by position.
    return baseline + runs_of(run, "mean-teacher", {2: 0.07, 0: 0.05, 1: 0.06})


def test_the_paired_difference_is_the_one_computed_by_hand(records):
    difference = paired_difference(records, "digits/supervised", "digits/mean-teacher")
    # Differences -0.05, -0.08, -0.05: mean -0.06, squared deviations sum to 0.0006, variance 0.0003,
    # standard error (0.0003 / 3) ** 0.5 = 0.01.
    assert difference.n == 3
    assert difference.mean == pytest.approx(-0.06)
    assert difference.standard_error == pytest.approx(0.01)
    assert [(pair.seed, pair.baseline, pair.other) for pair in difference.pairs] == [
        (0, 0.10, 0.05),
        (1, 0.14, 0.06),
        (2, 0.12, 0.07),
    ]


def test_a_method_may_stand_for_its_only_recipe(records):
    by_method = paired_difference(records, "supervised", "mean-teacher")
    assert by_method == paired_difference(records, "digits/supervised", "digits/mean-teacher")


def test_a_method_with_several_recipes_must_be_named_exactly(run, records):
    records += runs_of(run, "mean-teacher", {0: 0.01}, recipe="digits/other")
    with pytest.raises(RecordError, match="several recipes here: name one of digits/mean-teacher, digits/other"):
        paired_difference(records, "supervised", "mean-teacher")


def test_a_seed_only_one_of_them_ran_is_left_out(run, records):
    records += runs_of(run, "mean-teacher", {7: 0.99})
    assert [pair.seed for pair in paired_difference(records, "supervised", "mean-teacher").pairs] == [0, 1, 2]


@pytest.mark.parametrize(
    ("field", "within"), [("split_fingerprint", None), ("data", "fingerprint")], ids=["split", "data"]
)
def test_the_same_seed_on_another_labelled_set_is_not_a_pair(content, run, write, field, within):
    other = content("mean-teacher", 0)
    other[field] = other[field] | {within: "another"} if within else "another"
    with pytest.raises(RecordError, match=r"share seed 0 but not the labelled set.*not a pair"):
        paired_difference([run("supervised", 0), load_record(write(other))], "supervised", "mean-teacher")


def test_one_pair_has_no_standard_error(run):
    difference = paired_difference([run("supervised"), run("mean-teacher")], "supervised", "mean-teacher")
    assert difference.standard_error is None
    assert not difference.clear


def test_recipes_without_a_common_seed_are_refused(run):
    with pytest.raises(RecordError, match=r"no seed in common: \[0\] and \[1\]"):
        paired_difference([run("supervised", 0), run("mean-teacher", 1)], "supervised", "mean-teacher")


def test_an_unknown_recipe_is_answered_with_the_known_ones(records):
    with pytest.raises(RecordError, match=r"No run of 'vat'.*digits/mean-teacher, digits/supervised"):
        paired_difference(records, "supervised", "vat")


def test_a_difference_is_clear_beyond_two_standard_errors(run):
    def difference(*errors):
        zero = runs_of(run, "supervised", dict.fromkeys(range(len(errors)), 0.5))
        return paired_difference(
            zero + runs_of(run, "mean-teacher", dict(enumerate(errors))), "supervised", "mean-teacher"
        )

    # Differences of -0.3 and -0.1: mean -0.2, standard error 0.1, so exactly two of them.
    assert not difference(0.2, 0.4).clear
    assert difference(0.2, 0.38).clear
    assert difference(0.8, 0.62).clear
