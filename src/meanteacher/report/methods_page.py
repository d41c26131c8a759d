"""The page of all methods as Markdown: a table, then a section with a picture each, from records and docstrings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import escape

from meanteacher.formats import count, percent, percent_range, percentage
from meanteacher.report.contents import conditions
from meanteacher.report.fields import RecordError
from meanteacher.report.names import BASELINE
from meanteacher.report.pairs import Difference, paired_difference
from meanteacher.report.records import Record, complete_runs
from meanteacher.report.tables import Row, one_run_a_seed, percent_spread, summarise

FOLDER = "methods"
"""Beside the page: the pictures, and the numbers it is made of."""

NUMBERS = f"{FOLDER}/records.json"

HEADER = (
    "Method",
    "Student error, %",
    "Teacher error, %",
    "Against supervised-only, percentage points",
    "Seconds a run",
)


@dataclass(frozen=True, slots=True)
class MethodText:
    """What is said about a method beside its numbers."""

    title: str
    paper: str | None
    idea: str
    summary: str

    @classmethod
    def of(cls, docstring: str | None) -> "MethodText":
        r"""Read a method's docstring: `Title (Authors year): idea.`, and the paragraph after it.

        >>> text = MethodText.of("The Pi model (Laine & Aila 2017): two noisy passes must agree.\n\nBoth are trained.")
        >>> text.title, text.paper, text.idea, text.summary
        ('Pi model', 'Laine & Aila 2017', 'two noisy passes must agree.', 'Both are trained.')
        """
        opening, *rest = paragraphs(docstring) or [""]
        match = re.fullmatch(r"(?:The )?([^(:]+?)(?: \(([^)]+)\))?: (.+)", opening)
        if match is None:
            raise ValueError(
                f"A method's docstring opens with {opening!r}, expected a line such as "
                "'Mean Teacher (Tarvainen & Valpola 2017): agree with the average of one's past selves.'"
            )
        title, paper, idea = match.groups()
        return cls(title, paper, idea, "".join(rest[:1]))


def paragraphs(docstring: str | None) -> list[str]:
    r"""Each on one line.

    >>> paragraphs("One\n  line.\n\nAnother.")
    ['One line.', 'Another.']
    """
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", docstring or "") if part.strip()]


def median_run(runs: Sequence[Record]) -> Record:
    """The run in the middle by test error; the higher of the two in the middle of an even number."""
    return sorted(runs, key=lambda run: (run.error("test"), run.seed))[len(runs) // 2]


def description(title: str, run: Record) -> str:
    """A picture in words, for readers who do not see it."""
    return (
        f"{title}: the plane in the colours of the two classes, with the boundary between them, {run.data.n_test:,} "
        f"test points and the {run.data.n_labelled} labelled points of draw {run.seed + 1}"
    )


def methods_page(records: Sequence[Record], texts: Mapping[str, MethodText], note: str = "") -> str:
    """The page, with the methods in the order of `texts`; the same records and texts always give the same page.

    Args:
        records: the runs of every method, all over the same label draws
        texts: method -> what is said about it
        note: how the recipes were chosen, in a sentence or two
    """
    runs = _runs(records, texts)
    rows = {row.method: row for row in summarise(records)}
    differences = {method: paired_difference(records, BASELINE, method) for method in texts if method != BASELINE}
    data, n_draws = runs[BASELINE][0].data, len(runs[BASELINE])
    lines: list[tuple[str, ...]] = [HEADER, ("---", "---:", "---:", "---:", "---:")]
    lines += [_cells(texts[method], rows[method], differences.get(method)) for method in texts]
    parts = [
        f"<!-- Written by `meanteacher gallery` from {NUMBERS}: do not edit. -->",
        "# The methods on two moons",
        f"Every method learns from {data.n_labelled} labelled and {data.n_train - data.n_labelled} unlabelled points, "
        f"and is tested on {data.n_test:,} others, for the same {count(n_draws, 'draw')} of the labelled ones. "
        "In the pictures, a stronger background is a more certain prediction, the line is where both classes are "
        "equally probable, a dot is a test point in the colour of its true class, and the large marks are the "
        f"{data.n_labelled} labelled points.",
        "\n".join(f"| {' | '.join(line)} |" for line in lines),
        "Errors are the mean ± standard deviation over the draws, after the last step. The teacher is the average of "
        "the student's weights, which every method keeps; the comparison with supervised-only is the teacher's, "
        "paired by draw, ± its standard error. The paper, where a method names it or its sections, is Mean Teacher's. "
        f"{note}".strip(),
        " ".join(_findings(texts, differences, data.n_test)),
        *(part for method in texts for part in _section(method, texts[method], runs[method])),
        "---",
        f"Every number here comes from [{NUMBERS}]({NUMBERS}), which holds {count(len(records), 'run')} made with "
        f"{_made_with(records)}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _runs(records: Sequence[Record], texts: Mapping[str, MethodText]) -> dict[str, list[Record]]:
    """method -> its complete runs, over the same draws as all others."""
    runs = {method: [run for run in complete_runs(records) if run.method == method] for method in (BASELINE, *texts)}
    seeds = {method: sorted(one_run_a_seed(its)) for method, its in runs.items()}
    for method, its in seeds.items():
        if its != seeds[BASELINE] or not its:
            raise RecordError(
                f"{method} has run the draws {its} and {BASELINE} {seeds[BASELINE]}. Run all methods over the same."
            )
    return runs


def _cells(text: MethodText, row: Row, difference: Difference | None) -> tuple[str, ...]:
    anchor = re.sub(r"[^\w\- ]", "", text.title.lower()).replace(" ", "-")
    return (
        f"[{text.title}](#{anchor})",
        percent_spread(row.student, row.n_images),
        percent_spread(row.teacher, row.n_images),
        "–" if difference is None else _points(difference, row.n_images),
        f"{row.seconds:.1f}",
    )


def _points(difference: Difference, n_images: int) -> str:
    size = percentage(abs(difference.mean), n_images)
    sign = ("−" if difference.mean < 0 else "+") if float(size) else ""
    error = difference.standard_error
    return f"{sign}{size}" + ("" if error is None else f" ± {percentage(error, n_images)}")


def _findings(texts: Mapping[str, MethodText], differences: Mapping[str, Difference], n_images: int) -> list[str]:
    """What a reader must not overlook in the table: the methods that did not help, or may not have."""
    sentences = []
    for method, difference in differences.items():
        if difference.mean >= 0:
            size = percentage(difference.mean, n_images)
            error = f"{size} percentage points higher" if float(size) else "the same"
            sentences.append(f"{texts[method].title} does not beat supervised-only here: its mean error is {error}.")
    unclear = [texts[method].title for method, d in differences.items() if d.mean < 0 and not d.clear]
    if unclear:
        sentences.append(f"Within two standard errors, and so not shown to help by these runs: {_listed(unclear)}.")
    return sentences


def _section(method: str, text: MethodText, runs: Sequence[Record]) -> list[str]:
    shown = median_run(runs)
    source = f"{text.paper}: {text.idea}" if text.paper else text.idea[:1].upper() + text.idea[1:]
    alarming = [run for run in runs if run.alarms]
    kinds = _listed(sorted({alarm.kind for run in alarming for alarm in run.alarms}))
    return [
        f"## {text.title}",
        source,
        text.summary,
        f'<img src="{FOLDER}/{method}.svg" width="480" alt="{escape(description(text.title, shown))}">',
        f"*{_caption(shown, runs)}*",
        f"The vitals raised an alarm in {count(len(alarming), 'run')}: {kinds}." if alarming else "",
    ]


def _caption(shown: Record, runs: Sequence[Record]) -> str:
    errors = sorted(run.error("test") for run in runs)
    n_images = shown.data.n_test
    middle = "the higher of the two in the middle" if len(runs) % 2 == 0 else "the median"
    return (
        f"The teacher of draw {shown.seed + 1} (seed {shown.seed}), which errs on "
        f"{percent(shown.error('test'), n_images)} of the test points: {middle} of the {count(len(runs), 'draw')}, "
        f"whose errors go from {percent_range(errors[0], errors[-1], n_images)}."
    )


def _made_with(records: Sequence[Record]) -> str:
    return ", ".join(f"{name} {' and '.join(values)}" for name, values in conditions(records).items())


def _listed(names: Sequence[str]) -> str:
    """A, B and C."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
