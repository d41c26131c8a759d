"""The commands for one's own photos, each a thin layer over a function of the package."""

import time
from pathlib import Path
from typing import Annotated

import typer

from meanteacher.cli.console import EXIT_INTERRUPTED, DeviceOption, errors_explained

PhotosArgument = Annotated[
    Path,
    typer.Argument(
        help="A folder with a folder for each class and one named `unlabelled`; or any folder, with --labels; or an "
        ".npz file of arrays."
    ),
]
LabelsOption = Annotated[
    Path | None, typer.Option("--labels", help="A CSV of path,label; an empty label means unlabelled.")
]
ModelArgument = Annotated[Path, typer.Argument(help="The folder that fit wrote, or the folder `model` in it.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def fit(
    photos: PhotosArgument,
    labels: LabelsOption = None,
    minutes: Annotated[float, typer.Option(help="Time that it may take, 1 or more; more gives a better model.")] = 30,
    out: Annotated[Path, typer.Option(help="Folder for the model, the predictions and the report.")] = Path("fit"),
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Whether a mirrored image is still of its class.",
            show_default="by the names of the classes: off for digits, text, left and right",
        ),
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="Go on from the model of an earlier fit, its --out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted fit, exactly.")] = False,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """From a folder of photos and a few labels to a classifier, with an honest answer.

    Checks the images, measures this machine, and trains within the minutes you grant: once with the unlabelled images
    (Mean Teacher) and once without. Labels kept apart say how often each is wrong and whether the unlabelled images
    helped; the better model is kept. Leaves the model, a prediction for every image, the 20 images whose labels would
    help most, and report.html. Ctrl-C saves, and the exit code is 75.
    """
    began = time.perf_counter()  # importing torch is part of the minutes
    with errors_explained():
        from meanteacher.cli.fit import run_fit
        from meanteacher.fitting.fit import Wishes

        wishes = Wishes(
            photos=photos,
            labels=labels,
            minutes=minutes,
            out=out,
            flip=flip,
            start=start,
            resume=resume,
            overwrite=overwrite,
            device=device,
        )
        finished = run_fit(wishes, began)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)


def check(photos: PhotosArgument, labels: LabelsOption = None) -> None:
    """Look a folder of photos over: what cannot be read, what is there twice, which classes are too small.

    Writes nothing. `fit` does this too before it trains.
    """
    with errors_explained():
        from meanteacher.cli.fit import run_check

        run_check(photos, labels)


def predict(
    model: ModelArgument,
    photos: Annotated[Path, typer.Argument(help="A folder of images, in folders or not.")],
    out: Annotated[Path, typer.Option(help="CSV file for the predictions.")] = Path("predictions.csv"),
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Predict the class of every image in a folder, however many there are."""
    with errors_explained():
        from meanteacher.cli.predict import run_predict

        finished = run_predict(model, photos, out=out, overwrite=overwrite, device=device)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)


def evaluate(
    model: ModelArgument,
    photos: PhotosArgument,
    labels: LabelsOption = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Compare a model's predictions with labels that it has not been trained on.

    Images that taught the model are known again by their pixels and left out: they do not say how good it is on others.
    """
    with errors_explained():
        from meanteacher.cli.predict import run_evaluate

        run_evaluate(model, photos, labels=labels, out=out, device=device)


def export(
    model: ModelArgument,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="As an ONNX file, the one format there is; needs the extra `onnx`.")
    ] = True,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("model.onnx"),
    overwrite: OverwriteOption = False,
) -> None:
    """Write a model for use elsewhere, checked against the original first."""
    with errors_explained():
        from meanteacher.cli.predict import run_export

        assert onnx
        run_export(model, out=out, overwrite=overwrite)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="The folder of a fit, or one with runs below it, at any depth."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File for the page of the runs.", show_default="report.html in the folder of the runs"),
    ] = None,
) -> None:
    """Write the report of a fit again, or one page about all runs.

    A fit gets report.html and MODEL_CARD.md in its folder. All runs together get one page: mean and spread per recipe
    beside the error that the paper reports, differences to supervised-only paired by label draw, and curves.
    """
    with errors_explained():
        from meanteacher.cli.fit import run_report

        run_report(folders, out)


def label(
    photos: Annotated[Path, typer.Argument(help="The photos that the fit was given.")],
    run: Annotated[Path, typer.Option(help="The folder of the fit.")] = Path("fit"),
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV file for the labels: rows are added to it; a new one starts with the labels the fit had.",
            show_default="RUN/labels.csv",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the address.")] = False,
) -> None:
    """Label the images that would help most, one key each, on a page in your browser.

    The page is served to this computer alone. Every answer is written to the labels file at once.
    """
    with errors_explained():
        from meanteacher.cli.label import run_label

        run_label(photos, run, labels, port, not no_open)
