"""Write docs/results.md from docs/records: every table, and every number of a record in the sentences between them.

python docs/tools/results.py
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import meanteacher as mt
from meanteacher.files import write_atomic
from meanteacher.formats import BASELINE, duration, percent, percent_range, percentage
from meanteacher.recipes import RECIPES
from meanteacher.records import Record, load_record, load_records
from meanteacher.report.compare import Row, Spread, markdown_table, percent_spread, spread, summarise

DOCS = Path(__file__).parents[1]
RECORDS = DOCS / "records"
TASKS = {"fast/svhn-500": "SVHN, 500 labels", "fast/cifar10-4000": "CIFAR-10, 4000 labels"}
MINUTES, DRAWS = 2.5, 2
"""The size of the scaled twins, and how many label draws each was run on."""
SCALED = f"scaled-{MINUTES:g}-minutes"
SYSTEMS = {
    "Supervised-only": BASELINE,
    "Pi model": "pi-model",
    "Temporal Ensembling": "temporal-ensembling",
    "VAT+EntMin": "vat-entmin",
    "Mean Teacher": "mean-teacher",
}
SCALED_TABLES = {"1": ("svhn-250", "svhn-500", "svhn-1000"), "2": ("cifar10-1000", "cifar10-4000")}
FLOWERS = {
    "logistic regression, 160 pixels": "standardised probe 160",
    "logistic regression, 224 pixels": "standardised probe 224",
    "label spreading, 160 pixels": "label spreading 160",
    "label spreading, 224 pixels": "label spreading 224",
    "the best linear classifier we found, 224 pixels": "probe of the fit 224",
}
LABELS = {
    "flowers-equal": "10 labels per class",
    "flowers-strangers": "the same, and 750 photos of no class",
    "flowers-unequal": "3 daisies, 30 tulips, 10 of the others",
}
ON_ALL = {"weight": "1", "decay": "0.99, then 0.999"}
"""The paper's own setting of each panel of Figure 4, which is a run of its own."""

Fits = Mapping[str, dict[str, Any]]


def page() -> str:
    """The whole page."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    fast, twins = load_records(RECORDS / "fast"), load_records(RECORDS / "scaled")
    fits = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (RECORDS / "fit").glob("*.json")}
    on_tables = json.loads((RECORDS / "tables.json").read_text(encoding="utf-8"))
    alone = next(run for run in fast if (run.recipe.name, run.seed) == ("fast/cifar10-4000", 0))
    ours = [found["`MeanTeacherClassifier()`"] for found in on_tables["errors"].values()]
    took = [split["seconds"] for splits in ours for split in splits]
    digits = [fits[f"svhn-{number}"] for number in (1, 2, 3)]
    minutes = [run.cpu_seconds / 60 for run in twins if run.cpu_seconds is not None]
    return environment.get_template("results.md.jinja").render(
        summary=_summary(fast),
        curve=_curve(fast),
        runs=_runs(fast),
        alone=alone,
        alone_time=duration(alone.seconds),
        claims=[_claimed(f"{table}/mean-teacher") for table in ("table1/svhn-500", "table2/cifar10-4000")],
        flowers=_flowers(fits),
        unequal=_unequal(fits),
        n_tested=fits["flowers-equal"]["test"]["n_judged"],
        fits=_fits(fits),
        digits=_digits(fits),
        digits_trial=percent(digits[0]["trial"]["pretrained"]["error"]),
        trial_seconds=sorted(round(fit["timing"]["parts"]["trial"]) for fit in digits),
        photos_trial=[percent(fits["cifar10"]["trial"][stand]["error"]) for stand in ("pretrained", "scratch")],
        tables={part: _on_tables(on_tables["errors"], part) for part in ("test", "unlabelled")},
        fit_seconds=[min(took), max(took)],
        twins={run.recipe.name.split("/")[2].partition("-")[0]: run for run in twins if "/table" in run.recipe.name},
        minutes=[min(minutes), max(minutes)],
        scaled={table: _scaled(table) for table in SCALED_TABLES},
        orderings={table: _orderings(table) for table in SCALED_TABLES},
        behind=_behind(),
        figure={setting: _figure(letter, setting) for letter, setting in (("c", "weight"), ("d", "decay"))},
    )


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


# --- fits of photos ---------------------------------------------------------------------------------------------------


def _over(values: Sequence[float]) -> tuple[str, ...]:
    """Each of several errors, and their mean and deviation."""
    return (*map(percent, values), _plus_minus(spread(values)))


def _flowers(fits: Fits) -> str:
    draws = [fits[f"flowers-{draw}-15"] for draw in range(3)]
    lines = [("`meanteacher fit --minutes 15`", *_over([fit["test"]["error"] for fit in draws]))]
    lines += [(label, *_over([fit["baselines"][name] for fit in draws])) for label, name in FLOWERS.items()]
    return markdown_table(("test error", "draw 0", "draw 1", "draw 2", "mean ± standard deviation"), lines)


def mean_over_classes(fit: Mapping[str, Any]) -> float:
    """The error of a fit on the test photos, averaged over the classes."""
    errors = [each["error"] for each in fit["test"]["per_class"]]
    return float(sum(errors) / len(errors))


def _unequal(fits: Fits) -> str:
    lines = [
        (label, percent(fits[name]["test"]["error"]), percent(mean_over_classes(fits[name])))
        for name, label in LABELS.items()
    ]
    return markdown_table(("labels", "test error", "mean over the classes"), lines)


def _fits(fits: Fits) -> str:
    order = [*(f"flowers-{draw}-15" for draw in range(3)), "flowers-0-3", *LABELS, "cifar10"]
    order += [f"{scenario}-{number}" for scenario in ("svhn", "svhn-scratch") for number in (1, 2, 3)]
    assert sorted(order) == sorted(fits), "a record of a fit has no row"
    return markdown_table(
        ("scenario", "minutes", "test error", "test photos", "its own estimate", "supervised, estimated", "took"),
        (_fit(name, fits[name]) for name in order),
    )


def _fit(name: str, fit: Mapping[str, Any]) -> tuple[str, ...]:
    own = fit["estimate"]["errors"][fit["answer"]["shipped"]]
    minutes, seconds = divmod(round(fit["timing"]["total_seconds"]), 60)
    return (
        f"`{name}`",
        f"{fit['plan']['minutes']:g}",
        percent(fit["test"]["error"]),
        f"{fit['test']['n_judged']:,}",
        f"{percent(own['error'])} ({percent_range(own['low'], own['high'])})",
        percent(fit["estimate"]["errors"][BASELINE]["error"]),
        f"{minutes} min {seconds} s",
    )


def _digits(fits: Fits) -> str:
    kinds = {"svhn": "the trial chooses the network", "svhn-scratch": "from scratch (`--backbone none`)"}
    lines = [
        (label, *_over([fits[f"{scenario}-{number}"]["test"]["error"] for number in (1, 2, 3)]))
        for scenario, label in kinds.items()
    ]
    return markdown_table(
        ("digits, 5 minutes, test error", "fit 1", "fit 2", "fit 3", "mean ± standard deviation"), lines
    )


# --- tables of scikit-learn -------------------------------------------------------------------------------------------


def _on_tables(errors: Mapping[str, Any], part: str) -> str:
    """One line per contender, one column per data set."""
    contenders = list(next(iter(errors.values())))
    lines = [
        (contender, *(_plus_minus(spread([split[part] for split in found[contender]])) for found in errors.values()))
        for contender in contenders
    ]
    return markdown_table((f"{part} error", *errors), lines)


# --- scaled twins -----------------------------------------------------------------------------------------------------


def twins_of(table: str, cell: str, system: str) -> list[Record]:
    """The scaled runs of a system in a cell of a table, in the order of their label draws."""
    folder = RECORDS / "scaled" / SCALED / f"table{table}" / cell / SYSTEMS[system]
    return [load_record(folder / f"seed-{draw}" / "record.json") for draw in range(DRAWS)]


def _scaled(table: str) -> str:
    cells = SCALED_TABLES[table]
    lines = [
        (system, *(_plus_minus(spread([run.error("test") for run in twins_of(table, cell, system)])) for cell in cells))
        for system in SYSTEMS
    ]
    data = "SVHN" if table == "1" else "CIFAR-10"
    labels = [f"{cell.rpartition('-')[2]} labels" for cell in cells]
    return markdown_table((f"{data}, scaled to {MINUTES:g} minutes", *labels), lines)


def _orderings(table: str) -> str:
    """Which orderings of the paper hold, as `meanteacher table` judges it from the same records."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(RECORDS / "scaled", folder, dirs_exist_ok=True)
        written = mt.table(table, scale=MINUTES, seeds=DRAWS, out=folder, train=False).files
        text = next(path for path in written if path.suffix == ".md").read_text(encoding="utf-8")
    return text.partition("## Which orderings of the paper hold\n\n")[2].strip()


def _behind() -> str:
    """How many points Mean Teacher is behind the Pi model with 1000 labels of SVHN."""
    ours, theirs = (
        fmean(run.error("test") for run in twins_of("1", "svhn-1000", system))
        for system in ("Mean Teacher", "Pi model")
    )
    return percentage(ours - theirs)


def figure_runs(letter: str, setting: str) -> dict[str, Record]:
    """Value of the setting -> its run: a panel of Figure 4."""
    folder = RECORDS / "scaled" / SCALED
    own = ON_ALL[setting]
    paths = {path.name.removeprefix(f"{setting}-"): path for path in (folder / f"figure4{letter}").iterdir()}
    paths[own] = folder / "figure4" / "evaluation"
    ordered = sorted(paths, key=lambda value: float("inf") if "," in value else float(value))
    return {value: load_record(paths[value] / "seed-0" / "record.json") for value in ordered}


def _figure(letter: str, setting: str) -> str:
    runs = figure_runs(letter, setting)
    errors = [percent(run.error("validation")) for run in runs.values()]
    return markdown_table((setting, *runs), [("Mean Teacher, scaled", *errors)])


if __name__ == "__main__":
    write_atomic(DOCS / "results.md", page())
