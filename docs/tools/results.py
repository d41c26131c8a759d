"""Write docs/results.md from docs/records: every table, and every number of a record in the sentences between them.

The first results of README.md are written, too. The pictures of figures 3 and 4 on a laptop are written beside it.

python docs/tools/results.py
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import meanteacher as mt
from meanteacher.data import Fixed
from meanteacher.experiment.operations import row_operations
from meanteacher.experiment.runs import complete
from meanteacher.files import write_atomic
from meanteacher.formats import BASELINE, duration, listed, percent
from meanteacher.paper.figures import describe_curves
from meanteacher.paper.layout import LAPTOP, LAPTOP_FIGURES, LAPTOP_TABLES, OUR_TABLES
from meanteacher.paper.reproduce import COMPARED, panels_of, tables_of
from meanteacher.paper.runs import recipe_names, runs_of
from meanteacher.paper.tables import ORDERING_HEADER, Ordering, PaperTable, orderings_of
from meanteacher.recipes import RECIPES
from meanteacher.records import Record, load_records
from meanteacher.report.compare import (
    Difference,
    Row,
    Spread,
    difference_by_seed,
    markdown_table,
    one_run_per_seed,
    paired_difference,
    percent_spread,
    spread,
    summarise,
)
from meanteacher.stats import Interval, mean_interval
from methods_page import load_gathered

DOCS = Path(__file__).parents[1]
RECORDS = DOCS / "records"
TASKS = {"fast/svhn-500": "SVHN, 500 labels", "fast/cifar10-4000": "CIFAR-10, 4000 labels"}
IN_THE_PAPER = {
    "fast/svhn-500": "table1/svhn-500/mean-teacher",
    "fast/cifar10-4000": "table2/cifar10-4000/mean-teacher",
}
LAPTOP_DATA = {"1": "SVHN", "2": "CIFAR-10"}
MEAN_TEACHER = "laptop/table1/svhn-250/mean-teacher"
ON_TABLES = "MeanTeacherClassifier"
FIGURE4 = {
    "4a": "augmentation or dropout is necessary; with augmentation, input noise does not help",
    "4b": "dropout on the teacher's side adds little to that on the student's",
    "4c": "good weights span an order of magnitude, and others are much worse",
    "4d": "good decays span an order of magnitude, and others are much worse",
    "4e": "close outputs do well, loose ones do not; in between, the ramp-up is not needed",
    "4f": "the squared error is best",
}
"""Part of figure 4 -> what the paper finds (Sec. 3.4)."""
SETS = {
    "flowers": "flowers, 10 labels for each of 5 classes",
    "flowers-tail": "the same, unlabelled photos 20:1 unequal",
    "things": "40 kinds of things, 6 or 8 labels each",
}
"""Set of docs/records/photos -> how the page calls it."""
Fit = Mapping[str, Any]


def page() -> str:
    """The whole page."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    fast = _fast()
    fits = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (RECORDS / "photos").glob("*.json")}
    on_tables = json.loads((RECORDS / "tables.json").read_text(encoding="utf-8"))
    alone = next(run for run in fast if (run.recipe.name, run.seed) == ("fast/cifar10-4000", 0))
    return environment.get_template("results.md.jinja").render(
        summary=_summary(fast),
        curve=_curve(fast),
        runs=_runs(fast),
        alone=alone,
        alone_time=duration(alone.seconds),
        claims=[_claimed(recipe) for recipe in IN_THE_PAPER.values()],
        computation=[f"{computation(paper, fast):.0f}" for fast, paper in IN_THE_PAPER.items()],
        ablations=_ablations(),
        compared=_compared(),
        moons=_moons(),
        photos=_photos(fits),
        missed=_missed([fits[name] for name in fits if name.startswith(tuple(SETS))]),
        small=[fits[name] for name in ("svhn", "svhn-scratch") if name in fits],
        tables={part: OnTables(on_tables, part) for part in ("confirmed_on", "chosen_on")},
        laptop=_laptop(),
    )


def _fast() -> list[Record]:
    return [run for run in load_records(RECORDS / "fast") if "/ablation/" not in run.recipe.name]


def _claimed(recipe: str) -> str:
    claim = RECIPES[recipe].claim
    assert claim is not None
    return f"{claim.error:.2f} %"


def _plus_minus(value: Spread | None, n_images: int = 0) -> str:
    return f"{percent_spread(value, n_images)} %"


# --- fast recipes -----------------------------------------------------------------------------------------------------


def _summary(records: Sequence[Record]) -> str:
    rows = {row.recipe: row for row in summarise(records)}

    def cells(row: Row) -> tuple[str, str]:
        return _plus_minus(row.teacher, row.n_images), str(row.n_runs)

    lines = [(label, *cells(rows[f"{task}/{BASELINE}"]), *cells(rows[task])) for task, label in TASKS.items()]
    return markdown_table(("5,400 steps", "supervised-only", "seeds", "Mean Teacher", "seeds"), lines)


def _curve(records: Sequence[Record]) -> str:
    planned = {"1": "/minutes-1", "3": "/minutes-3", "10": "/minutes-10", "30": "", "60": "/minutes-60"}
    first = {run.recipe.name: run for run in records if run.seed == 0}
    lines = [
        (label, *(percent(first[task + part].error("test"), first[task].data.n_test) for part in planned.values()))
        for task, label in TASKS.items()
    ]
    return markdown_table(("minutes", *planned), lines)


def _runs(records: Sequence[Record]) -> str:
    order = [
        f"{task}{part}" for task in TASKS for part in ("", f"/{BASELINE}", *(f"/minutes-{n}" for n in (1, 3, 10, 60)))
    ]
    lines = []
    for run in sorted(records, key=lambda run: (order.index(run.recipe.name), run.seed)):
        assert run.cpu_seconds is not None
        last, n = run.errors.last, run.data.n_test
        errors = percent(last.student.test, n), percent(last.teacher.test, n)
        lines.append((f"`{run.recipe.name}`", str(run.seed), f"{run.steps:,}", *errors, f"{run.cpu_seconds / 60:.0f}"))
    return markdown_table(("recipe", "seed", "steps", "student", "teacher", "processor minutes"), lines)


def computation(recipe: str, reference: str) -> float:
    """How many times the operations of another run a run takes, over all rows of all its steps."""
    problem = mt.Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32))
    trainings = (RECIPES[recipe].training, RECIPES[reference].training)
    ours, theirs = (each.steps * each.batch.size * row_operations(each, problem) for each in trainings)
    return ours / theirs


def _ablations() -> dict[str, Any]:
    """The errors of the fast recipe without some of its parts: empty without a record."""
    parts = OUR_TABLES["fast-ablations"]
    runs = runs_of(recipe_names(parts), out=RECORDS)
    (table,) = tables_of(parts, runs, complete(runs))
    if not any(cell.runs for cell in table.cells):
        return {}
    by_system: dict[str, list[str]] = {}
    without_average: list[Difference | None] = []
    ours = {cell.column: cell for cell in table.cells if cell.system == "Mean Teacher"}
    for cell in table.cells:
        mean_teacher = one_run_per_seed(ours[cell.column].runs)
        found = difference_by_seed(one_run_per_seed(cell.runs), mean_teacher, "test")
        shown = "–" if found is None or cell is ours[cell.column] else found.with_interval(cell.n_images)
        by_system.setdefault(cell.system, []).extend([percent_spread(cell.ours, cell.n_images), shown])
        without_average += [found] if "decay 0" in cell.system else []
    header = [name for column in table.columns for name in (column, "Mean Teacher minus it")]
    return {
        "table": markdown_table(("test error, %", *header), [(system, *cells) for system, cells in by_system.items()]),
        "steps": f"{runs[0].recipe.training.steps:,}",
        "average_counts": not all(each and each.interval and _contains_zero(each.interval) for each in without_average),
    }


def _contains_zero(interval: Interval) -> bool:
    return interval.low <= 0 <= interval.high


def _compared() -> dict[str, str]:
    """The errors of all methods on CIFAR-10 with 250 labels, the lowest first: empty without a record."""
    parts = OUR_TABLES["cifar10-250"]
    runs = runs_of(recipe_names(parts), out=RECORDS)
    (table,) = tables_of(parts, runs, complete(runs))
    done = sorted((cell for cell in table.cells if cell.runs), key=lambda cell: cell.ours.mean if cell.ours else 1.0)
    header = ("method", "test error, %", "last student, %", "processor minutes")
    lines = []
    for cell in done:
        students = spread([run.errors.last.student.test for run in cell.runs])
        minutes = fmean(run.cpu_seconds or run.seconds for run in cell.runs) / 60
        shown = [percent_spread(each, cell.n_images) for each in (cell.ours, students)]
        lines.append((f"`{cell.system}`", *shown, f"{minutes:.1f}"))
    left_out = [f"`{cell.system}`" for cell in table.cells if not cell.runs]
    sentence = fill(f"Not run: {listed(left_out)}.", 120, break_on_hyphens=False) if left_out else ""
    return {"table": markdown_table(header, lines), "left_out": sentence} if lines else {}


# --- two moons --------------------------------------------------------------------------------------------------------


def _moons() -> dict[str, Any]:
    demo, elsewhere = (load_records(RECORDS / name) for name in ("demo", "demo-default"))
    ten = paired_difference(load_gathered(DOCS / "methods" / "records.json"), "pi-model", "mean-teacher")
    rows = {row.method: row for row in summarise(demo)}
    lines = []
    for i, (method, row) in enumerate(rows.items()):
        against = [paired_difference(demo, other, method).cell(row.n_images) for other in [*rows][:i]]
        cells = (percent_spread(row.teacher, row.n_images), *against, *["–"] * (2 - i))
        lines.append((row.label, *cells))
    n = rows["mean-teacher"].n_images
    return {
        "table": markdown_table(("6 labels", "test error, %", "to supervised-only", "to the Pi model"), lines),
        "n": rows["mean-teacher"].n_runs,
        "elsewhere": paired_difference(elsewhere, "pi-model", "mean-teacher").cell(n),
        "ten": ten.cell(n),
        "n_lower": sum(pair.difference < 0 for pair in ten.pairs),
    }


# --- the beginning of the README --------------------------------------------------------------------------------------

BEFORE, AFTER = "weights are the exponential moving average of the student's weights.\n", "## Install\n"


def readme(text: str) -> str:
    """The README with the results of today's records between its first paragraphs and the next section."""
    start, end = text.index(BEFORE) + len(BEFORE), text.index(AFTER)
    return f"{text[:start]}\n{_first_results()}\n{text[end:]}"


def _first_results() -> str:
    """Laptop versions of the paper's comparison if there are records of them, and the fast recipe."""
    rows = {row.recipe: row for row in summarise(_fast())}
    ours, supervised = (_mean(rows[name]) for name in ("fast/svhn-500", f"fast/svhn-500/{BASELINE}"))
    times = f"{computation(IN_THE_PAPER['fast/svhn-500'], 'fast/svhn-500'):.0f} times the computation"
    paper = RECIPES[IN_THE_PAPER["fast/svhn-500"]].claim
    assert paper is not None
    table, n_draws = _laptop_in_brief()
    fast = "[`fast` recipe](src/meanteacher/recipes/fast.py)"
    if table:
        caption = (
            f"Mean over {n_draws} draws of the labels; ± is the 95 % interval of the paired difference "
            "([docs/results.md](docs/results.md)). Cost and views are the paper's: squared error of the softmax "
            "outputs, translations by 2 pixels, flips on CIFAR-10. "
            f"The {fast}, with a thresholded, sharpened cost, RandAugment and Muon, has {ours} with 500 labels of SVHN "
            f"(supervised-only {supervised}), the paper {paper.error:.1f} % with {times}."
        )
        if not _ablations().get("average_counts", True):
            caption += " Its ablations show no gain from the average, at a learning rate that falls to zero."
        return f"{table}\n\n{fill(caption, 120, break_long_words=False, break_on_hyphens=False)}\n"
    return f"""| SVHN, 500 labels, test error | |
|---|---|
| supervised-only, `fast` recipe, half an hour on two CPU cores | {supervised} |
| **Mean Teacher**, `fast` recipe, half an hour on two CPU cores | **{ours}** |
| Mean Teacher in the paper, its own settings, {times} | {paper.error:.1f} % |

The {fast} does not have the paper's settings: it trains a small network with
a thresholded, sharpened consistency cost, RandAugment and the Muon optimiser. Its two rows share network, optimiser and
steps; each is the mean over three draws of the labels. [docs/results.md](docs/results.md) lists every run.
"""


def _mean(row: Row) -> str:
    assert row.teacher is not None
    return f"{100 * row.teacher.mean:.1f} %"


def _half_width(difference: Difference | None) -> str:
    """Points with their sign, and half of the width of their 95 % interval."""
    assert difference is not None
    assert difference.interval is not None
    half = (difference.interval.high - difference.interval.low) / 2
    return f"{100 * difference.mean:+.1f} ± {100 * half:.1f}".replace("-", "−")


def _laptop_in_brief() -> tuple[str, str]:
    """The columns that have at least three draws of supervised-only, Pi model and Mean Teacher, and their draws."""
    systems = ("Supervised-only", "Pi model", "Mean Teacher")
    columns: dict[str, list[str]] = {}
    n_draws = set()
    for name, table in laptop_tables().items():
        for column in table.columns:
            cells = {cell.system: cell for cell in table.cells if cell.column == column}
            runs = [one_run_per_seed(cells[system].runs) for system in systems]
            seeds = runs[0].keys() & runs[1].keys() & runs[2].keys()
            if len(seeds) < 3:
                continue
            means = [f"{100 * fmean(of[seed].error('test') for seed in seeds):.1f} %" for of in runs]
            pairs = [difference_by_seed(worse, better, "test") for worse, better in pairwise(runs)]
            n_draws.add(len(seeds))
            columns[f"{LAPTOP_DATA[name]}, {column}"] = [
                *means[:2],
                f"**{means[2]}**",
                *map(_half_width, pairs),
            ]
    lines = [*systems[:2], "**Mean Teacher**", "Pi model minus supervised-only", "Mean Teacher minus Pi model"]
    rows = [(line, *(cells[i] for cells in columns.values())) for i, line in enumerate(lines)]
    draws = " or ".join(map(str, sorted(n_draws)))
    return (markdown_table(("laptop version", *columns), rows), draws) if columns else ("", "")


# --- fits of photos ---------------------------------------------------------------------------------------------------


def _photos(fits: Mapping[str, Fit]) -> str:
    """A line for each set and number of minutes: mean test errors over the draws, and what a fit gains."""
    lines = []
    for minutes in (10, 2):
        for name, label in SETS.items():
            draws = [fits[each] for draw in range(3) if (each := f"{name}-{draw}-{minutes}") in fits]
            if draws:
                ours, theirs = ([fit[key] for fit in draws] for key in ("error", "logistic regression"))
                gains = [100 * (own - other) for own, other in zip(ours, theirs, strict=True)]
                covered = sum(fit["estimate"]["low"] <= fit["error"] <= fit["estimate"]["high"] for fit in draws)
                lines.append(
                    (
                        label,
                        str(minutes),
                        *(_plus_minus(spread(errors)) for errors in (ours, theirs)),
                        *(f"{points:+.1f}".replace("-", "−") for points in (fmean(gains), max(gains))),
                        f"{covered} of {len(draws)}",
                    )
                )
    header = ("photos", "minutes", "`meanteacher fit`", "logistic regression", "difference", "worst draw", "covered")
    return markdown_table(header, lines)


def _missed(fits: Sequence[Fit]) -> str:
    """How the error lies outside of a fit's own interval, in a sentence; nothing if it never does."""
    better, worse = (
        sum(bool(fit["error"] < fit["estimate"]["low"]) for fit in fits),
        sum(bool(fit["error"] > fit["estimate"]["high"]) for fit in fits),
    )
    if not better + worse:
        return ""
    return fill(
        f"Of {len(fits)} intervals {better + worse} do not contain the error: {better} of these fits are better than "
        f"they say, {worse} are worse. The draws of the things share 8 labels of each kind, which are harder than "
        "their test photos: a model that learned from test photos made more errors on them than on other test photos "
        "(20.6 and 16.6 %, measured once).",
        120,
    )


# --- tables of scikit-learn -------------------------------------------------------------------------------------------


class OnTables:
    """The record of tables, on the sets that the defaults were chosen or confirmed on."""

    def __init__(self, record: Mapping[str, Any], part: str) -> None:
        self.errors = {name: record["errors"][name] for name in record[part] if name in record["errors"]}
        self.fits = [split for found in self.errors.values() for split in found[ON_TABLES]]
        self.n_simple = sum(split["chosen"] != "network" for split in self.fits)
        self.losses = {name: self._mean(name, ON_TABLES) - self._best(name) for name in self.errors}
        self.close = [name for name, loss in self.losses.items() if loss <= 0.03]
        self.worst = max(self.losses, key=lambda name: self.losses[name])
        self.ahead = [name for name, loss in self.losses.items() if loss <= 0]

    def points(self, name: str) -> str:
        """How many points the error on a set is above that of the best of the others."""
        return f"{100 * self.losses[name]:+.1f}".replace("-", "−")

    def table(self) -> str:
        """One line per data set, one column per contender."""
        contenders = list(next(iter(self.errors.values())))
        lines = [
            (
                name,
                *(percent_spread(spread([s["test"] for s in found[each]]), 0) for each in contenders),
                self.points(name),
            )
            for name, found in self.errors.items()
        ]
        return markdown_table(("test error, %", *contenders, "to the best"), lines)

    def _mean(self, name: str, contender: str) -> float:
        return fmean(split["test"] for split in self.errors[name][contender])

    def _best(self, name: str) -> float:
        return min(self._mean(name, each) for each in self.errors[name] if each != ON_TABLES)


# --- the paper on a laptop --------------------------------------------------------------------------------------------


def laptop_tables() -> dict[str, PaperTable]:
    """Number of a table -> its laptop version, as far as there are records."""
    found = {}
    for name, parts in LAPTOP_TABLES.items():
        runs = runs_of(recipe_names(parts), out=RECORDS)
        (found[name],) = tables_of(parts, runs, complete(runs))
    return found


def laptop_panels(figure: str) -> dict[str, dict[str, list[Record]]]:
    """Panel -> curve or setting -> its records, of the laptop version of a figure."""
    place = LAPTOP_FIGURES[figure]
    runs = runs_of(recipe_names(place), out=RECORDS)
    return panels_of(place, runs, complete(runs))


def _laptop() -> dict[str, Any]:
    """What the section shows: empty without a record."""
    tables = laptop_tables()
    runs = [run for table in tables.values() for cell in table.cells for run in cell.runs]
    if not runs:
        return {}
    figures = {name: laptop_panels(name) for name in FIGURE4 if _is_shown(name)}
    varied = {run.file: run for panels in figures.values() for settings in panels.values() for run in _all(settings)}
    orderings = {name: orderings_of([table], COMPARED) for name, table in tables.items()}
    return {
        "errors": _laptop_errors(tables),
        "deviations": _bullets(RECIPES[MEAN_TEACHER].deviations),
        "n_weights": f"{runs[0].n_parameters:,}",
        "seeds": listed([str(seed) for seed in sorted({run.seed for run in runs})]),
        "missing": sum(table.unfinished for table in tables.values()),
        "orderings": _laptop_orderings(orderings),
        "verdict": _verdict([each for found in orderings.values() for each in found]),
        "explained": _explained(tables),
        "findings": _bullets(describe_curves(laptop_panels("3"))),
        "hours": f"{sum(run.cpu_seconds or 0 for run in runs) / 3600:.1f}",
        "rows": [_rows(name) for name in (MEAN_TEACHER, "laptop/table2/cifar10-4000/mean-teacher")],
        "figure4": _figure4(figures) if figures else "",
        "uncoupled": _uncoupled(figures.get("4e", {})),
        "parts": {name: LAPTOP_FIGURES[name].title for name in figures},
        "left_out": listed([name for name in FIGURE4 if name not in figures]),
        "varied": [f"{len(varied)}", f"{sum(run.cpu_seconds or 0 for run in varied.values()) / 3600:.1f}"],
        "varied_seeds": len({run.seed for run in varied.values()}),
    }


def _is_shown(figure: str) -> bool:
    """Whether there is a curve of figure 3, or a run of every setting of a part of figure 4."""
    recorded = [bool(runs) for settings in laptop_panels(figure).values() for runs in settings.values()]
    return all(recorded) if figure in FIGURE4 else any(recorded)


def _explained(tables: Mapping[str, PaperTable]) -> str:
    """Why the Pi model leads supervised-only by less than in the paper, in columns with at least three draws of both.

    Beside the difference of the students stands that of the averages where the paper stops the Pi model early, read
    at the same share of the run.
    """
    students, early = [], []
    for name, table in tables.items():
        for cell in (cell for cell in table.cells if cell.system == "Pi model"):
            (baseline,) = (
                other for other in table.cells if (other.system, other.column) == ("Supervised-only", cell.column)
            )
            ours, theirs = one_run_per_seed(cell.runs), one_run_per_seed(baseline.runs)
            seeds = sorted(ours.keys() & theirs.keys())
            if len(seeds) < 3:
                continue
            where = f" on {LAPTOP_DATA[name]} with {cell.column}"
            last = [(ours[k].errors.last.student.test, theirs[k].errors.last.student.test) for k in seeds]
            students.append(_points(last) + where)
            if (share := share_of_the_run(cell.recipe)) < 1:
                read = [(read_early(ours[k], share), theirs[k].error("test")) for k in seeds]
                early.append(_points(read) + where)
    if not students:
        return ""
    sentences = [
        "The lead of the Pi model over supervised-only is smaller than the paper's. Every system is evaluated by the "
        "average of its weights, which takes from supervised-only most of the noise that a constant learning rate "
        f"leaves; student against student the difference is {listed(students)}."
    ]
    if early:
        sentences.append(
            "With the fewest labels the Pi model stops improving early in the run, and on SVHN it gets worse, as it "
            "confirms its own mistakes. The paper stops it early in these columns, after 100,000 of 180,000 and "
            "60,000 of 150,000 steps. Read at the same share of our runs, and supervised-only at their end, where it "
            f"is lower, the difference is {listed(early)}."
        )
    sentences.append(
        "With 4000 labels of CIFAR-10, the most of all columns, the lead of Mean Teacher over the Pi model is "
        "smallest in the paper. Temporal Ensembling renews the target of an image once per epoch, of which these runs "
        "have 8 to 12, and the paper's more than 200."
    )
    return fill(" ".join(sentences), 120)


def share_of_the_run(recipe: str) -> float:
    """Steps of the paper's recipe behind a laptop version, as a share of those of Mean Teacher in its column."""
    paper = recipe.removeprefix(LAPTOP)
    column, _, _ = paper.rpartition("/")
    return RECIPES[paper].training.steps / RECIPES[f"{column}/mean-teacher"].training.steps


def read_early(run: Record, share: float) -> float:
    """The error of the average at the evaluation nearest to this share of the run."""
    points = [point for point in run.curve if point.part == "test"]
    return min(points, key=lambda point: abs(point.step - share * run.steps)).teacher


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    """The mean difference of pairs of errors, with its 95 % interval."""
    each = mean_interval([100 * (own - other) for own, other in pairs])
    return f"{each.value:+.1f} ({each.low:+.1f} to {each.high:+.1f})".replace("-", "−")


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(fill(sentence, 120, initial_indent="- ", subsequent_indent="  ") for sentence in sentences)


def _all(settings: Mapping[str, Sequence[Record]]) -> list[Record]:
    return [run for runs in settings.values() for run in runs]


def _laptop_errors(tables: Mapping[str, PaperTable]) -> str:
    """One line per system, one column per number of labels."""
    lines: dict[str, list[str]] = {}
    seconds: dict[str, list[float]] = {}
    for table in tables.values():
        for cell in table.cells:
            lines.setdefault(cell.system, []).append(percent_spread(cell.ours, cell.n_images))
            seconds.setdefault(cell.system, []).extend(run.cpu_seconds or 0 for run in cell.runs)
    header = [f"{LAPTOP_DATA[name]}, {column}" for name, table in tables.items() for column in table.columns]
    return markdown_table(
        ("test error, %", *header, "processor minutes per run"),
        [(system, *cells, f"{fmean(seconds[system]) / 60:.1f}") for system, cells in lines.items() if seconds[system]],
    )


def _laptop_orderings(orderings: Mapping[str, Sequence[Ordering]]) -> str:
    lines = [
        (f"{LAPTOP_DATA[name]}, {each.column}", *each.line()[1:]) for name, found in orderings.items() for each in found
    ]
    return markdown_table(ORDERING_HEADER, lines, n_left=2)


def _verdict(orderings: Sequence[Ordering]) -> str:
    """How many of the orderings among the authors' own systems hold, and the verdicts on the others."""
    judged = [
        each for each in orderings if {each.better, each.worse} <= {"Supervised-only", "Pi model", "Mean Teacher"}
    ]
    verdicts = Counter(each.verdict.partition(" from ")[0] for each in judged)
    others = {
        "no": "the opposite holds for",
        "not shown": "not shown:",
        "not known": "not known from fewer than 3 runs:",
    }
    rest = [f"{words} {verdicts[verdict]}" for verdict, words in others.items() if verdicts[verdict]]
    return f"{verdicts['yes']} of {len(judged)}" + (f" ({'; '.join(rest)})" if rest else "")


def _rows(recipe: str) -> str:
    batch = RECIPES[recipe].training.batch
    assert isinstance(batch, Fixed)
    return f"{batch.labelled} labelled and {batch.size - batch.labelled} other rows"


def _figure4(figures: Mapping[str, Mapping[str, Mapping[str, Sequence[Record]]]]) -> str:
    """One line per part of figure 4: where the mean validation error is lowest, and that of the evaluation setting."""
    lines = []
    for name, panels in figures.items():
        place = LAPTOP_FIGURES[name]
        assert place.evaluation is not None
        errors = {
            (panel, label): [run.error("validation") for run in runs]
            for panel, settings in panels.items()
            for label, runs in settings.items()
        }
        best = min(errors, key=lambda setting: fmean(errors[setting]))
        cells = []
        for panel, label in (best, place.evaluation):
            n = panels[panel][label][0].data.n_validation
            shown = f"{label}, {panel}" if len(panels) > 1 else label
            cells += [shown, percent_spread(spread(errors[panel, label]), n)]
        lines.append((name, place.title.partition(": ")[2], FIGURE4[name], *cells))
    header = ("figure", "varied", "the paper finds", "lowest at", "error, %", "table 1 has", "error, %")
    return markdown_table(header, lines, n_left=4)


def _uncoupled(panels: Mapping[str, Mapping[str, Sequence[Record]]]) -> bool:
    """Whether, in figure 4e, two outputs do best without a cost on their distance, and need the ramp-up less then."""
    errors = {
        panel: {label: fmean(run.error("validation") for run in runs) for label, runs in settings.items()}
        for panel, settings in panels.items()
    }
    if not errors:
        return False
    ramped, constant = errors["with ramp-up"], errors["without ramp-up"]
    gains = {label: constant[label] - ramped[label] for label in ramped}
    return min(ramped, key=ramped.__getitem__) == "0" and gains["0"] < gains["one output"]


def pictures() -> dict[str, bytes]:
    """Name of a file -> picture, of every laptop version of a figure that has a record."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(RECORDS, folder, dirs_exist_ok=True)
        for name in LAPTOP_FIGURES:
            if _is_shown(name):
                written = mt.figure(name, laptop=True, out=folder, train=False).files
                found |= {path.name: path.read_bytes() for path in written if path.suffix == ".svg"}
    return found


if __name__ == "__main__":
    write_atomic(DOCS / "results.md", page())
    front = DOCS.parent / "README.md"
    write_atomic(front, readme(front.read_text(encoding="utf-8")))
    for name, picture in pictures().items():
        write_atomic(DOCS / name, picture)
