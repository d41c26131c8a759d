"""What the records say, in sentences a reader can quote."""

from collections.abc import Sequence
from statistics import fmean

from meanteacher.formats import count, percent, percentage
from meanteacher.report.names import BASELINE, name_in_sentence, place, recipe_labels
from meanteacher.report.pairs import Difference, paired_difference
from meanteacher.report.records import Part, Record, complete_runs
from meanteacher.report.tables import percent_spread, spread

LEADER = "mean-teacher"
"""The method an answer opens with, where it has run."""


def answer(records: Sequence[Record], *, part: Part = "test") -> list[str]:
    """The sentences that open a page, about complete runs with the same data and number of labels.

    The first sets Mean Teacher, or the first other method where it has not run, against supervised-only
    training. Which one leads never depends on the errors: the best of many looks better than it is.
    """
    baseline, others = baseline_and_others(records)
    if baseline is None:
        sentences = [_alone(records, recipe, part) for recipe in others]
        sentences += ["There are no supervised-only runs to compare with."]
    elif not others:
        sentences = [_alone(records, baseline, part), "There is no other method to compare with."]
    else:
        sentences = _compare(records, baseline, others[0], part)
        sentences += [" ".join(_compare(records, baseline, other, part)) for other in others[1:]]
    return [f"With {count(records[0].data.n_labelled, 'label')}, {sentences[0]}", *sentences[1:]]


def baseline_and_others(records: Sequence[Record]) -> tuple[str | None, list[str]]:
    """The recipe of the baseline, None if it has not run, and all others with Mean Teacher first."""
    methods = {record.recipe: record.method for record in complete_runs(records)}
    names = sorted(methods, key=lambda recipe: (methods[recipe] != LEADER, place(methods[recipe]), recipe))
    baseline = next((name for name in names if methods[name] == BASELINE), None)
    return baseline, [name for name in names if name != baseline]


def _compare(records: Sequence[Record], baseline: str, other: str, part: Part) -> list[str]:
    """The comparison and, where it is not clear, the honest sentence about it."""
    difference = paired_difference(records, baseline, other, part=part)
    labels, n_images = recipe_labels(records), records[0].data.n_images(part)
    ours = percent(fmean(pair.other for pair in difference.pairs), n_images)
    theirs = percent(fmean(pair.baseline for pair in difference.pairs), n_images)
    n_runs = len([record for record in records if record.complete and record.recipe in (baseline, other)])
    shared = " that both ran" if n_runs > 2 * difference.n else ""
    sentence = (
        f"{labels[other]} errs on {ours} of the {part} images and {name_in_sentence(labels[baseline])} on "
        f"{theirs}: {_points(difference, n_images)} over {count(difference.n, 'label draw')}{shared}."
    )
    return [sentence, *_caution(difference)]


def _points(difference: Difference, n_images: int) -> str:
    size = percentage(abs(difference.mean), n_images)
    direction = "less" if difference.mean < 0 else "more"
    text = f"{size} points {direction}" if float(size) else "no difference to that precision"
    if difference.standard_error is None:
        return text
    return f"{text}, standard error {percentage(difference.standard_error, n_images)}"


def _caution(difference: Difference) -> list[str]:
    if difference.standard_error is None:
        return ["One label draw cannot tell a better method from a luckier one."]
    if not difference.clear:
        return ["The difference is within two standard errors: these runs do not show which of the two is better."]
    if difference.n == 2:
        return ["A standard error from two label draws is itself uncertain: run more before relying on it."]
    return []


def _alone(records: Sequence[Record], recipe: str, part: Part) -> str:
    runs = [record for record in records if record.complete and record.recipe == recipe]
    over, n_images = spread([run.error(part) for run in runs]), runs[0].data.n_images(part)
    several = f" (mean and standard deviation over {len(runs)} label draws)" if len(runs) > 1 else ""
    return f"{recipe_labels(records)[recipe]} errs on {percent_spread(over, n_images)} % of the {part} images{several}."
