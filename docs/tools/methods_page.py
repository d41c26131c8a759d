"""The page of all methods as Markdown, and the file of numbers it is made from."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from markupsafe import escape

from meanteacher.files.typed import RecordError, read_json
from meanteacher.formats import BASELINE, count, listed, percent, percent_range, percentage
from meanteacher.records import SCHEMA, Record, to_json
from meanteacher.report.compare import (
    Difference,
    Row,
    markdown_table,
    one_run_per_seed,
    paired_difference,
    percent_spread,
    summarise,
)
from meanteacher.report.page import caution, conditions


@dataclass(frozen=True, slots=True)
class Gathered:
    """The file of numbers: the runs without the fields of their recipes, their curves and their vitals."""

    runs: tuple[Record, ...]
    schema: Literal[1] = 1


def gathered(records: Iterable[Record]) -> str:
    """The runs as JSON, one per line: their test errors and all that is needed to make them again."""
    lines = [to_json(replace(run, recipe=replace(run.recipe, fields={}), curve=(), vitals=())) for run in records]
    return '{"schema": 1, "runs": [\n' + ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n]}\n"


def load_gathered(path: str | Path) -> list[Record]:
    """The runs again."""
    content = read_json(Path(path), Gathered, "Write it again from the runs.", schema=SCHEMA)
    return [replace(run, file=f"{path}: runs[{i}]") for i, run in enumerate(content.runs)]


FOLDER = "methods"
"""Beside the page: the pictures, and the numbers it is made of."""

NUMBERS = f"{FOLDER}/records.json"

HEADER = (
    "Method",
    "Student error, %",
    "Teacher error, %",
    "Difference to supervised-only, percentage points",
    "Processor seconds per run",
)


EQUATIONS = {
    "supervised": r"J = C",
    "pseudo-label": r"""
J = C + \frac{w}{|U|} \sum_{x \in U} -\log f_{\hat y}(x, \theta, \eta),
\quad \hat y = \mathrm{argmax}_k f_k(x, \theta, \eta)
""",
    "pseudo-ensemble": r"J = C + \frac{w}{K} \, \mathbb{E} \lVert f(x, \theta, \eta) - f(x, \theta) \rVert^2",
    "gamma-model": r"J = C + \frac{w}{K} \, \mathbb{E} \lVert g(f(x, \theta, \eta)) - \bar f(x, \theta) \rVert^2",
    "pi-model": r"J = C + \frac{w}{K} \, \mathbb{E} \lVert f(x, \theta, \eta) - f(x, \theta, \eta') \rVert^2",
    "temporal-ensembling": r"""
J = C + \frac{w}{K} \, \mathbb{E} \lVert f(x, \theta, \eta) - \frac{z_n(x)}{1 - \alpha^n} \rVert^2,
\quad z_n(x) = \alpha \, z_{n-1}(x) + (1 - \alpha) \, \bar f(x, \theta, \eta)
""",
    "improved-gan": r"""
J = C - \frac{w}{2} \, \mathbb{E} \left[ \log D(x) + \log(1 - D(G(n))) \right]
+ w \, | \mathbb{E} \, h(x) - \mathbb{E} \, h(G(n)) |,
\quad D = \frac{\sum_k e^{z_k}}{1 + \sum_k e^{z_k}}
""",
    "vat": r"""
J = C + w \, \mathbb{E} \, D( \bar f(x, \theta, \eta), f(x + r, \theta, \eta) ),
\quad r = \mathrm{argmax}_{\lVert r \rVert = \epsilon} D( f(x, \theta, \eta), f(x + r, \theta, \eta) )
""",
    "vat-entmin": r"""
J = C + w \, \mathbb{E} \, D( \bar f(x, \theta, \eta), f(x + r, \theta, \eta) )
- \lambda w \, \mathbb{E} \sum_k f_k(x, \theta, \eta) \log f_k(x, \theta, \eta)
""",
    "mean-teacher": r"""
J = C + \frac{w}{K} \, \mathbb{E} \lVert f(x, \theta, \eta) - f(x, \theta', \eta') \rVert^2,
\quad \theta'_t = \alpha \, \theta'_{t-1} + (1 - \alpha) \, \theta_t
""",
    "mean-teacher-vat": r"J = C + w \, \mathbb{E} \, D( f(x, \theta', \eta'), f(x + r, \theta, \eta) )",
    "fixmatch": r"""
J = C + \frac{w}{|U|} \sum_{x \in U} 1[ p_{\hat y} \ge \tau ] \, ( -\log f_{\hat y}(x', \theta, \eta) ),
\quad p = \bar f(x, \theta, \eta), \quad \hat y = \mathrm{argmax}_k p_k
""",
    "freematch": r"""
J = C + \frac{w}{|U|} \sum_{x \in U} 1[ p_{\hat y} \ge \tau_{\hat y} ] \, ( -\log f_{\hat y}(x', \theta, \eta) ),
\quad \tau_k = \tau \, \frac{q_k}{\max_j q_j}
""",
}
"""method -> the cost of a step, in TeX."""

NOTATION = """
In the equations *f*(*x*, θ, η) is the softmax output for *x* with weights θ and noise η: the view and the dropout.
Without η there is no noise. *C* is the classification cost, −log *f* of the label, averaged over the labelled rows; *U*
are the unlabelled rows. *w* is the weight at this step, *K* the number of classes, θ′ the average of the weights, *D*
with two arguments the KL divergence. Terms with a bar or θ′ are constant for the gradient. In the Gamma model, *g* is
the denoiser of the logits. In the improved GAN, *z* are the logits, *h* the features before the last layer,
*G* is the generator and *n* its noise; the last cost trains the generator alone, the others the student. *x*′ is the
strong view of *x*. In FreeMatch, τ and *q* are running averages of the confidence, overall and per class.
"""


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
    lines = [_cells(texts[method], rows[method], differences.get(method), runs[method]) for method in texts]
    parts = [
        f"<!-- Written by `python docs/tools/gallery.py` from {NUMBERS}: do not edit. -->",
        "# The methods on two moons",
        f"Every method learns from {data.n_labelled} labelled and {data.n_train - data.n_labelled} unlabelled points, "
        f"and is tested on {data.n_test:,} others, for the same {count(n_draws, 'draw')} of the labelled ones. "
        "In the pictures, a stronger background is a more certain prediction, both classes are equally probable on "
        "the line, a dot is a test point in the colour of its true class, and the large marks are the "
        f"{data.n_labelled} labelled points.",
        markdown_table(HEADER, lines),
        "Errors are the mean ± standard deviation over the draws, after the last step. The teacher is the average of "
        "the student's weights, which every method keeps; the comparison with supervised-only is the teacher's, "
        "paired by draw, ± its standard error. Mentions of the paper and its sections mean the paper on Mean Teacher. "
        f"{note}".strip(),
        " ".join(_findings(texts, differences, data.n_test)),
        NOTATION.strip(),
        *(part for method in texts for part in _section(method, texts[method], runs[method])),
        "---",
        f"Every number here comes from [{NUMBERS}]({NUMBERS}), which holds {count(len(records), 'run')} made with "
        f"{_made_with(records)}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _runs(records: Sequence[Record], texts: Mapping[str, MethodText]) -> dict[str, list[Record]]:
    """method -> its runs, over the same draws as all others."""
    runs = {method: [run for run in records if run.method == method] for method in (BASELINE, *texts)}
    seeds = {method: sorted(one_run_per_seed(its)) for method, its in runs.items()}
    for method, its in seeds.items():
        if its != seeds[BASELINE] or not its:
            raise RecordError(
                f"{method} has run the draws {its} and {BASELINE} {seeds[BASELINE]}. Run all methods over the same."
            )
    return runs


def _cells(text: MethodText, row: Row, difference: Difference | None, runs: Sequence[Record]) -> tuple[str, ...]:
    anchor = re.sub(r"[^\w\- ]", "", text.title.lower()).replace(" ", "-")
    return (
        f"[{text.title}](#{anchor})",
        percent_spread(row.student, row.n_images),
        percent_spread(row.teacher, row.n_images),
        "–" if difference is None else difference.cell(row.n_images),
        f"{fmean(run.cpu_seconds or run.seconds for run in runs):.1f}",
    )


def _findings(texts: Mapping[str, MethodText], differences: Mapping[str, Difference], n_images: int) -> list[str]:
    """What a reader must not overlook in the table: the methods that did not help, or may not have."""
    sentences = []
    for method, difference in differences.items():
        if difference.mean >= 0:
            size = percentage(difference.mean, n_images)
            error = f"{size} percentage points higher" if float(size) else "the same"
            sentences.append(f"{texts[method].title} does not beat supervised-only here: its mean error is {error}.")
    return sentences + caution({texts[method].title: each for method, each in differences.items() if each.mean < 0})


def _section(method: str, text: MethodText, runs: Sequence[Record]) -> list[str]:
    shown = median_run(runs)
    source = f"{text.paper}: {text.idea}" if text.paper else text.idea[:1].upper() + text.idea[1:]
    alarming = [run for run in runs if run.alarms]
    kinds = listed(sorted({alarm.kind for run in alarming for alarm in run.alarms}))
    return [
        f"## {text.title}",
        source,
        text.summary,
        f"$$\n{EQUATIONS[method].strip()}\n$$",
        f'<img src="{FOLDER}/{method}.svg" width="480" alt="{escape(description(text.title, shown))}">',
        f"*{_caption(shown, runs)}*",
        f"`examples/methods/{method.replace('-', '_')}.py` is a whole program.",
        f"The health checks raised an alarm in {count(len(alarming), 'run')}: {kinds}." if alarming else "",
    ]


def _caption(shown: Record, runs: Sequence[Record]) -> str:
    errors = sorted(run.error("test") for run in runs)
    n_images = shown.data.n_test
    middle = "the higher of the two middle errors" if len(runs) % 2 == 0 else "the median"
    return (
        f"The teacher of draw {shown.seed + 1} (seed {shown.seed}), with a test error of "
        f"{percent(shown.error('test'), n_images)}: {middle} of {count(len(runs), 'draw')}, which range from "
        f"{percent_range(errors[0], errors[-1], n_images)}."
    )


def _made_with(records: Sequence[Record]) -> str:
    return ", ".join(f"{name} {' and '.join(values)}" for name, values in conditions(records).items())
