"""From a folder of photos and a few labels to a classifier, predictions and a report: the story of a fit, in order."""

import shutil
import time
from dataclasses import replace
from os import PathLike
from pathlib import Path

from meanteacher.core import InputError, MissingBackboneError, Resume
from meanteacher.devices import choose_device, same_kind
from meanteacher.distributed import join
from meanteacher.files import is_left_over, locked_folder
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.photos.fitting.config import FitConfig, PrintedProgress, ReadingBudget
from meanteacher.photos.fitting.data import SMALL, FitData, image_size, prepare, shorter_side
from meanteacher.photos.fitting.pretrained import Pretrained, choose_backbones, pretrained_size
from meanteacher.photos.fitting.results import complete_fit, keep_earlier_answers, write_results
from meanteacher.photos.fitting.scratch import Scratch, choose_network
from meanteacher.photos.fitting.work import Work, check_same, read_work
from meanteacher.photos.folder.cache import Decoded, decode_all
from meanteacher.photos.folder.check import check, shapes_of
from meanteacher.photos.folder.duplicates import Duplicates, find_duplicates
from meanteacher.photos.folder.find import find_photos
from meanteacher.photos.folder.flip import flip_evidence
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.records import WORK_FILE, Fit, WorkRecord
from meanteacher.train import Callback


def fit(
    photos: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    *,
    minutes: float = 30,
    out: str | PathLike[str] = "fit",
    flip: bool | None = None,
    group_by: str | None = None,
    resume: Resume = False,
    overwrite: bool = False,
    device: str = "auto",
    backbone: str = "auto",
    callback: Callback | None = None,
    began: float | None = None,
) -> Classifier:
    """Train a classifier on photos of which a few are labelled, within the given minutes.

    Pretrained networks turn each photo into a vector; a linear classifier learns from all labels and from the
    unlabelled photos. Cross-validation estimates its error. The folder `out` then holds the model, an answer for every
    photo, the photos whose labels would help most, and report.html.

    A complete model is written early, and replaced by a better one while time is left. Ctrl-C raises
    KeyboardInterrupt; the fit continues with `resume=True`.

    Args:
        photos: a folder with one folder per class and one named `unlabelled`; or any folder, with `labels`; or an .npz
            file of arrays
        labels: a CSV of path,label; an empty label means unlabelled
        minutes: that it may take, 1 or more; more give a better model
        out: the folder for everything that it writes
        flip: whether a mirrored image is still of its class; None decides by the names of the classes
        group_by: photos that belong together are tested together: "folder", "time" (the time of the shot), or a column
            of `labels`; None finds copies, bursts and series by times, names and features
        resume: continue the interrupted fit in `out`; one that is complete is only loaded. "auto" starts the fit,
            or continues it if it was started before
        overwrite: fit again in `out`: what was computed for unchanged photos is used, and the report compares both fits
        device: "auto" takes a GPU if there is one; to resume, the kind of device that the fit was started on
        backbone: the pretrained network: "lite0" (its weights are installed with this package), "lite2", "timm:NAME",
            "torchvision:NAME", "hf:OWNER/NAME" or the path of a .safetensors file; "none" trains a small network from
            scratch; "auto" takes lite0, then lite2 beside it if there is time; for images of at most 48 pixels a short
            trial decides between lite0 and "none"
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
        group_by=group_by,
        resume=resume,
        overwrite=overwrite,
        device=device,
        backbone=backbone,
    )
    run_fit(config, callback or PrintedProgress(), began=began)
    return load(config.out)


def run_fit(config: FitConfig, callback: Callback, *, began: float | None = None) -> Fit:
    """Do what `fit` says. Returns the content of fit.json."""
    began = time.perf_counter() if began is None else began
    if (n := join().size) > 1:
        raise InputError(f"A fit trains in one process, but {n} were started: start it without torchrun or srun.")
    if config.resume == "auto":
        config = replace(config, resume=(config.out / WORK_FILE).exists())
    find_photos(config.photos, config.labels)  # a mistake is reported before anything is written
    _check_folder(config)
    with locked_folder(config.out, "fitting in"):
        _check_folder(config)  # another fit may have been there since the first look
        return _fitted(config, callback, began)


def _fitted(config: FitConfig, callback: Callback, began: float) -> Fit:
    photos = find_photos(config.photos, config.labels)
    # A fit that was stopped before its first piece of work begins again.
    saved = read_work(config.out) if config.resume else None
    device = same_kind(config.device, saved.device, config.out) if saved else choose_device(config.device)
    shapes = None if photos.arrays is not None else shapes_of(photos)
    side = shorter_side(photos, shapes)
    flip = flip_evidence(photos.class_names).is_safe if config.flip is None else config.flip
    backbones = _backbones(config, saved, callback)

    # Read the photos.
    def read(size: int) -> tuple[FitData, Decoded, Duplicates]:
        progress = ReadingBudget(callback.on_progress, began, config.minutes)
        decoded = decode_all(photos, size, config.out / "cache", progress=progress)
        duplicates = find_duplicates(decoded.images)
        data = prepare(photos, decoded, duplicates, group_by=config.group_by, labels_file=config.labels)
        return data, decoded, duplicates

    size = pretrained_size(backbones, side) if backbones else image_size(side)
    data, decoded, duplicates = read(size)
    record = saved or WorkRecord(
        fingerprint=data.fingerprint(),
        device=device.type,
        minutes=config.minutes,
        flip=flip,
        backbones=tuple(backbone.name for backbone in backbones),
    )
    work = Work(config.out, record, began=began, callback=callback, device=device)
    cache = config.out / "cache"
    pretrained = Pretrained(data=data, backbones=backbones, folder=cache / "features", work=work)

    # A trial chooses the network for small ones.
    if config.backbone == "auto" and backbones and side <= SMALL and not saved:
        small = read(image_size(side))
        trial = choose_network(pretrained, small[0], cache)
        work.record = replace(work.record, trial=trial)
        if trial.chosen == "scratch":
            backbones, (data, decoded, duplicates) = (), small
            work.record = replace(work.record, backbones=(), fingerprint=data.fingerprint())

    # Check them. From here on, what is done is noted, so that an interrupted fit continues.
    findings = check(photos, decoded, shapes, duplicates=duplicates, flip=config.flip)
    callback.on_findings(findings)
    if saved:
        check_same(saved, data.fingerprint(), config.out)
        if complete := complete_fit(config.out, saved):
            return complete
    else:
        keep_earlier_answers(config.out)
        _remove_old_fit(config.out)
    work.note({"reading": work.spent()} if not saved else {})

    # Learn: each round has a better model, and leaves a complete folder.
    content = None
    learner = pretrained if backbones else Scratch(data=data, folder=config.out / "runs", work=work)
    for learned in learner.rounds():
        with work.piece("results"):
            content = write_results(config, data, learned, findings, work)
    assert content is not None
    work.note({}, finished=True)
    _clear_cache(cache)
    return content


def _backbones(config: FitConfig, saved: WorkRecord | None, callback: Callback) -> tuple[Backbone, ...]:
    """The pretrained networks: those of a resumed fit, or those that were asked for; none from scratch."""
    if saved:
        return tuple(find_backbone(name) for name in saved.backbones)
    if config.backbone == "none":
        return ()
    try:
        return choose_backbones(config.backbone)
    except MissingBackboneError as error:
        if config.backbone != "auto":
            raise
        callback.on_message(
            "No pretrained network is there, so a small one is trained from scratch; on photos the pretrained one "
            f"makes less than half as many errors. {error}"
        )
        return ()


def _check_folder(config: FitConfig) -> None:
    """See that the folder is free, or is to be resumed or overwritten."""
    out = config.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a folder as out (--out).")
    for folder in (out / "cache", out / "runs", out / "model"):
        if folder.is_symlink():
            raise InputError(f"{folder} is a link, and nothing is written outside {out}. Delete the link.")
    holds_fit = (out / WORK_FILE).exists()
    if config.resume:
        if not holds_fit and not (out / "cache").exists():
            raise InputError(f"{out} holds no fit to resume. Start one without resume (--resume).")
    elif (
        not (holds_fit and config.overwrite)
        and out.exists()
        and not all(path.name == "cache" or is_left_over(path) for path in out.iterdir())
    ):
        or_else = "Continue it with resume=True (--resume), fit again with overwrite=True (--overwrite), or"
        holds = f"a fit already. {or_else}" if holds_fit else "other files:"
        raise InputError(f"{out} holds {holds} give another folder as out (--out).")


def _remove_old_fit(out: Path) -> None:
    """So that it is not resumed in the place of a new one. Called once nothing can be refused any more."""
    for name in ("runs", "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / WORK_FILE).unlink(missing_ok=True)


def _clear_cache(cache: Path) -> None:
    """Delete the decoded photos, which take most of the folder. The features stay for the next fit."""
    for path in cache.glob("images-*"):
        path.unlink()
