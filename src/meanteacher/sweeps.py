"""`mt.sweep`: a recipe with several values of its fields and several seeds, trained by several processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from meanteacher.api import load_recipe
from meanteacher.experiment import variants
from meanteacher.experiment.runs import Run, check_seeds, complete, evenly
from meanteacher.experiment.workers import Trained, Workers, command_options, written
from meanteacher.formats import count, listed
from meanteacher.records import Part, Record
from meanteacher.report import render_page, summarise, to_text
from meanteacher.report.compare import baseline_differences, recipe_labels
from meanteacher.report.page import comparable, compared_with
from meanteacher.report.tabular import tabular
from meanteacher.train import Callback
from meanteacher.train.execution import DEFAULT, RunOptions


def sweep(
    recipe: str,
    settings: Sequence[str] | Mapping[str, object] = (),
    *,
    seeds: int = 1,
    out: Path | str = "runs",
    data: Path | str | None = None,
    options: RunOptions = DEFAULT,
    jobs: int = 1,
    log: Literal["tensorboard", "wandb"] | None = None,
    train: bool = True,
    callback: Callback | None = None,
) -> Trained:
    """Train a recipe with every combination of some values, as `meanteacher run RECIPE --seeds N --set FIELD=A,B` does.

    Complete runs are not run again, interrupted ones are continued: the same call goes on after an interruption. A page
    with the differences paired by seed is written to OUT/sweep-RECIPE-FIELDS.html, tables and curves as CSV and JSON
    beside it. If the recipe holds out validation images, errors are compared on these: a setting that was chosen on
    test images has a test error that is too low.

    Args:
        recipe: its name, or where it is defined ("my_file.py:recipe"); every process loads it anew
        settings: field -> its values, as in {"method.weight.value": [1, 3, 10]}; or as the command line has them
        seeds: runs of each combination, with the seeds 0, 1, …
        out: the folder of all runs and of the page
        data: the folder of the data files
        options: how to execute every run
        jobs: runs at the same time, each in a process of its own with its part of the threads
        log: where each run sends its numbers, too
        train: False writes what there is, and runs nothing
        callback: follows the runs, and may stop them: all are saved

    Raises:
        InputError: something given is wrong.
        Interrupted: by the callback. The same call continues.

    >>> from tempfile import mkdtemp
    >>> sweep("moons/mean-teacher", {"method.weight.value": [1, 3, 10]}, seeds=2, train=False, out=mkdtemp()).unfinished
    6
    """
    runs = runs_of_sweep(recipe, settings, seeds=seeds, out=Path(out))
    workers = Workers(
        runs=runs, options=command_options(data, options, log=log), jobs=jobs, callback=callback or Callback()
    )
    problems = workers.run_all() if train else ()
    records = list(complete(runs).values())
    files: tuple[Path, ...] = ()
    text = "No run is complete.\n"
    if records:
        part: Part = "validation" if all(record.data.n_validation for record in records) else "test"
        values = {run.recipe.name: dict(setting.split("=", 1) for setting in run.settings) for run in runs}
        fields = [*values[runs[0].recipe.name]]
        swept = [field for field in fields if len({each[field] for each in values.values()}) > 1]
        name = runs[0].recipe.name.partition("+")[0]
        stem = "-".join(["sweep", name.replace("/", "-"), *fields])
        title = f"{name}: {listed(swept) or count(seeds, 'seed')}"
        contents = {f"{stem}.html": render_page(records, title, part=part), **tabular(stem, records, part, values)}
        files, text = written(Path(out), contents), _text(title, records, part)
    return Trained(text, files, problems, len(runs) - len(records))


def runs_of_sweep(
    recipe: str, settings: Sequence[str] | Mapping[str, object] = (), *, seeds: int = 1, out: Path
) -> list[Run]:
    """Every run of a sweep: first the first seed of each combination."""
    check_seeds(seeds)
    varied = variants(load_recipe(recipe), settings)
    return evenly([[Run(recipe, changed, seed, out, chosen) for seed in range(seeds)] for changed, chosen in varied])


def _text(title: str, records: Sequence[Record], part: Part) -> str:
    """The errors of each combination, and the differences paired by seed, for a terminal."""
    lines = [f"{title}; {part} error", ""]
    for group in comparable(records):
        labels = recipe_labels(group)
        lines.append(to_text(summarise(group, part=part)))
        for recipe, difference in baseline_differences(group, part).items():
            points = difference.with_interval(group[0].data.n_images(part))
            lines.append(f"{labels[recipe]}: {points} points against {compared_with(group)}, n = {difference.n}")
    return "\n".join(lines) + "\n"
