"""`meanteacher predict`, `meanteacher evaluate` and `meanteacher export`: the uses of a trained model."""

import json
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from meanteacher.cli.console import cell, graceful_stop, progress_bar, say
from meanteacher.cli.options import DeviceOption, LabelsOption, ModelArgument, OverwriteOption, PhotosArgument
from meanteacher.core import InputError, Interrupted
from meanteacher.files import write_atomic
from meanteacher.formats import count, percent, percent_range, points

if TYPE_CHECKING:
    from meanteacher.photos.model.predict import Predictions
    from meanteacher.photos.model.sorting import Sorted

_WHICH = {"new": " that are new to the model", "unlabelled": " whose labels are new to the model", "unknown": ""}
_MAX_CLASSES = 12
"""Most classes of a confusion matrix in a terminal."""


def predict(
    model: ModelArgument,
    images: Annotated[Path, typer.Argument(help="A folder of images, with or without folders in it.")],
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file for the predictions.", show_default="predictions.csv; with --sort-into, in DIR"),
    ] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Copy each photo into DIR/CLASS, and write DIR/contact-sheet.html."),
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="With --sort-into: make symbolic links instead of copies.")
    ] = False,
    move: Annotated[
        bool,
        typer.Option("--move", help="With --sort-into: move the photos. `sh DIR/undo.sh` moves them back."),
    ] = False,
    unsure_below: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="CONFIDENCE",
            help="Photos with less confidence, such as 0.8, are unsure: a column of the table, and a folder of their "
            "own with --sort-into.",
        ),
    ] = None,
    contact_sheet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a page of thumbnails with guess and confidence."),
    ] = None,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Predict the class of every image in a folder, with constant memory, and sort the photos into folders."""
    from meanteacher.photos.model.bundle import load
    from meanteacher.photos.model.export import check_new_file
    from meanteacher.photos.model.sorting import check_outside

    if (link or move) and sort_into is None:
        raise InputError(f"{'--link' if link else '--move'} says how to sort photos: add --sort-into DIR.")
    if link and move:
        raise InputError("--link and --move exclude each other: give one of them.")
    if sort_into is not None:
        check_outside(sort_into, images)
        contact_sheet = contact_sheet or sort_into / "contact-sheet.html"
    out = out or (sort_into or Path()) / "predictions.csv"
    if contact_sheet is not None:
        check_new_file(contact_sheet, overwrite=overwrite)
    console = Console()
    classifier = load(model)
    began = time.monotonic()
    with progress_bar(console) as show, graceful_stop(console) as should_stop:
        predictions = classifier.predict(
            images,
            out=out,
            unsure_below=unsure_below,
            overwrite=overwrite,
            device=device,
            progress=partial(show, "Predicting"),
            should_stop=should_stop,
        )
        seconds = time.monotonic() - began
        if not predictions.complete:
            say(
                console,
                f"Interrupted after {count(len(predictions))}; nothing was written. Run it again to start over.",
            )
            raise typer.Exit(Interrupted.exit_code)
        if contact_sheet is not None:
            # Before photos are moved.
            _write(contact_sheet, predictions.contact_sheet())
        sorting = None
        if sort_into is not None:
            sorting = predictions.sort_into(
                sort_into,
                how="link" if link else "move" if move else "copy",
                progress=partial(show, "Sorting"),
                should_stop=should_stop,
            )
    console.print(_counts(predictions))
    rate = len(predictions) / seconds
    say(console, f"{count(len(predictions))} in {seconds:.1f} s ({rate:,.0f} images per second).")
    _say_apart(console, predictions)
    if predictions.problems:
        say(console, f"{len(predictions.problems):,} cannot be read and have no guess: the column `problem` says why.")
    if n_ignored := predictions.images.n_ignored:
        others = count(n_ignored, "other file was", "other files were")
        say(console, f"{others} left alone, because the extension is not that of a photo.")
    for path in filter(None, (out, contact_sheet)):
        say(console, f"Written: {path}")
    if sorting is not None:
        _say_sorted(console, sorting, "linked" if link else "moved" if move else "copied")


def _counts(predictions: "Predictions") -> Table:
    table = Table("Class", "Images", box=None)
    table.columns[1].justify = "right"
    for name, n in sorted(predictions.counts.items(), key=lambda item: -item[1]):
        table.add_row(cell(name), f"{n:,}")
    return table


def _say_apart(console: Console, predictions: "Predictions") -> None:
    if predictions.unsure_below is not None:
        n_unsure, below = int(predictions.is_unsure.sum()), percent(predictions.unsure_below)
        say(console, f"{count(n_unsure, 'image is', 'images are')} unsure: the confidence is below {below}.")
    if n_strange := int(predictions.is_strange.sum()):
        say(
            console,
            f"{count(n_strange, 'image is', 'images are')} unlike any labelled photo and may be of none of the "
            "classes: the column `strangeness` is above 1.",
        )


def _say_sorted(console: Console, sorting: "Sorted", done: str) -> None:
    there = f" ({sorting.n_there:,} of them were there already)" if sorting.n_there else ""
    say(console, f"{count(sorting.n_sorted, 'photo')} {done} into the folders of {sorting.folder}{there}.")
    for folder, n in sorting.n_apart.items():
        say(console, f"{n:,} of them are kept apart in the folder `{folder}` there.")
    if sorting.undo is not None:
        say(console, f"To move all of them back: sh {shlex.quote(str(sorting.undo))}")
    if not sorting.complete:
        say(console, "Interrupted; the other photos are where they were. Repeat the command with --overwrite to go on.")
        raise typer.Exit(Interrupted.exit_code)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise InputError(f"Cannot write {path} ({error}). Free disk space, or give another file.") from error


def evaluate(
    model: ModelArgument,
    photos: PhotosArgument,
    labels: LabelsOption = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Measure the error of a model on labelled images that it was not trained on.

    Images of the training set are recognised by their pixels and left out: their error says nothing about new images.
    """
    from meanteacher.photos.model.bundle import load

    console = Console()
    classifier = load(model)
    with progress_bar(console) as show:
        scores = classifier.evaluate(photos, labels, device=device, progress=partial(show, "Evaluating"))
    if scores["judged"] != "training":
        console.print(_per_class(scores))
        if len(classifier.class_names) <= _MAX_CLASSES:
            console.print(_confusion_matrix(scores))
        say(
            console,
            f"Wrong on {scores['wrong']:,} of {count(scores['n_judged'])}{_WHICH[scores['judged']]}: "
            f"an error of {_with_interval(scores)}. "
            f"Its confidence is off by {points(100 * scores['calibration']['error'])} points on average.",
        )
    for sentence in _seen_sentences(scores, classifier.about, model):
        say(console, sentence)
    if scores["unreadable"]:
        first = scores["unreadable"][0]
        say(
            console,
            f"{count(len(scores['unreadable']), 'labelled image')} cannot be read and were left out, "
            f"such as {first['name']} ({first['reason']}).",
        )
    if out is not None:
        _write(out, json.dumps(scores, indent=1))
        say(console, f"Written: {out}")


def export(
    model: ModelArgument,
    onnx: Annotated[bool, typer.Option("--onnx", help="The format; ONNX is the only one.", show_default=False)] = True,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("model.onnx"),
    overwrite: OverwriteOption = False,
) -> None:
    """Export a model to ONNX, and check that the file computes the same."""
    from meanteacher.photos.model.bundle import load

    console = Console()
    classifier = load(model)
    with console.status("Exporting, and comparing with onnxruntime …"):
        classifier.export(out, overwrite=overwrite)
    say(
        console,
        f"Written: {out}. Its input `images` is bytes [N, 3, {classifier.size}, {classifier.size}] and its output "
        f"`probabilities` [N, {len(classifier.class_names)}], the same as here on test images. Its metadata hold "
        "the class names and how an image becomes these bytes; examples/predict_with_onnx.py reads them.",
    )


def _seen_sentences(scores: dict[str, Any], about: dict[str, Any], model: Path) -> list[str]:
    """What the error is worth, given which of these images the model has seen."""
    seen = scores["seen"]
    if seen is None:
        return [
            "The model does not say which images it was trained on, because its file seen.bin is missing. If some of "
            "these are among them, the error on new images is higher."
        ]
    sentences = []
    trained, unlabelled = seen["training"], seen["unlabelled"]
    if scores["judged"] == "training":
        sentences.append(
            f"The model was trained on all {count(trained['n_judged'])}. It is wrong on {percent(trained['error'])} of "
            f"them, which says nothing about new images. {_estimate(about, model)}"
        )
    elif trained["n_judged"]:
        sentences.append(
            f"Left out: {count(trained['n_judged'])} that the model was trained on. It is wrong on "
            f"{percent(trained['error'])} of them, which says nothing about new images."
        )
    if scores["judged"] == "unlabelled":
        sentences.append(
            "The model was trained on these images without their labels, so the error on new images may be slightly "
            "higher."
        )
    elif unlabelled["n_judged"]:
        sentences.append(
            f"Left out: {count(unlabelled['n_judged'])} that the model was trained on without labels. It is wrong "
            f"on {percent(unlabelled['error'])} of them."
        )
    if not trained["n_judged"] + unlabelled["n_judged"]:
        sentences.append("The model has seen none of these images before.")
    return sentences


def _estimate(about: dict[str, Any], model: Path) -> str:
    """Where to find an estimate for new images."""
    from meanteacher.photos.pages.sentences import estimate_of

    folder = model if (model / "model").is_dir() else model.resolve().parent
    report = f" (see {folder / 'report.html'})" if (folder / "report.html").exists() else ""
    if estimate := estimate_of(about):
        return f"The estimate of the fit{report}: {estimate}"
    return f"Give images that it was not trained on; the report of the fit has an estimate{report}."


def _per_class(scores: dict[str, Any]) -> Table:
    table = Table("Class", "Images", "Wrong", "Error (95 % interval)", "Most often taken for", box=None)
    for column in table.columns[1:4]:
        column.justify = "right"
    names = [entry["name"] for entry in scores["per_class"]]
    for k, entry in enumerate(scores["per_class"]):
        most, other = max((n, j) for j, n in enumerate(scores["confusion"][k]) if j != k)
        table.add_row(
            cell(entry["name"]),
            f"{entry['n_judged']:,}",
            f"{entry['wrong']:,}",
            _with_interval(entry),
            cell(f"{names[other]} ({most:,})" if most else ""),
        )
    return table


def _confusion_matrix(scores: dict[str, Any]) -> Table:
    """Rows are the true class, columns the predicted one."""
    names = [cell(entry["name"]) for entry in scores["per_class"]]
    table = Table("True \\ predicted", box=None)
    for name in names:
        table.add_column(name, justify="right")
    for name, row in zip(names, scores["confusion"], strict=True):
        table.add_row(name, *(f"{n:,}" if n else "·" for n in row))
    return table


def _with_interval(entry: dict[str, Any]) -> str:
    if entry["error"] is None:
        return "–"
    return f"{percent(entry['error'])} ({percent_range(entry['low'], entry['high'])})"
