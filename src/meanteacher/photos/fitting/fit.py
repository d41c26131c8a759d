"""From a folder of photos and a few labels to a classifier, predictions and a report: the story of a fit, in order."""

import math
import shutil
import sys
import time
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

from meanteacher.core import InputError, Resume
from meanteacher.devices import choose_device, same_kind
from meanteacher.distributed import join
from meanteacher.files import is_left_over, locked_folder
from meanteacher.photos.fitting.data import read_photos
from meanteacher.photos.fitting.pretrained import (
    SMALL,
    Pretrained,
    choose_backbones,
    pretrained_size,
    resumed_backbones,
)
from meanteacher.photos.fitting.results import is_complete, keep_earlier_answers, write_results
from meanteacher.photos.fitting.scratch import choose_network, train_from_scratch
from meanteacher.photos.fitting.work import Work, read_work
from meanteacher.photos.folder.cache import read_headers
from meanteacher.photos.folder.check import check, image_size, shorter_side
from meanteacher.photos.folder.find import find_photos
from meanteacher.photos.folder.flip import flip_evidence
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.records import WORK_FILE, Finding, WorkRecord
from meanteacher.train import Callback

MIN_MINUTES = 1


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
            trial decides between lite0 and "none". A resumed fit keeps its networks; those that are not installed with
            this package have to be named again
        callback: follows the fit; None prints plain lines to standard error, `Callback()` nothing
        began: when the minutes began, by `time.perf_counter`; None for now

    Raises:
        InputError: an argument is wrong; nothing that was there is lost.
        Interrupted: `callback.should_stop` ended it; it can be resumed.

    Example: `model = mt.fit("photos/", minutes=10)`
    """
    began = time.perf_counter() if began is None else began
    callback = callback or PrintedProgress()
    if not MIN_MINUTES <= minutes < math.inf:
        raise InputError(
            f"minutes (--minutes) must be at least {MIN_MINUTES}, got {minutes:g}. Less time gives no useful model."
        )
    if resume == "auto" and overwrite:
        raise InputError(
            "resume='auto' (--start-or-resume) continues the fit that overwrite=True (--overwrite) would replace. "
            "Give one of them."
        )
    if (n := join().size) > 1:
        raise InputError(f"A fit trains in one process, but {n} were started: start it without torchrun or srun.")
    out, labels = Path(out), None if labels is None else Path(labels)
    resume = (out / WORK_FILE).exists() if resume == "auto" else resume
    found = find_photos(Path(photos), labels)  # a mistake is reported before anything is written
    _check_folder(out, resume=resume, overwrite=overwrite)
    with locked_folder(out, "fitting in"):
        _check_folder(out, resume=resume, overwrite=overwrite)  # another fit may have been there since the first look
        # A fit that was stopped before its first piece of work begins again.
        saved = read_work(out) if resume else None
        chosen_device = same_kind(device, saved.device, out) if saved else choose_device(device)
        backbones = resumed_backbones(saved.backbones, backbone, out) if saved else choose_backbones(backbone, callback)
        record = saved or WorkRecord(
            fingerprint="",  # not known before the photos are read
            device=chosen_device.type,
            minutes=minutes,
            flip=flip_evidence(found.class_names).is_safe if flip is None else flip,
            backbones=(),
        )
        work = Work(out, record, began=began, callback=callback, device=chosen_device)

        # Read the photos.
        headers = read_headers(found)
        shapes, taken = headers[:, :2], headers[:, 2]
        side = shorter_side(shapes)
        read = partial(read_photos, found, work, taken=taken, group_by=group_by)
        data = read(pretrained_size(backbones, side) if backbones else image_size(side))
        pretrained = Pretrained(data=data, backbones=backbones, work=work)

        # A trial chooses the network for small ones.
        if backbone == "auto" and backbones and side <= SMALL and not saved:
            small = read(image_size(side))
            trial = choose_network(pretrained, small)
            work.record = replace(work.record, trial=trial)
            if trial.chosen == "scratch":
                backbones, data = (), small

        # Check them. From here on, what is done is noted, so that an interrupted fit continues.
        findings = check(found, data.decoded, shapes, duplicates=data.duplicates, flip=flip)
        callback.on_findings(findings)
        if not saved:
            names = tuple(each.name for each in backbones)
            work.record = replace(work.record, fingerprint=data.fingerprint(), backbones=names)
            keep_earlier_answers(out)
            _remove_old_fit(out)
        elif saved.fingerprint != data.fingerprint():
            raise InputError(
                f"The photos or their labels are not those that {out} was begun with. "
                "Restore them to resume, or start again with overwrite=True (--overwrite)."
            )
        elif is_complete(out, saved):
            return load(out)
        work.note({} if saved else {"reading": round(work.spent(), 2)})

        # Learn: each round has a better model, and leaves a complete folder.
        for learned in pretrained.rounds() if backbones else train_from_scratch(data, work):
            with work.piece("results"):
                write_results(Path(photos), data, learned, findings, work)
        work.note({}, finished=True)
        for path in work.cache.glob("images-*"):  # they take most of the folder; features stay for the next fit
            path.unlink()
    return load(out)


class PrintedProgress(Callback):
    """Plain lines on standard error."""

    def on_message(self, sentence: str) -> None:
        sys.stderr.write(f"{sentence}\n")

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            self.on_message(f"{finding.severity.capitalize()}: {finding.sentence}")


def _check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """See that the folder is free, or is to be resumed or overwritten."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a folder as out (--out).")
    for folder in (out / "cache", out / "runs", out / "model"):
        if folder.is_symlink():
            raise InputError(f"{folder} is a link, and nothing is written outside {out}. Delete the link.")
    holds_fit = (out / WORK_FILE).exists()
    if resume:
        if not holds_fit and not (out / "cache").exists():
            raise InputError(f"{out} holds no fit to resume. Start one without resume (--resume).")
    elif (
        not (holds_fit and overwrite)
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
