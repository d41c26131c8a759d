"""From a folder of photos and a few labels to a classifier, predictions and a report: the story of a fit, in order."""

import shutil
import time
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any

from meanteacher.classifier.bundle import Classifier, Seen, load
from meanteacher.core import UNLABELLED, InputError, Interrupted
from meanteacher.devices import choose_device, same_kind
from meanteacher.fitting.budget import REFUSAL_SECONDS, ReadingBudget, Timing, limited_threads, measure_machine
from meanteacher.fitting.config import FitCallback, FitConfig, PrintedProgress
from meanteacher.fitting.crossval import CrossValidation
from meanteacher.fitting.plan import (
    FEWEST_STEPS,
    Machine,
    Plan,
    PlanFile,
    check_enough,
    image_size,
    make_plan,
    prediction_seconds,
)
from meanteacher.fitting.results import write_results
from meanteacher.fitting.split import EvaluationSplit, FitData, How, choose_split, prepare
from meanteacher.fitting.warm_start import read_earlier_fit
from meanteacher.photos.cache import decode_all
from meanteacher.photos.check import check
from meanteacher.photos.duplicates import find_duplicates
from meanteacher.photos.find import find_photos
from meanteacher.photos.findings import shapes_of
from meanteacher.photos.flip import flip_is_safe


def fit(
    photos: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    *,
    minutes: float = 30,
    out: str | PathLike[str] = "fit",
    flip: bool | None = None,
    start: str | PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    callback: FitCallback | None = None,
    began: float | None = None,
) -> Classifier:
    """Train a classifier on photos of which a few are labelled, within the given minutes.

    Trains once with the unlabelled photos (Mean Teacher) and once without, evaluates both on labels that were not
    trained on, and keeps the better model. The folder `out` then holds the model, a prediction for every photo, the
    photos whose labels would help most, and report.html.

    Ctrl-C raises KeyboardInterrupt; the fit continues from its last checkpoint with `resume=True`.

    Args:
        photos: a folder with one folder per class and one named `unlabelled`; or any folder, with `labels`; or an .npz
            file of arrays
        labels: a CSV of path,label; an empty label means unlabelled
        minutes: that it may take, 1 or more; more give a better model
        out: the folder for everything that it writes
        flip: whether a mirrored image is still of its class; None decides by the names of the classes
        start: the folder of an earlier fit whose model is continued
        resume: continue the interrupted fit in `out`
        overwrite: replace the fit in `out`
        device: "auto" takes a GPU if there is one; to resume, the kind of device that the fit was started on
        callback: follows the fit; None prints plain lines to standard error, `FitCallback()` nothing
        began: when the minutes began, by `time.perf_counter`; None for now

    Raises:
        InputError: an argument is wrong; nothing that was there is lost.
        Interrupted: `callback.should_stop` ended it; it can be resumed.
    """
    config = FitConfig(
        photos=Path(photos),
        labels=None if labels is None else Path(labels),
        minutes=minutes,
        out=Path(out),
        flip=flip,
        start=None if start is None else Path(start),
        resume=resume,
        overwrite=overwrite,
        device=device,
    )
    run_fit(config, callback or PrintedProgress(), began=began)
    return load(config.out)


def run_fit(config: FitConfig, callback: FitCallback, *, began: float | None = None) -> dict[str, Any]:
    """Do what `fit` says. Returns what fit.json holds.

    Ends within 1.2 times the minutes, or refuses in the first seconds: the machine is measured before any image is
    read, and a run that turns out slower than planned skips steps.
    """
    timing = Timing(time.perf_counter() if began is None else began)
    photos = find_photos(config.photos, config.labels)
    earlier = read_earlier_fit(config.start) if config.start else None
    plan_file = PlanFile(config.out)
    _check_folder(config, holds_fit=plan_file.exists())
    device = same_kind(config.device, plan_file.device(), config.out) if config.resume else choose_device(config.device)

    # Measure the machine, and refuse too little time before the photos are read.
    shapes = None if photos.arrays is not None else shapes_of(photos)
    native_size = None if photos.arrays is None else min(photos.arrays.shape[1:3])
    size = earlier.size if earlier else image_size(shapes, native_size)
    machine = None
    if not config.resume:
        callback.on_message("Measuring this machine …")
        machine = measure_machine(
            minutes=config.minutes,
            size=size,
            n_classes=len(photos.class_names),
            width=earlier.network.width if earlier else None,
            device=str(device),
        )
        if timing.total() < REFUSAL_SECONDS:
            check_enough(machine, minutes=config.minutes, spent=timing.total(), n_images=len(photos))
    timing.end("measure")

    # Read the photos and check them.
    reading = ReadingBudget(callback.on_progress, timing, config.minutes)
    decoded = decode_all(photos, size, config.out / "cache", progress=reading)
    timing.end("decode")
    duplicates = find_duplicates(decoded.images)
    findings = check(photos, decoded, shapes, duplicates=duplicates, flip=config.flip)
    callback.on_findings(findings)
    data = prepare(photos, decoded, duplicates)
    timing.end("check")
    fingerprint = data.fingerprint()
    # A run reads all pixels about twice, for the fingerprint or the normaliser, before its first step.
    overhead = 0.5 + 2 * timing.end("fingerprint")

    # Plan the runs, and which labelled photos evaluate them.
    earlier_held_out = earlier.held_out if earlier else None
    if machine is None:
        plan, spent = plan_file.read(fingerprint)
        split = choose_split(data, earlier_held_out, prefer="held-out" if plan.n_rounds == 1 else None)
    else:
        spent = timing.total()
        plan, split = _plan(config, machine, data, earlier_held_out, spent=spent, overhead=overhead)
        _remove_old_fit(config.out)
        plan_file.write(plan, fingerprint=fingerprint, spent=spent, device=device.type)
    callback.on_message(plan.sentence())
    timing.end("plan")

    # Train and evaluate both methods.
    training_began = time.perf_counter()
    validation = CrossValidation(
        data=data,
        split=split,
        plan=plan,
        fingerprint=fingerprint,
        out=config.out / "runs",
        ends=training_began + 60 * plan.minutes - spent - prediction_seconds(plan.seconds_per_step, len(data.usable)),
        overhead=overhead,
        callback=callback,
        timing=timing,
        device=str(device),
    )
    try:
        with limited_threads(plan.threads):
            comparison = validation.compare(earlier.continued(photos.class_names) if earlier else None)
    except (Interrupted, KeyboardInterrupt):
        spent += time.perf_counter() - training_began
        plan_file.write(plan, fingerprint=fingerprint, spent=spent, device=device.type)
        raise
    if comparison.skipped:
        callback.on_message(comparison.skipped)

    # Predict every photo with the better model, and write the results.
    with limited_threads(plan.threads):
        return write_results(
            config,
            validation,
            comparison,
            findings,
            network=earlier.network if earlier else plan.network,
            earlier=earlier.seen if earlier else Seen(),
        )


def _check_folder(config: FitConfig, *, holds_fit: bool) -> None:
    """See that the folder is free, or is to be resumed or overwritten."""
    out = config.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a folder as out (--out).")
    if config.resume:
        if not holds_fit:
            raise InputError(f"{out} holds no fit to resume. Start one without resume (--resume).")
    elif not (holds_fit and config.overwrite) and out.exists() and any(path.name != "cache" for path in out.iterdir()):
        or_else = "Continue it with resume=True (--resume), replace it with overwrite=True (--overwrite), or"
        holds = f"a fit already. {or_else}" if holds_fit else "other files:"
        raise InputError(f"{out} holds {holds} give another folder as out (--out).")


def _plan(
    config: FitConfig,
    machine: Machine,
    data: FitData,
    earlier_held_out: Collection[str] | None,
    *,
    spent: float,
    overhead: float,
) -> tuple[Plan, EvaluationSplit]:
    """The plan and the split. Folds take many runs: where each would be too short, a part is held out instead."""
    prefer: How | None
    for prefer in (None, "held-out"):
        split = choose_split(data, earlier_held_out, prefer=prefer)
        plan = make_plan(
            machine,
            minutes=config.minutes,
            spent=spent,
            overhead=overhead,
            size=data.decoded.images.shape[-1],
            flip=flip_is_safe(data.photos.class_names) if config.flip is None else config.flip,
            n_rounds=1 if split.how == "held-out" else len(split.parts) + 1,
            n_images=len(data.usable),
            n_labelled=int((data.labels != UNLABELLED).sum()),
        )
        if plan.steps >= FEWEST_STEPS:
            break
    return plan, split


def _remove_old_fit(out: Path) -> None:
    """Called once nothing can be refused any more."""
    for name in ("runs", "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    PlanFile(out).path.unlink(missing_ok=True)
