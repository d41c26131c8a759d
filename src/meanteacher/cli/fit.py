"""`meanteacher fit` and `meanteacher check`."""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, progress_bar, say
from meanteacher.cli.options import (
    DeviceOption,
    LabelsOption,
    OverwriteOption,
    PhotosArgument,
    ResumeOption,
    StartOrResumeOption,
)


def fit(
    photos: PhotosArgument,
    labels: LabelsOption = None,
    minutes: Annotated[
        float, typer.Option(metavar="N", help="Time limit, at least 1. More time gives a better model.")
    ] = 30,
    out: Annotated[Path, typer.Option(help="Folder for the model, the predictions and the report.")] = Path("fit"),
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Whether a mirrored image still belongs to its class.",
            show_default="by the class names: off for digits, text, left and right",
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="folder|time|COLUMN",
            help="Which photos belong together and are tested together: those of a folder, of one time, or with the "
            "same value in a column of the labels file.",
            show_default="copies, bursts and series, by times, names and looks",
        ),
    ] = None,
    resume: ResumeOption = False,
    start_or_resume: StartOrResumeOption = False,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
    backbone: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Pretrained network: lite0, lite2, timm:NAME, torchvision:NAME, hf:OWNER/NAME, a .safetensors file; "
            "none trains from scratch.",
            show_default="lite0, and lite2 beside it; for small images a short trial decides between lite0 and none",
        ),
    ] = "auto",
) -> None:
    """Train a classifier on a folder of photos, few of them labelled, within a time limit.

    Pretrained networks look at each photo, and a classifier learns from all labels and from the unlabelled photos. A
    complete model is there early, and becomes better while time is left. Writes the model, an answer for every photo,
    the 20 photos whose labels would help most, and report.html. Ctrl-C saves, and the exit code is 75.
    """
    began = time.perf_counter()  # importing torch is part of the minutes
    from meanteacher.cli.progress import FitProgress
    from meanteacher.photos.fitting import fit as fitting
    from meanteacher.photos.pages.fit_page import since_sentence
    from meanteacher.records import read_fit

    console = Console()
    with progress_bar(console) as show, graceful_stop(console) as should_stop:
        fitting.fit(
            photos,
            labels,
            minutes=minutes,
            out=out,
            flip=flip,
            group_by=group_by,
            resume="auto" if start_or_resume else resume,
            overwrite=overwrite,
            device=device,
            backbone=backbone,
            callback=FitProgress(console, show, should_stop),
            began=began,
        )
    fitted = read_fit(out)
    console.print()
    say(console, (fitted.headline, "bold"))
    if since := since_sentence(fitted):
        say(console, since)
    if fitted.helped:
        say(console, fitted.helped.sentence)
    for name, what in (
        ("report.html", "the report, to be opened in a browser"),
        ("predictions.csv", "an answer for every photo"),
        ("label-next.csv", "the photos whose labels would help most") if fitted.gallery["label_next"] else ("", ""),
        ("model", "the model, for meanteacher predict"),
    ):
        if not name:
            continue
        say(console, f"  {out / name}: {what}")


def check(photos: PhotosArgument, labels: LabelsOption = None) -> None:
    """Find photos that cannot be read, duplicates and classes with few labels.

    Writes nothing. `fit` makes the same checks before it trains.
    """
    from meanteacher.cli.progress import say_findings
    from meanteacher.formats import count
    from meanteacher.photos.folder import check as checking
    from meanteacher.photos.folder.cache import decode_all, read_headers
    from meanteacher.photos.folder.find import find_photos

    console = Console()
    found = find_photos(photos, labels)
    shapes = read_headers(found)[:, :2]
    size = checking.image_size(checking.shorter_side(shapes))
    with tempfile.TemporaryDirectory() as folder, progress_bar(console) as show:
        decoded = decode_all(found, size, Path(folder), progress=partial(show, "Reading images"))
        findings = checking.check(found, decoded, shapes)
    n_labelled, n_classes = int((found.labels >= 0).sum()), len(found.class_names)
    say(
        console,
        f"{count(len(found))}, {n_labelled:,} of them labelled, in {count(n_classes, 'class', 'classes')}: "
        f"{', '.join(found.class_names[:20])}{' …' if n_classes > 20 else ''}.",
    )
    say_findings(console, findings)
    if not findings:
        say(console, "No problems found.")
