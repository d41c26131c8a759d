"""`mt.table` and `mt.figure`: a table or figure of the paper, with the runs that it is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meanteacher.experiment.runs import Run, complete
from meanteacher.experiment.workers import Trained, command_options, train_all, written
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


def table(
    name: str,
    *,
    cell: str = "",
    seeds: int | None = None,
    laptop: bool = False,
    preset: Preset = "paper",
    out: Path | str = "runs",
    data: Path | str | None = None,
    options: RunOptions = DEFAULT,
    jobs: int = 1,
    train: bool = True,
    callback: Callback | None = None,
) -> Reproduced:
    """Run what is missing of a table of the paper, and write it beside the paper's numbers.

    Args:
        name: "1" to "5", as the paper numbers them; or "cifar10-250", which compares all methods on images
        cell: a part of it, such as "svhn-500/mean-teacher", "svhn-500" or "mean-teacher"
        seeds: how many runs per cell; as many as the paper's if not given
        laptop: its laptop version, a small network for minutes on one core; the errors are none of the paper's
        preset: "as-coded" takes the settings of the authors' scripts where they differ from the paper's text
        out: the folder of all runs and of the written table
        data: the folder of the data files
        options: how to execute every run
        jobs: runs at the same time, each in a process of its own with its part of the threads
        train: False writes what there is, and runs nothing
        callback: follows the runs, and may stop them: all are saved

    Raises:
        InputError: something given is wrong.
        Interrupted: by the callback. The same call continues.

    >>> from tempfile import mkdtemp
    >>> made = table("1", cell="svhn-500/mean-teacher", seeds=2, train=False, out=mkdtemp())
    >>> made.unfinished, [path.name for path in made.files]
    (2, ['table-1-svhn-500-mean-teacher.md', 'table-1-svhn-500-mean-teacher.html'])
    """
    parts = find_table(name, laptop=laptop)
    runs = runs_of(recipe_names(parts, cell=cell), seeds=seeds, preset=preset, out=Path(out))
    problems = train_all(runs, command_options(data, options), jobs, callback) if train else ()
    records = complete(runs)
    tables = tables_of(parts, runs, records, chosen=bool(cell))
    orderings = orderings_of(tables, COMPARED)
    title = parts[0].title if name in OUR_TABLES else f"Table {name} of the paper" + _on_a(laptop)
    stem = f"table-{name}" + _suffix(cell, laptop, preset)
    contents = {f"{stem}.md": to_markdown(tables, orderings), f"{stem}.html": to_html(title, tables, orderings)}
    contents |= tabular(stem, list(records.values())) if records else {}
    files = written(Path(out), contents)
    text = "\n".join(map(to_terminal, tables))
    if orderings:
        text += "\n" + "\n".join(
            f"{each.column}: {each.better} better than {each.worse}? {each.verdict}: "
            f"{each.ours.with_interval(each.n_images)} points; paper −{each.paper:.2f}"
            for each in orderings
        )
    return Reproduced(text, files, problems, len(runs) - len(records), tuple(orderings))


def figure(
    name: str,
    *,
    cell: str = "",
    seeds: int | None = None,
    laptop: bool = False,
    preset: Preset = "paper",
    out: Path | str = "runs",
    data: Path | str | None = None,
    options: RunOptions = DEFAULT,
    jobs: int = 1,
    train: bool = True,
    callback: Callback | None = None,
) -> Reproduced:
    """Run what is missing of a figure of the paper, "3" or "4a" to "4f", and draw it.

    The arguments are those of `table`; a cell is, for instance, "decay-0.999".

    >>> from tempfile import mkdtemp
    >>> figure("4d", cell="decay-0.999", seeds=1, train=False, out=mkdtemp()).unfinished
    1
    """
    place = find_figure(name, laptop=laptop)
    runs = runs_of(recipe_names(place, cell=cell), seeds=seeds, preset=preset, out=Path(out))
    problems = train_all(runs, command_options(data, options), jobs, callback) if train else ()
    records = complete(runs)
    panels = panels_of(place, runs, records)
    title = f"Figure {name} of the paper{_on_a(laptop)}: {place.title}"
    caption = _laptop_caption(runs)
    findings: list[str] = []
    if place.kind == "curves":
        drawn, findings = draw_curves(panels, title, caption), describe_curves(panels)
    else:
        drawn = draw_settings(panels, title, caption, bold=place.bold)
    stem = f"figure-{name}" + _suffix(cell, laptop, preset)
    part: Part = "test" if place.kind == "curves" else "validation"
    contents = {f"{stem}.{ending}": content for ending, content in as_files(drawn, title).items()}
    tables = tabular(stem, list(records.values()), part) if records else {}
    files = written(Path(out), {**contents, **tables})
    text = _figure_text(title, caption, panels, part)
    text += "".join(f"{finding}\n" for finding in findings)
    return Reproduced(text, files, problems, len(runs) - len(records), findings=tuple(findings))


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
                reason = f"{entry.source}; {entry.reason}."
                cells.append(Cell(system=system, column=column, paper=(entry.error, entry.spread), quoted=reason))
            elif isinstance(entry, str) and (its := [run for run in runs if _paper_name(run.name) == entry]):
                claim = RECIPES[entry.removeprefix(LAPTOP)].claim
                cells.append(
                    Cell(
                        system=system,
                        column=column,
                        paper=None if claim is None else (claim.error, claim.spread),
                        metric="error" if claim is None else claim.metric,
                        recipe=entry,
                        deviations=its[0].recipe.deviations,
                        runs=[records[run] for run in its if run in records],
                    )
                )
    shown = {cell.recipe for cell in cells}
    its_runs = [run for run in runs if _paper_name(run.name) in shown]
    return PaperTable(
        title=part.title if part.name in OUR_TABLES else f"Table {part.name}. {part.title}",
        cells=cells,
        columns=part.columns,
        laptop=_laptop_caption(its_runs),
        unfinished=sum(run not in records for run in its_runs),
    )


def _paper_name(name: str) -> str:
    return name.removesuffix("/as-coded")


def _on_a(laptop: bool) -> str:
    return " on a laptop" if laptop else ""


def _laptop_caption(runs: Sequence[Run]) -> str:
    if not any(run.name.startswith(LAPTOP) for run in runs):
        return ""
    steps = listed([f"{n:,}" for n in sorted({run.recipe.training.steps for run in runs})])
    return f"Laptop version: {steps} steps of a small network. Only the order can be compared with the paper's."


def _suffix(cell: str, laptop: bool, preset: Preset) -> str:
    parts = ["laptop" if laptop else "", cell.replace("/", "-"), "as-coded" if preset == "as-coded" else ""]
    return "".join(f"-{part}" for part in parts if part)


def _figure_text(title: str, caption: str, panels: dict[str, dict[str, list[Record]]], part: Part) -> str:
    lines = [title, caption, ""] if caption else [title, ""]
    for panel, settings in panels.items():
        lines += [panel] if len(panels) > 1 else []
        for label, runs in settings.items():
            n_images = runs[0].data.n_images(part) if runs else 0
            errors = percent_spread(spread([run.error(part) for run in runs]), n_images)
            lines.append(f"  {label:<24} {part} error, %: {errors:>14}  n = {len(runs)}")
    return "\n".join(lines) + "\n"
