"""`meanteacher plan`."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import say
from meanteacher.cli.run import recipe_names
from meanteacher.core import InputError, check_choice

if TYPE_CHECKING:
    from meanteacher.experiment.sizing import Need, Plan

_GPU_NAMES = ("v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb", "h100-80gb")


def plan(
    recipe: Annotated[
        str,
        typer.Argument(help="Name of a recipe, or FILE.py:NAME for one of your own.", autocompletion=recipe_names),
    ],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs over which every batch is divided.")] = 1,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="|".join(_GPU_NAMES),
            help="Device whose figures are used. The options below replace them.",
            autocompletion=lambda: list(_GPU_NAMES),
        ),
    ] = "a100-40gb",
    device_memory: Annotated[float | None, typer.Option(metavar="GB", help="Memory of a GPU.")] = None,
    tflops: Annotated[float | None, typer.Option(metavar="X", help="Peak TFLOP/s in float32.")] = None,
    tflops_bfloat16: Annotated[float | None, typer.Option(metavar="X", help="Peak TFLOP/s in bfloat16.")] = None,
    efficiency: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the peak that training attains, 0 to 1.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/s", help="From one GPU to the others, in each direction.")
    ] = None,
    decode_rate: Annotated[
        float, typer.Option(metavar="N", help="Images per second that one processor core decodes.")
    ] = 100.0,
    data_factor: Annotated[float, typer.Option(metavar="X", help="X times the images, and X times the steps.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print every number as JSON.")] = False,
) -> None:
    """Compute what a run needs, without running it: memory per GPU, communication, time.

    The network is counted by its shapes, and nothing is allocated. Speed comes from figures of the device.
    """
    from dataclasses import asdict, replace

    from meanteacher import api
    from meanteacher.devices import GPUS

    check_choice("--gpu", gpu, _GPU_NAMES)
    figures = GPUS[gpu]
    given = {"--device-memory": device_memory, "--tflops": tflops, "--tflops-bfloat16": tflops_bfloat16}
    given |= {"--efficiency": efficiency, "--bandwidth": bandwidth, "--decode-rate": decode_rate}
    for option, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{option} is a number above 0; got {value}.")
    peaks = {"float32": tflops, "bfloat16": tflops_bfloat16}
    known = {**figures.tflops, **{kind: peak for kind, peak in peaks.items() if peak is not None}}
    shares = {kind: efficiency or figures.efficiency.get(kind, figures.efficiency["float32"]) for kind in known}
    if any(value is not None for option, value in given.items() if option != "--decode-rate"):
        figures = replace(figures, name=f"{gpu}, changed", tflops=known, efficiency=shares)
        figures = replace(figures, memory=device_memory or figures.memory, bandwidth=bandwidth or figures.bandwidth)
    found = api.plan(recipe, gpus=gpus, gpu=figures, data_factor=data_factor, decode_rate=decode_rate)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    _print(Console(), found)


def _print(console: Console, plan: "Plan") -> None:
    from rich.table import Table

    gpu, counted = plan.gpu, plan.counted
    say(console, f"{plan.recipe} on {plan.gpus} x {gpu.name}")
    say(
        console,
        f"{plan.n_images:,} images ({_size(1e9 * plan.storage)} of files), {plan.steps:,} steps of {plan.batch} "
        f"images, {plan.rows} per GPU",
    )
    say(
        console,
        f"{counted.n_parameters:,} parameters, {counted.flops / 1e9:.1f} GFLOP and "
        f"{_size(counted.activations['float32'])} of float32 activations per image",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("per GPU", no_wrap=True)
    for precision in plan.needs:
        table.add_column(precision, justify="right", no_wrap=True)
    needs = list(plan.needs.values())

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    names = {
        "student": "student",
        "gradients": "gradients",
        "optimiser": "optimiser",
        "method": "teacher, and what else the method keeps",
        "reserve": "driver and workspaces",
        "activations": "activations",
    }
    for key, label in names.items():
        row(label, *(_size(1e9 * need.memory[key]) for need in needs))
    row("memory in all", *(_size(1e9 * need.total) for need in needs))
    row(f"largest batch in {gpu.memory:g} GB", *(f"{need.largest_batch:,}" for need in needs))
    for name, sent in plan.communicated.items():
        row(f"sent per step: {name}", *(_size(sent) for _ in needs))
    row("time per step: computing", *(_time(need.compute_seconds) for need in needs))
    row("time per step: communicating", *(_time(need.communication_seconds) for need in needs))
    row("time of the run", *(_time(need.run_seconds) for need in needs))
    row("GPU time of the run", *(_time(plan.gpus * need.run_seconds) for need in needs))
    row("images read per second, all GPUs", *(f"{need.images_per_second:,.0f}" for need in needs))
    row("bytes read per second", *(_size(need.images_per_second * plan.image_bytes) for need in needs))
    if plan.decoded:
        row("processor cores that decode", *(_cores(need, plan) for need in needs))
    console.print(table)
    shares = ", ".join(f"{plan.gpu.tflops[kind]:g} TFLOP/s in {kind} x {gpu.efficiency[kind]:g}" for kind in plan.needs)
    decoding = f", {plan.decode_rate:g} images decoded per second and core" if plan.decoded else ""
    say(console, f"Figures: {gpu.memory:g} GB, {shares}, {gpu.bandwidth:g} GB/s between GPUs{decoding}.")
    for sentence in plan.advice:
        say(console, (sentence, "yellow"))


def _cores(need: "Need", plan: "Plan") -> str:
    return f"{max(1, round(need.images_per_second / plan.decode_rate)):,}"


_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def _size(n_bytes: float) -> str:
    """Three digits and a unit.

    >>> _size(0), _size(496_003_200), _size(147_334_205_000_000)
    ('0 bytes', '496 MB', '147 TB')
    """
    unit = 0
    while n_bytes >= 999.5 and unit < len(_UNITS) - 1:
        n_bytes, unit = n_bytes / 1000, unit + 1
    return f"{n_bytes:.0f} {_UNITS[unit]}" if n_bytes >= 99.95 or unit == 0 else f"{n_bytes:.3g} {_UNITS[unit]}"


_DAY = 86_400.0
_YEAR = 365.25 * _DAY


def _time(seconds: float) -> str:
    """A time from microseconds to years.

    >>> _time(0.0031), _time(75), _time(3 * 86_400), _time(1e9)
    ('3.1 ms', '1 min 15 s', '3.0 days', '31.7 years')
    """
    from meanteacher.formats import duration

    if seconds >= 2 * _YEAR:
        return f"{seconds / _YEAR:,.1f} years"
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:,.1f} days"
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)
