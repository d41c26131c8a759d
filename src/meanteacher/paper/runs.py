"""The runs behind a table or figure of the paper: which there are, which are missing, and how long they take."""

import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import nn

from meanteacher.core import InputError, Problem, check_choice
from meanteacher.devices import choose_device, wait_for
from meanteacher.experiment import override
from meanteacher.experiment.operations import row_operations
from meanteacher.experiment.runs import Run, check_seeds, evenly
from meanteacher.paper.layout import FIGURES, LAPTOP, LAPTOP_FIGURES, LAPTOP_TABLES, OUR_TABLES, TABLES, Figure, Table
from meanteacher.paper.recipes.shared import AS_CODED
from meanteacher.recipes import RECIPES

Preset = Literal["paper", "as-coded"]
T = TypeVar("T")
_CHANNELS = 64
"""Of the convolutions that measure the speed of this machine."""


def find_table(name: str, *, laptop: bool = False) -> tuple[Table, ...]:
    """The parts of a table of the paper, of its laptop version, or of a table of our own."""
    return _found("table", name, TABLES, LAPTOP_TABLES if laptop else None, OUR_TABLES)


def find_figure(name: str, *, laptop: bool = False) -> Figure:
    """A figure of the paper, or its laptop version."""
    return _found("figure", name, FIGURES, LAPTOP_FIGURES if laptop else None, {})


def _found(kind: str, name: str, paper: Mapping[str, T], laptop: Mapping[str, T] | None, ours: Mapping[str, T]) -> T:
    if name not in {**paper, **ours}:
        more = f" Tables of our own are: {', '.join(ours)}." if ours else ""
        raise InputError(f"The paper has no {kind} {name!r} of results. It has: {', '.join(paper)}.{more}")
    if laptop is not None and name not in laptop:
        raise InputError(
            f"There is no laptop version of {kind} {name}; there is one of: {', '.join(laptop)}. Leave out --laptop."
        )
    return ({**paper, **ours} if laptop is None else laptop)[name]


def recipe_names(place: Sequence[Table] | Figure, *, cell: str = "") -> list[str]:
    """The recipes of a table or figure, each once; with `cell` those whose name contains it."""
    if isinstance(place, Figure):
        found = [name for panel in place.panels.values() for name in panel.values()]
    else:
        found = [name for table in place for row in table.rows.values() for name in row if isinstance(name, str)]
    names = list(dict.fromkeys(found))
    # A whole part of the name: svhn-500 is not svhn-500-extra-100k.
    chosen = [name for name in names if f"/{cell}/" in f"/{name}/"] if cell else names
    if not chosen:
        cells = [name.removeprefix(LAPTOP).partition("/")[2] for name in names]
        near = get_close_matches(cell, cells, n=3, cutoff=0.3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"There is no cell {cell!r}.{hint} The cells are: {', '.join(cells)}.")
    return chosen


def runs_of(
    names: Sequence[str],
    *,
    seeds: int | None = None,
    preset: Preset = "paper",
    out: Path,
    settings: Sequence[str] = (),
) -> list[Run]:
    """Every run of these recipes: first the first seed of each, so that a table fills evenly.

    The arguments are those of `table`.
    """
    check_choice("preset", preset, ("paper", AS_CODED))
    if preset == AS_CODED and any(name.startswith(LAPTOP) for name in names):
        raise InputError(
            f"--laptop and --preset {AS_CODED} do not go together: the authors' code has no laptop version."
        )
    check_seeds(seeds)
    by_recipe: list[list[Run]] = []
    for paper_name in names:
        coded = f"{paper_name}/{AS_CODED}"
        name = coded if preset == AS_CODED and coded in RECIPES else paper_name
        changed = override(RECIPES[name], *settings)
        chosen = changed.seeds if seeds is None else range(seeds)
        by_recipe.append([Run(name, changed, seed, out, tuple(settings)) for seed in chosen])
    return evenly(by_recipe)


def estimated_seconds(runs: Sequence[Run], *, device: str) -> dict[str, float]:
    """recipe -> seconds that one of its runs takes on this machine, without evaluations.

    The operations of a step are counted, and divided by the speed of this machine, which one short measurement gives.
    """
    recipes = {run.recipe.name: run.recipe for run in runs}
    speed = _operations_per_second(choose_device(device)) if recipes else 1.0
    counted: dict[object, float] = {}
    seconds = {}
    for name, recipe in recipes.items():
        training, source = recipe.training, recipe.data.source
        side = getattr(source, "size", 32)
        # Other fields of a method, such as weights and costs, change no pass of a network.
        switches = {name: value for name, value in vars(training.method).items() if name in ("buffers", "one_sided")}
        key = (training.model, type(training.method), *switches.values(), side)
        if key not in counted:
            problem = Problem(getattr(source, "n_classes", 10), n_examples=50_000, input_shape=(3, side, side))
            counted[key] = row_operations(training, problem)
        seconds[name] = training.steps * training.batch.size * counted[key] / speed
    return seconds


def _operations_per_second(device: torch.device) -> float:
    """Speed of a convolution and its gradients; on a CPU by processor time, so that load counts little."""
    layers = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1), nn.BatchNorm2d(_CHANNELS), nn.ReLU()
    network = nn.Sequential(*layers).to(device)
    rows = 32 if device.type == "cpu" else 1024
    images = torch.randn(rows, _CHANNELS, 32, 32, device=device, requires_grad=True)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times = []
    for _ in range(3):
        wait_for(device)
        begin = clock()
        network(images).sum().backward()
        wait_for(device)
        times.append((clock() - begin) / (torch.get_num_threads() if device.type == "cpu" else 1))
    # The output, and the gradients of weights and images.
    return 3 * 2 * 9 * _CHANNELS**2 * 32**2 * rows / min(times)
