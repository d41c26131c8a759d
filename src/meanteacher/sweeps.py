"""`mt.sweep`: a recipe with several values of its fields and several seeds, trained by several processes."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

from meanteacher.api import load_recipe
from meanteacher.core import InputError
from meanteacher.experiment import Recipe, override
from meanteacher.experiment.override import as_typed
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


def variants(recipe: Recipe, settings: Sequence[str] | Mapping[str, object]) -> list[tuple[Recipe, tuple[str, ...]]]:
    """Every combination of the values given for some fields, each with the settings that make it.

    Args:
        recipe: the recipe to vary
        settings: as --set takes them, several values with commas between them, "method.weight.value=1,3,10"; a list
            that is one value stands in brackets, unless it fits its field as it is. Or field -> a list of its values

    Raises:
        InputError: a field is not there, or a value does not fit it.

    >>> from meanteacher.recipes import find
    >>> [settings for _, settings in variants(find("moons/mean-teacher"), ["steps=100,200"])]
    [('steps=100',), ('steps=200',)]
    """
    if isinstance(settings, Mapping):
        lists = {field: given if isinstance(given, list | tuple) else [given] for field, given in settings.items()}
        if empty := [field for field, given in lists.items() if not given]:
            raise InputError(f"{empty[0]} has no values. Give at least one, as in {{{empty[0]!r}: [1, 3]}}.")
        choices = [[f"{field}={as_typed(value)}" for value in given] for field, given in lists.items()]
    else:
        choices = [_alternatives(recipe, setting) for setting in settings]
    found: dict[str, tuple[Recipe, tuple[str, ...]]] = {}
    for chosen in product(*choices):
        changed = override(recipe, *chosen)
        found.setdefault(changed.name, (changed, chosen))
    return list(found.values())


def _alternatives(recipe: Recipe, setting: str) -> list[str]:
    """A setting for each of its values; one if the value fits as it is, with its commas."""
    field, sign, text = setting.partition("=")
    values = re.split(r",(?![^(\[]*[)\]])", text)  # a comma within brackets is part of a value
    if len(values) > 1:
        try:
            override(recipe, setting)
        except InputError:
            return [f"{field}{sign}{value.strip()}" for value in values]
    return [setting]


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
