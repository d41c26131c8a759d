"""`make bench`, or `python -m benchmarks`: measure, print and write the results."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.status import Status

from benchmarks import images, shards, training
from benchmarks.timing import Compare, interleaved
from meanteacher.cli.console import exit_codes, tune_malloc
from meanteacher.core import InputError
from meanteacher.experiment.run import environment
from meanteacher.files import write_json
from meanteacher.models import Conv13Spec, FastNetSpec, ModelSpec, WideResNetSpec

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
FULL, QUARTER, FAST = Conv13Spec(), Conv13Spec(width=0.25), FastNetSpec()
MODELS: dict[str, ModelSpec] = {"conv13": FULL, "conv13-quarter": QUARTER, "fast": FAST, "wrn-28-2": WideResNetSpec()}


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="JSON file for the results.")] = Path("bench.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: a minute or two instead of ten.")] = False,
    only: Annotated[str | None, typer.Option(help="Only measurements with this in their name.")] = None,
) -> None:
    """Measure the training step against the limit of this machine and against plain code, and its parts.

    Contenders take turns and medians of rounds are compared, so that other load on the machine affects all of them.
    The machine should be idle all the same.
    """
    tune_malloc()
    with exit_codes(sys.argv, resume=False):
        bench(out, quick=quick, only=only)


def bench(out: Path, *, quick: bool, only: str | None) -> None:
    """Print and write each result as soon as it is there: an interruption loses one measurement."""
    console = Console(highlight=False)
    rounds = 3 if quick else 7
    measurements = _measurements(quick=quick)
    chosen = [name for name in measurements if only is None or only in name]
    if not chosen:
        raise InputError(f"No measurement has {only!r} in its name. There are: {', '.join(measurements)}.")
    _check_writable(out)
    results: dict[str, Any] = {"environment": environment(), "rounds": rounds}
    for name in chosen:
        with console.status(name) as status:
            result = measurements[name](partial(interleaved, rounds=rounds, announce=partial(_announce, status, name)))
        if result is None:
            console.print(f"{name}: cannot be measured on this system")
            continue
        results[name] = result
        write_json(out, results)
        console.print(f"{name}:{_lines(result)}", soft_wrap=True)
    console.print(f"{torch.get_num_threads()} threads. Written: {out}", soft_wrap=True)


def _announce(status: Status, name: str, line: str) -> None:
    status.update(f"{name}: {line}")


def _check_writable(out: Path) -> None:
    """Before minutes of measuring."""
    if out.is_dir():
        raise InputError(f"{out} is a folder: give the name of a file, for instance --out {out / 'bench.json'}.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"Cannot write to {out.parent} ({error.strerror}): give another file with --out.") from error


def _measurements(*, quick: bool) -> dict[str, Callable[[Compare], dict[str, Any] | None]]:
    n = 2 if quick else 5
    return {
        "start": start,
        "views": images.views,
        "data": images.file_rates,
        "shards/rates": shards.rates,
        "ema/conv13": lambda compare: training.average(compare, FULL),
        "predict/conv13-quarter": lambda compare: training.predict(compare, QUARTER),
        "step/conv13-quarter": lambda compare: training.against_limit(compare, QUARTER, n_steps=n),
        "predict/fast": lambda compare: training.predict(compare, FAST),
        "step/fast": lambda compare: training.against_limit(compare, FAST, n_steps=n),
        "step/conv13": lambda compare: training.against_limit(compare, FULL, n_steps=1),
        "plain/conv13-quarter": lambda compare: training.against_plain(compare, QUARTER, n_steps=4 * n),
        "ranks/conv13-quarter": lambda compare: training.two_ranks(compare, QUARTER, n_steps=4 * n),
        "vitals/conv13-quarter": lambda compare: training.vitals_share(compare, QUARTER, n_steps=n),
        "growth": lambda compare: training.growth(compare, Conv13Spec(width=0.05), n_steps=10),
        "memory/peak-mb": lambda compare: training.peak_memory(MODELS),
        "shards/memory": lambda compare: shards.memory(),
        "memory/temporal-ensembling-table": lambda compare: training.table_memory(n_images=1_000_000, n_classes=10),
    }


def start(compare: Compare) -> dict[str, Any]:
    """Seconds until help is shown, and until everything that a run needs is imported."""
    commands = {
        "help": [sys.executable, "-c", "from meanteacher.cli import main; main()", "--help"],
        "import": [sys.executable, "-c", "import meanteacher.recipes"],
    }
    timings = compare(
        {name: partial(subprocess.run, words, capture_output=True, check=True) for name, words in commands.items()}
    )
    return {f"{name}_seconds": timing.median for name, timing in timings.items()}


def _lines(result: dict[str, Any]) -> str:
    """Numbers on one line, and a line for each group of them."""
    numbers = {name: value for name, value in result.items() if not isinstance(value, dict)}
    groups = {name: value for name, value in result.items() if isinstance(value, dict)}
    lines = [_listed(numbers)] if numbers else []
    lines += [f"{name.replace('_', ' ')}: {_listed(group)}" for name, group in groups.items()]
    return " " + lines[0] if len(lines) == 1 else "".join(f"\n    {line}" for line in lines)


def _listed(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_rounded(value)}" for name, value in numbers.items())


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    app()
