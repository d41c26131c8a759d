"""From a folder of photos and a few labels to a classifier, predictions and an honest answer."""

import hashlib
import math
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from meanteacher.classifier.bundle import Seen
from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import choose_device, same_kind
from meanteacher.fitting.budget import TOO_LATE_TO_REFUSE, Reading, Timing, limited_threads, measure_machine
from meanteacher.fitting.crossval import Interrupted, Judged, Judging, Rounds, Trained, choose_judging
from meanteacher.fitting.plan import (
    FEWEST_STEPS,
    METHODS,
    Machine,
    Plan,
    PlanFile,
    check_enough,
    image_size,
    make_plan,
    prediction_seconds,
)
from meanteacher.fitting.results import Fitted, write_results
from meanteacher.fitting.warm_start import Previous, read_previous
from meanteacher.photos.cache import Decoded, decode_all
from meanteacher.photos.check import check
from meanteacher.photos.duplicates import duplicate_groups
from meanteacher.photos.find import Photos, find_photos
from meanteacher.photos.findings import Finding, shapes_of
from meanteacher.photos.mirror import flip_is_safe
from meanteacher.train import Callback

FEWEST_MINUTES = 1
_ALL = np.empty(0, dtype=np.int64)
"""The part that is kept apart when nothing is: the last run on all labels."""


class Onlooker(Protocol):
    """Whom the fit tells what it is doing."""

    def show(self, name: str, steps: int) -> AbstractContextManager[Callback]: ...

    def say(self, sentence: str) -> None: ...

    def found(self, findings: tuple[Finding, ...]) -> None: ...

    def progress(self, doing: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a person asks for."""

    photos: Path
    labels: Path | None
    minutes: float
    out: Path
    flip: bool | None
    """None to decide by the names of the classes."""
    start: Path | None
    """The folder of an earlier fit to go on from."""
    resume: bool
    overwrite: bool
    device: str = "auto"
    """Where to compute: a device's name, or "auto" for a GPU if there is one."""

    def __post_init__(self) -> None:
        # Before anything is read: whoever grants too little should not wait to hear it.
        if not FEWEST_MINUTES <= self.minutes < math.inf:
            raise InputError(
                f"--minutes is a number of at least {FEWEST_MINUTES}, got {self.minutes:g}. Less gives no useful model."
            )


def fit(
    wishes: Wishes, onlooker: Onlooker, *, should_stop: Callable[[], bool], began: float | None = None
) -> dict[str, Any] | None:
    """Do all of it, and leave the results in `wishes.out`.

    Ends within 1.2 times the minutes with a model, whatever else the machine does, or refuses in the first seconds: the
    machine is measured before any image is read, and a run that turns out slower than planned leaves steps out.

    Args:
        wishes: what the person asks for
        onlooker: who is told what happens
        should_stop: asked after every step; True saves and ends it, to be resumed
        began: when the person started it, by `time.perf_counter`; now without

    Returns:
        What fit.json holds; None when `should_stop` ended it, to be resumed.

    Raises:
        InputError: something given is wrong; nothing that was there is lost.
    """
    timing = Timing(time.perf_counter() if began is None else began)
    photos = find_photos(wishes.photos, wishes.labels)
    previous = read_previous(wishes.start) if wishes.start else None
    device = _device(wishes)
    _claim(wishes)
    shapes = None if photos.arrays is not None else shapes_of(photos)
    size = previous.size if previous else image_size(shapes, None if shapes is not None else _native(photos))
    machine = None if wishes.resume else _measured(wishes, photos, previous, size, onlooker, timing, str(device))
    timing.end("measure")
    decoded = decode_all(
        photos,
        size,
        wishes.out / "cache",
        progress=Reading(lambda done, n: onlooker.progress("Reading images", done, n), timing, wishes.minutes),
    )
    timing.end("decode")
    findings = check(photos, decoded, shapes, flip=wishes.flip)
    onlooker.found(findings)
    usable = np.setdiff1d(np.arange(len(photos)), np.array(sorted(decoded.unreadable), dtype=np.int64))
    _check_usable(photos, usable)
    groups = duplicate_groups(decoded.images)
    timing.end("check")
    fingerprint = _fingerprint(photos, decoded)
    # A run reads all pixels about four times, for fingerprint and normaliser, as it begins and as it ends.
    overhead = 0.5 + 4 * timing.end("fingerprint")

    def judged_by(*, hurried: bool) -> Judging:
        return _judging(photos, usable, groups, previous, hurried=hurried)

    plan_file = PlanFile(wishes.out)
    if machine is None:
        plan, spent = plan_file.read(fingerprint)
        judging = judged_by(hurried=plan.n_rounds == 1)
    else:
        spent = timing.total()
        judging, plan = _planned(wishes, machine, photos, usable, judged_by, spent=spent, overhead=overhead, size=size)
        _clear(wishes)
        plan_file.write(plan, fingerprint=fingerprint, spent=spent, device=device.type)
    onlooker.say(plan.sentence())
    timing.end("plan")

    training = time.perf_counter()
    rounds = Rounds(
        torch.from_numpy(decoded.images),
        photos.labels,
        groups,
        usable,
        photos.class_names,
        plan=plan,
        fingerprint=fingerprint,
        out=wishes.out / "runs",
        ends=training + 60 * plan.minutes - spent - prediction_seconds(plan.seconds_per_step, len(usable)),
        overhead=overhead,
        show=onlooker.show,
        should_stop=should_stop,
        device=str(device),
    )
    try:
        with limited_threads(plan.threads):
            judged, better, shipped = _trained(rounds, judging, photos, previous, timing)
    except Interrupted:
        spent += time.perf_counter() - training
        plan_file.write(plan, fingerprint=fingerprint, spent=spent, device=device.type)
        return None
    if shortage := rounds.shortage():
        onlooker.say(shortage)
    fitted = Fitted(
        title=wishes.photos.resolve().name,
        labels_file=wishes.labels.resolve() if wishes.labels else None,
        photos=photos,
        decoded=decoded,
        findings=findings,
        groups=groups,
        usable=usable,
        plan=plan,
        judging=judging,
        judged=judged,
        shipped=shipped,
        method=better,
        shortage=shortage,
        earlier=previous.seen if previous else Seen(),
    )
    with limited_threads(plan.threads):
        return write_results(
            fitted,
            wishes.out,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=lambda: timing.after("predict"),
            progress=lambda done, n: onlooker.progress("Predicting", done, n),
        )


def _trained(
    rounds: Rounds, judging: Judging, photos: Photos, previous: Previous | None, timing: Timing
) -> tuple[dict[str, Judged], str, Trained]:
    """Both methods judged, the better of them, and the model to ship."""
    # A model that was taught by every label cannot be judged by any of them, so folds start anew.
    going_on = previous.continued(photos.class_names) if previous else None
    rounds.model = going_on if judging.how == "held-out" else None
    judged = {}
    for method in METHODS:
        judged[method] = rounds.judge(method, judging)
        timing.end(method)
    better = "mean-teacher" if judged["mean-teacher"].wrong.sum() <= judged["supervised"].wrong.sum() else "supervised"
    shipped = judged[better].first
    if judging.how == "folds":
        rounds.model = going_on
        shipped = rounds.train(better, _ALL, f"{better}-on-all-labels")
        timing.end("on all labels")
    return judged, better, shipped


def _native(photos: Photos) -> int:
    """The shorter side of an array's images."""
    assert photos.arrays is not None
    return int(min(photos.arrays.shape[1:3]))


def _measured(
    wishes: Wishes,
    photos: Photos,
    previous: Previous | None,
    size: int,
    onlooker: Onlooker,
    timing: Timing,
    device: str,
) -> Machine:
    """How fast this machine is; refuses here, before any image is read, what cannot be done in the time."""
    onlooker.say("Measuring this machine …")
    machine = measure_machine(
        minutes=wishes.minutes,
        size=size,
        n_classes=len(photos.class_names),
        width=previous.network.width if previous else None,
        device=device,
    )
    if timing.total() < TOO_LATE_TO_REFUSE:
        check_enough(machine, minutes=wishes.minutes, spent=timing.total(), n_images=len(photos))
    return machine


def _planned(
    wishes: Wishes,
    machine: Machine,
    photos: Photos,
    usable: np.ndarray,
    judged_by: Callable[..., Judging],
    *,
    spent: float,
    overhead: float,
    size: int,
) -> tuple[Judging, Plan]:
    """Who judges, and the plan. Folds are many runs: where each would be too short, a held-out part has to do."""

    def planned(judging: Judging) -> tuple[Judging, Plan]:
        return judging, make_plan(
            machine,
            minutes=wishes.minutes,
            spent=spent,
            overhead=overhead,
            size=size,
            flip=flip_is_safe(photos.class_names) if wishes.flip is None else wishes.flip,
            n_rounds=1 if judging.how == "held-out" else len(judging.parts) + 1,
            n_images=len(usable),
            n_labelled=int((photos.labels[usable] != UNLABELLED).sum()),
        )

    judging, plan = planned(judged_by(hurried=False))
    return (judging, plan) if plan.steps >= FEWEST_STEPS else planned(judged_by(hurried=True))


def _claim(wishes: Wishes) -> None:
    """See that the folder is free, or is to be resumed or overwritten."""
    out = wishes.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a folder with --out.")
    holds_fit = PlanFile(out).exists()
    if wishes.resume:
        if not holds_fit:
            raise InputError(f"{out} holds no fit to resume. Start it without --resume.")
    elif not (holds_fit and wishes.overwrite) and out.exists() and any(path.name != "cache" for path in out.iterdir()):
        what = (
            "a fit already. Continue it with --resume, replace it with --overwrite, or" if holds_fit else "other files:"
        )
        raise InputError(f"{out} holds {what} give another folder with --out.")


def _clear(wishes: Wishes) -> None:
    """Remove the fit that is to be overwritten, once nothing can be refused any more."""
    for name in ("runs", "model"):
        shutil.rmtree(wishes.out / name, ignore_errors=True)
    PlanFile(wishes.out).path.unlink(missing_ok=True)


def _device(wishes: Wishes) -> torch.device:
    """Where to compute; a resumed fit on the same kind of device as before, for which its plan was made."""
    if not (wishes.resume and PlanFile(wishes.out).exists()):
        return choose_device(wishes.device)
    # A fit that does not say it was made before there was a choice.
    return same_kind(wishes.device, PlanFile(wishes.out).device(), wishes.out)


def _check_usable(photos: Photos, usable: np.ndarray) -> None:
    known = photos.labels[usable][photos.labels[usable] != UNLABELLED]
    counts = np.bincount(known, minlength=len(photos.class_names))
    if (counts == 0).any():
        lost = ", ".join(name for name, n in zip(photos.class_names, counts, strict=True) if n == 0)
        raise InputError(f"No labelled image of {lost} can be read: label another, or leave the class out.")


def _judging(
    photos: Photos, usable: np.ndarray, groups: np.ndarray, previous: Previous | None, *, hurried: bool
) -> Judging:
    labels = np.full(len(photos), UNLABELLED, dtype=np.int64)
    labels[usable] = photos.labels[usable]
    if previous and previous.held_out:
        # What judged the model before has not taught it, and must not now; nor must copies that were labelled since.
        held = [i for i, name in enumerate(photos.names) if name in previous.held_out and labels[i] != UNLABELLED]
        if held:
            return Judging("held-out", (np.flatnonzero(np.isin(groups, groups[held]) & (labels != UNLABELLED)),))
    judging = choose_judging(labels, groups, seed=0, hurried=hurried)
    if previous and judging.how == "held-out":
        # The earlier model was taught by every label: a part of them held out now would have taught it.
        return choose_judging(labels, groups, seed=0, folds=True)
    return judging


def _fingerprint(photos: Photos, decoded: Decoded) -> str:
    """Of the names, the labels and the pixels: what a resumed fit must find unchanged."""
    digest = hashlib.sha256("\0".join((*photos.class_names, *photos.names)).encode("utf-8", "surrogateescape"))
    digest.update(photos.labels.tobytes())
    for start in range(0, len(photos), 4096):
        digest.update(np.ascontiguousarray(decoded.images[start : start + 4096]).tobytes())
    return digest.hexdigest()[:16]
