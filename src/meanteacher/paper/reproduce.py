"""`mt.table` and `mt.figure`: a table or figure of the paper, with the runs that it is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from meanteacher.experiment.runs import Run, complete
from meanteacher.experiment.workers import Trained, Workers, command_options, written
from meanteacher.formats import listed
from meanteacher.paper.figures import as_files, describe_curves, draw_curves, draw_settings
from meanteacher.paper.layout import LAPTOP, OUR_TABLES, Figure, Quoted, Table
from meanteacher.paper.runs import Preset, find_figure, find_table, recipe_names, runs_of
from meanteacher.paper.tables import Cell, Ordering, PaperTable, orderings_of, to_html, to_markdown, to_terminal
from meanteacher.recipes import RECIPES
from meanteacher.records import Part, Record
from meanteacher.report.compare import percent_spread, spread
from meanteacher.report.tabular import tabular
from meanteacher.train import Callback
from meanteacher.train.execution import DEFAULT, RunOptions
from meanteacher.train.loggers import LoggerName

COMPARED = (
    "Supervised-only",
    "Pi model",
    "Pi model (ours)",
    "Temporal Ensembling",
    "Temporal Ensembling (Laine & Aila 2017)",
    "VAT+EntMin (Miyato et al. 2017)",
    "Mean Teacher",
)
"""The systems whose orderings are judged."""


@dataclass(frozen=True, eq=False)
class Reproduced(Trained):
    """A table or figure as far as its runs are complete."""

    orderings: tuple[Ordering, ...] = ()
    """Which orderings of the paper hold, column by column of a table."""
    findings: tuple[str, ...] = ()
    """What the curves of figure 3 show, panel by panel."""


class Selection(TypedDict, total=False):
    """Which runs of a table or figure, and how to train those that are missing."""

    cell: str
    """A part of it, such as "svhn-500/mean-teacher", "svhn-500" or "mean-teacher"; "decay-0.999" in figure 4d."""
    seeds: int | None
    """Number of runs per cell; as many as the paper's if not given."""
    laptop: bool
    """Its laptop version, a small network for minutes on one core; the errors are none of the paper's."""
    preset: Preset
    """The preset as-coded takes the settings of the authors' scripts where they differ from the paper's text."""
    out: Path | str
    """The folder of all runs and of the written table or figure."""
    data: Path | str | None
    """The folder of the data files."""
    options: RunOptions
    """How to execute every run."""
    settings: Sequence[str]
    """Changes of every recipe, as --set takes them; the runs have folders of their own, and their cells a note."""
    nproc: int
    """Processes that train each run together."""
    log: LoggerName | None
    """Also sends the numbers of every run to this logger."""
    jobs: int
    """Runs at the same time, each in a process of its own with its part of the threads."""
    train: bool
    """False writes what there is, and runs nothing."""
    callback: Callback
    """Follows the runs, and may stop them: all are saved."""


def table(name: str, **selection: Unpack[Selection]) -> Reproduced:
    """Run what is missing of a table of the paper, and write it beside the paper's numbers.

    Args:
        name: "1" to "5", as the paper numbers them; or "cifar10-250", which compares all methods on images.
        **selection: the fields of `Selection`, all optional.

    Raises:
        InputError: something given is wrong.
        Interrupted: by the callback. The same call continues.

    >>> from tempfile import mkdtemp
    >>> made = table("1", cell="svhn-500/mean-teacher", seeds=2, train=False, out=mkdtemp())
    >>> made.unfinished, [path.name for path in made.files]
    (2, ['table-1-svhn-500-mean-teacher.md', 'table-1-svhn-500-mean-teacher.html'])
    """
    parts = find_table(name, laptop=selection.get("laptop", False))
    selected = _SelectedRuns(parts, selection)
    tables = tables_of(parts, selected.runs, selected.records, chosen=bool(selected.cell))
    orderings = orderings_of(tables, COMPARED)
    title = parts[0].title if name in OUR_TABLES else f"Table {name} of the paper{selected.on_a}"
    contents = {"md": to_markdown(tables, orderings), "html": to_html(title, tables, orderings)}
    return selected.reproduced(to_terminal(tables, orderings), f"table-{name}", contents, orderings=tuple(orderings))


def figure(name: str, **selection: Unpack[Selection]) -> Reproduced:
    """Run what is missing of a figure of the paper, "3" or "4a" to "4f", and draw it.

    The arguments are those of `table`.

    >>> from tempfile import mkdtemp
    >>> figure("4d", cell="decay-0.999", seeds=1, train=False, out=mkdtemp()).unfinished
    1
    """
    place = find_figure(name, laptop=selection.get("laptop", False))
    selected = _SelectedRuns(place, selection)
    panels = panels_of(place, selected.runs, selected.records)
    title = f"Figure {name} of the paper{selected.on_a}: {place.title}"
    caption = _laptop_caption(selected.runs)
    part: Part = "validation" if place.evaluation else "test"
    findings = [] if place.evaluation else describe_curves(panels)
    if place.evaluation:
        drawn = draw_settings(panels, title, caption, evaluation=place.evaluation)
    else:
        drawn = draw_curves(panels, title, caption)
    text = _figure_text(title, caption, panels, part) + "".join(f"{finding}\n" for finding in findings)
    return selected.reproduced(text, f"figure-{name}", as_files(drawn, title), part, findings=tuple(findings))


class _SelectedRuns:
    """The runs of a table or figure, trained if the selection wants it, and their records."""

    def __init__(self, place: Sequence[Table] | Figure, selection: Selection) -> None:
        self.cell, self.preset = selection.get("cell", ""), selection.get("preset", "paper")
        self.out = Path(selection.get("out", "runs"))
        self.on_a = " on a laptop" if selection.get("laptop") else ""
        names = recipe_names(place, cell=self.cell)
        settings, seeds = selection.get("settings", ()), selection.get("seeds")
        self.runs = runs_of(names, seeds=seeds, preset=self.preset, out=self.out, settings=settings)
        self.problems: tuple[str, ...] = ()
        if selection.get("train", True):
            options, nproc = selection.get("options", DEFAULT), selection.get("nproc", 1)
            words = command_options(selection.get("data"), options, nproc, selection.get("log"))
            jobs, callback = selection.get("jobs", 1), selection.get("callback", Callback())
            self.problems = Workers(runs=self.runs, options=words, jobs=jobs, nproc=nproc, callback=callback).run_all()
        self.records = complete(self.runs)

    def reproduced(
        self, text: str, stem: str, contents: Mapping[str, str | bytes], part: Part = "test", **judged: Any
    ) -> Reproduced:
        """Write the contents, which are given by the endings of their files, and the numbers as CSV and JSON."""
        parts = [self.on_a and "laptop", self.cell.replace("/", "-"), self.preset.removeprefix("paper")]
        stem += "".join(f"-{each}" for each in parts if each)
        numbers = tabular(stem, list(self.records.values()), part) if self.records else {}
        named = {f"{stem}.{ending}": content for ending, content in contents.items()}
        files = written(self.out, {**named, **numbers})
        return Reproduced(text, files, self.problems, len(self.runs) - len(self.records), **judged)


def panels_of(place: Figure, runs: Sequence[Run], records: Mapping[Run, Record]) -> dict[str, dict[str, list[Record]]]:
    """panel -> curve or setting -> the records of its runs; only what some of the runs belong to."""
    by_name: dict[str, list[Record]] = {}
    for run in runs:
        by_name.setdefault(_paper_name(run.name), []).extend([records[run]] if run in records else [])
    panels = {
        panel: {label: by_name[recipe] for label, recipe in curves.items() if recipe in by_name}
        for panel, curves in place.panels.items()
    }
    return {panel: curves for panel, curves in panels.items() if curves}


def tables_of(
    parts: Sequence[Table], runs: Sequence[Run], records: Mapping[Run, Record], *, chosen: bool = False
) -> list[PaperTable]:
    """The parts that have a cell with some of the runs, or a quoted number unless single cells were chosen."""
    tables = [_table(part, runs, records, chosen=chosen) for part in parts]
    return [table for table in tables if table.cells]


def _table(part: Table, runs: Sequence[Run], records: Mapping[Run, Record], *, chosen: bool) -> PaperTable:
    cells = []
    for system, row in part.rows.items():
        for column, entry in zip(part.columns, row, strict=True):
            if isinstance(entry, Quoted) and not chosen:
                cells.append(Cell(system=system, column=column, claim=entry.claim, quoted=entry.why))
            elif isinstance(entry, str) and (its := [run for run in runs if _paper_name(run.name) == entry]):
                cells.append(
                    Cell(
                        system=system,
                        column=column,
                        claim=RECIPES[entry.removeprefix(LAPTOP)].claim,
                        recipe=entry,
                        deviations=its[0].recipe.deviations,
                        runs=[records[run] for run in its if run in records],
                    )
                )
    shown = {cell.recipe for cell in cells}
    its_runs = [run for run in runs if _paper_name(run.name) in shown]
    return PaperTable(
        title=part.title,
        cells=cells,
        columns=part.columns,
        laptop=_laptop_caption(its_runs),
        unfinished=sum(run not in records for run in its_runs),
    )


def _paper_name(name: str) -> str:
    return name.removesuffix("/as-coded")


def _laptop_caption(runs: Sequence[Run]) -> str:
    if not any(run.name.startswith(LAPTOP) for run in runs):
        return ""
    steps = listed([f"{n:,}" for n in sorted({run.recipe.training.steps for run in runs})])
    return f"Laptop version: {steps} steps of a small network. Only the order can be compared with the paper's."


def _figure_text(title: str, caption: str, panels: dict[str, dict[str, list[Record]]], part: Part) -> str:
    lines = [title, caption, ""] if caption else [title, ""]
    width = max((len(label) for settings in panels.values() for label in settings), default=0)
    for panel, settings in panels.items():
        lines += [panel] if len(panels) > 1 else []
        for label, runs in settings.items():
            n_images = runs[0].data.n_images(part) if runs else 0
            errors = percent_spread(spread([run.error(part) for run in runs]), n_images)
            lines.append(f"  {label:<{width}}  {part} error, %: {errors:>14}  n = {len(runs)}")
    return "\n".join(lines) + "\n"
