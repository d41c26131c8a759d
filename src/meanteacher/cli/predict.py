"""`meanteacher predict`, `meanteacher evaluate` and `meanteacher export`: what a shipped model is for."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from meanteacher.classifier.bundle import load_bundle
from meanteacher.classifier.evaluate import evaluate
from meanteacher.classifier.export import export_onnx
from meanteacher.classifier.predict import predict
from meanteacher.cli.console import graceful_stop
from meanteacher.core import InputError
from meanteacher.files import write_json
from meanteacher.formats import count, percent, percent_range, points

_WHICH = {"new": " that are new to the model", "unlabelled": " whose labels are new to the model", "unknown": ""}
_MOST_CLASSES = 12
"""Whose confusions fit a terminal side by side."""


def run_predict(model: Path, photos: Path, *, out: Path, overwrite: bool, device: str = "auto") -> bool:
    """Write a label for every image. Returns whether it is complete."""
    console = Console()
    bundle = load_bundle(model)
    began = time.monotonic()
    with _bar(console, "Predicting") as progress, graceful_stop(lambda: console.print("Stopping.")) as should_stop:
        summary = predict(
            bundle, photos, out, overwrite=overwrite, device=device, progress=progress, should_stop=should_stop
        )
    if not summary.complete:
        _say(
            console, f"Interrupted after {summary.n_images:,} images; nothing was written. Run it again to start over."
        )
        return False
    seconds = time.monotonic() - began
    table = Table("Class", "Images", box=None)
    table.columns[1].justify = "right"
    for name, n in sorted(summary.counts.items(), key=lambda item: -item[1]):
        table.add_row(escape(name), f"{n:,}")
    console.print(table)
    _say(console, f"{summary.n_images:,} images in {seconds:.1f} s ({summary.n_images / seconds:,.0f} a second).")
    if summary.n_unreadable:
        _say(console, f"{summary.n_unreadable:,} cannot be read and have no label: the column `problem` says why.")
    _say(console, f"Written: {out}")
    return True


def run_evaluate(model: Path, photos: Path, *, labels: Path | None, out: Path | None, device: str = "auto") -> None:
    """Judge the model by images with labels, say how good it is, and write it as JSON if asked."""
    console = Console()
    bundle = load_bundle(model)
    with _bar(console, "Judging") as progress:
        scores = evaluate(bundle, photos, labels, device=device, progress=progress)
    if scores["judged"] != "training":
        console.print(_per_class(scores))
        if len(bundle.class_names) <= _MOST_CLASSES:
            console.print(_confusions(scores))
        _say(
            console,
            f"Wrong on {scores['wrong']:,} of {scores['n_judged']:,} images{_WHICH[scores['judged']]}: "
            f"an error of {_with_interval(scores)}. "
            f"Its confidence is off by {points(100 * scores['calibration']['error'])} points on average.",
        )
    for sentence in _about_seen(scores, bundle.about, model):
        _say(console, sentence)
    if scores["unreadable"]:
        first = scores["unreadable"][0]
        _say(
            console,
            f"{len(scores['unreadable']):,} labelled images cannot be read and were left out, "
            f"such as {first['name']} ({first['reason']}).",
        )
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, scores)
        except OSError as error:
            raise InputError(f"Cannot write {out} ({error}). Give another file with --out.") from error
        _say(console, f"Written: {out}")


def _about_seen(scores: dict[str, Any], about: dict[str, Any], model: Path) -> list[str]:
    """How far the error can be believed, by what the model has seen of these images."""
    seen = scores["seen"]
    if seen is None:
        return [
            "Whether some of these images taught the model cannot be told, because it does not say which did (it was "
            "made by an earlier version, or its file seen.bin is missing). If some did, the error on others is higher."
        ]
    sentences = []
    taught, unlabelled = seen["training"], seen["unlabelled"]
    if scores["judged"] == "training":
        sentences.append(
            f"All {taught['n_judged']:,} images taught this model. It is wrong on {percent(taught['error'])} of them, "
            f"which does not say how good it is on others. {_estimate(about, model)}"
        )
    elif taught["n_judged"]:
        sentences.append(
            f"Left out: {count(taught['n_judged'])} that taught the model. It is wrong on "
            f"{percent(taught['error'])} of those, which does not say how good it is on others."
        )
    if scores["judged"] == "unlabelled":
        sentences.append(
            "The model has learnt from these images without their labels, so on images that it has never seen the "
            "error may be a little higher."
        )
    elif unlabelled["n_judged"]:
        sentences.append(
            f"Left out: {count(unlabelled['n_judged'])} that the model has learnt from without their labels. It is "
            f"wrong on {percent(unlabelled['error'])} of those."
        )
    if not taught["n_judged"] + unlabelled["n_judged"]:
        sentences.append("The model has seen none of these images before.")
    if not seen["complete"]:
        sentences.append(
            "The model went on from one that does not say which images taught it. If some of these did, the error on "
            "others is higher."
        )
    return sentences


def _estimate(about: dict[str, Any], model: Path) -> str:
    """Where to find an error that means something."""
    folder = model if (model / "model").is_dir() else model.resolve().parent
    report = f" (see {folder / 'report.html'})" if (folder / "report.html").exists() else ""
    try:
        found = f"{_with_interval(about['estimate'])}, on {count(about['estimate']['n'])} that were kept apart"
    except (KeyError, TypeError, ValueError):
        return f"Give images that it has not been trained on; the report of the fit has an estimate{report}."
    return f"The estimate of the fit is an error of {found}{report}."


def run_export(model: Path, *, out: Path, overwrite: bool) -> None:
    """Write the model as ONNX, once it is shown to compute the same."""
    console = Console()
    bundle = load_bundle(model)
    with console.status("Exporting, and comparing what onnxruntime computes …"):
        export_onnx(bundle, out, overwrite=overwrite)
    _say(
        console,
        f"Written: {out}. It takes `images`, bytes [N, 3, {bundle.size}, {bundle.size}], and gives `probabilities` "
        f"[N, {len(bundle.class_names)}], the same as here on trial images. Its metadata name the classes and "
        "how an image is made into those bytes; examples/predict_with_onnx.py goes by them.",
    )


def _per_class(scores: dict[str, Any]) -> Table:
    table = Table("Class", "Images", "Wrong", "Error (95 % interval)", "Most often taken for", box=None)
    for column in table.columns[1:4]:
        column.justify = "right"
    names = [entry["name"] for entry in scores["per_class"]]
    for k, entry in enumerate(scores["per_class"]):
        others = [(n, j) for j, n in enumerate(scores["confusion"][k]) if j != k]
        most, other = max(others)
        table.add_row(
            escape(entry["name"]),
            f"{entry['n_judged']:,}",
            f"{entry['wrong']:,}",
            _with_interval(entry),
            f"{escape(names[other])} ({most:,})" if most else "",
        )
    return table


def _confusions(scores: dict[str, Any]) -> Table:
    """Rows are the true class, columns the predicted one."""
    names = [escape(entry["name"]) for entry in scores["per_class"]]
    table = Table("True \\ predicted", *names, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in zip(names, scores["confusion"], strict=True):
        table.add_row(name, *(f"{n:,}" if n else "·" for n in row))
    return table


def _with_interval(entry: dict[str, Any]) -> str:
    if entry["error"] is None:
        return "–"
    return f"{percent(entry['error'])} ({percent_range(entry['low'], entry['high'])})"


@contextmanager
def _bar(console: Console, doing: str) -> Iterator[Callable[[int, int], None]]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(doing, total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say(console: Console, sentence: str) -> None:
    console.print(escape(sentence), soft_wrap=True, highlight=False)
