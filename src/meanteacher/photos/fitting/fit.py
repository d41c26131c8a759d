"""From a folder of photos and a few labels to a classifier, predictions and a report: the story of a fit, in order."""

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

import torch

from meanteacher.core import InputError
from meanteacher.devices import choose_device, same_kind
from meanteacher.distributed.ranks import join
from meanteacher.files import is_left_over, locked_folder
from meanteacher.models import FastNetSpec
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.fitting.budget import ReadingBudget, Timing, measure_backbone, measure_machine
from meanteacher.photos.fitting.config import FitConfig, PrintedProgress
from meanteacher.photos.fitting.crossval import choose_network
from meanteacher.photos.fitting.plan import (
    SMALL,
    BackboneSpeed,
    Machine,
    backbone_size,
    check_enough,
    image_size,
    shorter_side,
)
from meanteacher.photos.fitting.results import write_results
from meanteacher.photos.fitting.split import is_held_out, prepare
from meanteacher.photos.fitting.stands import choose_backbone
from meanteacher.photos.fitting.training import PlanFile, Training, if_stopped, remove_old_fit
from meanteacher.photos.fitting.warm_start import EarlierFit, read_earlier_fit
from meanteacher.photos.folder.cache import Decoded, decode_all
from meanteacher.photos.folder.check import check, shapes_of
from meanteacher.photos.folder.duplicates import find_duplicates
from meanteacher.photos.folder.find import find_photos
from meanteacher.photos.folder.flip import flip_evidence
from meanteacher.photos.model.bundle import Classifier, Seen, load
from meanteacher.records import Fit, runs_of
from meanteacher.train import Callback


def fit(
    photos: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    *,
    minutes: float = 30,
    out: str | PathLike[str] = "fit",
    flip: bool | None = None,
    start: str | PathLike[str] | None = None,
    resume: bool | None = False,
    overwrite: bool = False,
    device: str = "auto",
    backbone: str = "auto",
    callback: Callback | None = None,
    began: float | None = None,
) -> Classifier:
    """Train a classifier on photos of which a few are labelled, within the given minutes.

    Stands on a pretrained network. Trains its last layers once with the unlabelled photos (Mean Teacher) and once
    without, evaluates both on labels that were not trained on, and keeps the better model. The folder `out` then
    holds the model, a prediction for every photo, the photos whose labels would help most, and report.html.

    Ctrl-C raises KeyboardInterrupt; the fit continues from its last checkpoint with `resume=True`.

    Args:
        photos: a folder with one folder per class and one named `unlabelled`; or any folder, with `labels`; or an .npz
            file of arrays
        labels: a CSV of path,label; an empty label means unlabelled
        minutes: that it may take, 1 or more; more give a better model
        out: the folder for everything that it writes
        flip: whether a mirrored image is still of its class; None decides by the names of the classes
        start: the folder of an earlier fit whose model is continued
        resume: continue the interrupted fit in `out`; one that is complete is only loaded. None starts the fit, or
            continues it where it was started before
        overwrite: replace the fit in `out`
        device: "auto" takes a GPU if there is one; to resume, the kind of device that the fit was started on
        backbone: the pretrained network: "lite0" (its weights are installed with this package), "lite2", "timm:NAME",
            "torchvision:NAME", "hf:OWNER/NAME" or the path of a .safetensors file; "none" trains a small network from
            scratch; "auto" takes lite0, or for images of at most 48 pixels the better of both in a short trial
        callback: follows the fit; None prints plain lines to standard error, `Callback()` nothing
        began: when the minutes began, by `time.perf_counter`; None for now

    Raises:
        InputError: an argument is wrong; nothing that was there is lost.
        Interrupted: `callback.should_stop` ended it; it can be resumed.

    Example: `model = mt.fit("photos/", minutes=10)`
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
        backbone=backbone,
    )
    run_fit(config, callback or PrintedProgress(), began=began)
    return load(config.out)


def run_fit(config: FitConfig, callback: Callback, *, began: float | None = None) -> Fit:
    """Do what `fit` says. Returns the content of fit.json.

    Ends within 1.2 times the minutes, or refuses in the first seconds: the machine is measured before any image is
    read, and a run that turns out slower than planned skips steps.
    """
    if (n := join().size) > 1:
        raise InputError(f"A fit trains in one process, but {n} were started: start it without torchrun or srun.")
    if config.resume is None:
        config = replace(config, resume=PlanFile(config.out).exists())
    with ExitStack() as lock:
        return _fitted(config, callback, lock, began=began)


def _fitted(config: FitConfig, callback: Callback, lock: ExitStack, *, began: float | None) -> Fit:
    timing = Timing(time.perf_counter() if began is None else began)
    photos = find_photos(config.photos, config.labels)
    earlier = read_earlier_fit(config.start) if config.start else None
    plan_file = PlanFile(config.out)
    _check_folder(config, holds_fit=plan_file.exists())
    # A fit that was stopped before it had a plan begins again.
    saved = plan_file.read() if config.resume and plan_file.exists() else None
    plan, trial = (saved.plan, saved.trial) if saved else (None, None)
    device = same_kind(config.device, saved.device, config.out) if saved else choose_device(config.device)
    # A resumed fit has the minutes that it was started with.
    config = replace(config, minutes=plan.minutes) if plan else config

    # Choose what to stand on, measure the machine, and refuse too little time before the photos are read.
    shapes = None if photos.arrays is not None else shapes_of(photos)
    side = shorter_side(photos, shapes)
    backbone = choose_backbone(config.backbone, earlier, plan, callback.on_message)
    flip = flip_evidence(photos.class_names).is_safe if config.flip is None else config.flip
    measured = partial(_measured, config, earlier, n_classes=len(photos.class_names), device=device)
    size = on_backbone = plan.size if plan else earlier.size if earlier else image_size(side)
    speed: BackboneSpeed | Machine | None = None
    if plan is None:
        callback.on_message("Measuring this machine …")
        speed = measured(backbone, size=size)
        check_enough(speed, minutes=config.minutes, spent=timing.total(), n_images=len(photos))
    if isinstance(speed, BackboneSpeed) and earlier is None:
        on_backbone = backbone_size(
            speed,
            seconds=60 * config.minutes - timing.total(),
            n_images=len(photos),
            n_runs=len(runs_of(1 if is_held_out(photos.labels) else 4)),
            side=side,
        )
    timing.end("measure")

    # From here on it writes: one process per folder, until the end of the fit.
    lock.enter_context(locked_folder(config.out, "fitting in"))
    _check_folder(config, holds_fit=plan_file.exists())  # another fit may have been there since the first look

    # Read the photos. Small ones are first read for a network from scratch, and a trial chooses the network.
    def read(size: int) -> Decoded:
        return decode_all(
            photos, size, config.out / "cache", progress=ReadingBudget(callback.on_progress, timing, config.minutes)
        )

    has_trial = config.backbone == "auto" and not (plan or earlier) and side <= SMALL
    decoded = read(size if has_trial else on_backbone)
    timing.end("decode")
    if has_trial and backbone is not None and isinstance(speed, BackboneSpeed):
        with if_stopped(partial(remove_old_fit, config.out)):
            trial = choose_network(
                config, callback, timing, photos, decoded, backbone, speed, size=on_backbone, flip=flip, device=device
            )
        if trial.chosen == "scratch":
            backbone, speed = None, measured(None, size=size)
        else:
            decoded = read(on_backbone)
        timing.end("trial")

    # Check them.
    duplicates = find_duplicates(decoded.images)
    findings = check(photos, decoded, shapes, duplicates=duplicates, flip=config.flip)
    callback.on_findings(findings)
    data = prepare(photos, decoded, duplicates)
    timing.end("check")
    fingerprint = data.fingerprint()
    # A run reads all pixels about twice, for the fingerprint or the normaliser, before its first step.
    overhead = 0.5 + 2 * timing.end("fingerprint")
    if plan and (complete := plan_file.complete_fit(fingerprint)):
        return complete

    # Train and evaluate both methods.
    training = Training(
        config=config,
        callback=callback,
        timing=timing,
        plan_file=plan_file,
        plan=plan,
        trial=trial,
        data=data,
        flip=flip,
        fingerprint=fingerprint,
        overhead=overhead,
        device=device,
        earlier=earlier,
        spent=plan_file.spent(fingerprint) if plan else timing.total(),
        began=time.perf_counter(),
    )
    validation, comparison = training.on_backbone(backbone, speed) if backbone else training.from_scratch(speed)

    # Predict every photo with the better model, and write the results.
    content = write_results(
        config, validation, comparison, findings, trial=trial, earlier=earlier.seen if earlier else Seen()
    )
    if training.extraction is not None:
        training.extraction.delete()
    return content


def _measured(
    config: FitConfig,
    earlier: EarlierFit | None,
    backbone: Backbone | None,
    *,
    size: int,
    n_classes: int,
    device: torch.device,
) -> BackboneSpeed | Machine:
    """How fast this machine is on the pretrained network, or on one from scratch."""
    minutes = config.minutes
    if backbone is not None:
        cut = earlier.cut if earlier else None
        return measure_backbone(backbone, minutes=minutes, n_classes=n_classes, cut=cut, device=device)
    width = earlier.network.width if earlier and isinstance(earlier.network, FastNetSpec) else None
    return measure_machine(minutes=minutes, size=size, n_classes=n_classes, width=width, device=str(device))


def _check_folder(config: FitConfig, *, holds_fit: bool) -> None:
    """See that the folder is free, or is to be resumed or overwritten."""
    out = config.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a folder as out (--out).")
    for folder in (out / "cache", out / "runs", out / "model"):
        if folder.is_symlink():
            raise InputError(f"{folder} is a link, and nothing is written outside {out}. Delete the link.")
    if config.resume:
        if not holds_fit and not (out / "cache").exists():
            raise InputError(f"{out} holds no fit to resume. Start one without resume (--resume).")
    elif (
        not (holds_fit and config.overwrite)
        and out.exists()
        and not all(path.name == "cache" or is_left_over(path) for path in out.iterdir())
    ):
        or_else = "Continue it with resume=True (--resume), replace it with overwrite=True (--overwrite), or"
        holds = f"a fit already. {or_else}" if holds_fit else "other files:"
        raise InputError(f"{out} holds {holds} give another folder as out (--out).")
