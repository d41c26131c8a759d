"""`meanteacher bench`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from rich.console import Console
from rich.status import Status

from meanteacher.bench import files, memory, parts, steps
from meanteacher.core import InputError
from meanteacher.experiment.folder import environment
from meanteacher.files import write_json
from meanteacher.models import Conv13Spec, FastNetSpec, WideResNetSpec

FULL, QUARTER, FAST = Conv13Spec(), Conv13Spec(width=0.25), FastNetSpec()


def run_bench(out: Path, *, quick: bool, only: str | None) -> None:
    """Measure, print as it goes, and write as JSON what there is so far: an interruption loses one measurement."""
    console = Console()
    rounds = 3 if quick else 7
    measurements = _measurements(rounds, quick=quick)
    if only and not any(only in name for name in measurements):
        raise InputError(f"No measurement has {only!r} in its name. There are: {', '.join(measurements)}.")
    _check(out)
    results: dict[str, Any] = {"environment": environment(), "rounds": rounds}
    for name, measure in measurements.items():
        if only and only not in name:
            continue
        with console.status(name) as status:
            result = measure(partial(_update, status, name))
        if result is None:
            missing = (
                "cannot be measured on this system"
                if "memory" in name
                else "needs the source tree (benchmarks/plain.py)"
            )
            console.print(f"{name}: {missing}", highlight=False)
            continue
        results[name] = result
        write_json(out, results)
        console.print(f"{name}:{_said(result)}", highlight=False, soft_wrap=True)
    console.print(f"{torch.get_num_threads()} threads. Written: {out}", highlight=False, soft_wrap=True)


def _check(out: Path) -> None:
    """Minutes before anything is written."""
    if out.is_dir():
        raise InputError(f"{out} is a folder: give the name of a file, for instance --out {out / 'bench.json'}.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"Cannot write to {out.parent} ({error.strerror}): give another file with --out.") from error


def _measurements(rounds: int, *, quick: bool) -> dict[str, Callable[[Callable[[str], None]], dict[str, Any] | None]]:
    many = 2 if quick else 5
    return {
        "start": lambda a: parts.start(rounds=rounds, announce=a),
        "views": lambda a: parts.views(rounds=rounds, announce=a),
        "data": lambda a: files.rates(rounds=rounds, announce=a),
        "ema/conv13": lambda a: parts.average(FULL, rounds=rounds, announce=a),
        "predict/conv13-quarter": lambda a: parts.predict(QUARTER, rounds=rounds, announce=a),
        "step/conv13-quarter": lambda a: steps.against_the_limit(QUARTER, n_steps=many, rounds=rounds, announce=a),
        "predict/fast": lambda a: parts.predict(FAST, rounds=rounds, announce=a),
        "step/fast": lambda a: steps.against_the_limit(FAST, n_steps=many, rounds=rounds, announce=a),
        "step/conv13": lambda a: steps.against_the_limit(FULL, n_steps=1, rounds=rounds, announce=a),
        "plain/conv13-quarter": lambda a: steps.against_plain(QUARTER, n_steps=4 * many, rounds=rounds, announce=a),
        "vitals/conv13-quarter": lambda a: steps.vitals_share(QUARTER, n_steps=many, rounds=rounds, announce=a),
        "growth": lambda a: steps.growth(Conv13Spec(width=0.05), n_steps=10, rounds=rounds, announce=a),
        "memory/peak-mb": lambda a: memory.peak(
            {"conv13": FULL, "conv13-quarter": QUARTER, "fast": FAST, "wrn-28-2": WideResNetSpec()}, announce=a
        ),
        "memory/temporal-ensembling-table": lambda a: memory.table(n_images=1_000_000, n_classes=10),
    }


def _update(status: Status, name: str, line: str) -> None:
    status.update(f"{name}: {line}")


def _said(result: dict[str, Any]) -> str:
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
