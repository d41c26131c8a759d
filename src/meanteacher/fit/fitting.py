"""From a folder of photos and a few labels to a classifier, predictions and an honest answer."""

import hashlib
import json
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

from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import choose_device, same_kind
from meanteacher.fit.cache import Decoded, decode_all
from meanteacher.fit.duplicates import duplicate_groups
from meanteacher.fit.finding import Finding
from meanteacher.fit.findings import check
from meanteacher.fit.flipping import flip_is_safe
from meanteacher.fit.judging import Judging, choose_judging
from meanteacher.fit.photos import Photos, find_photos
from meanteacher.fit.plan import Plan, image_size, make_plan
from meanteacher.fit.previous import Previous, read_previous
from meanteacher.fit.results import Fitted, write_results
from meanteacher.fit.rounds import Interrupted, Rounds, Trained, round_data
from meanteacher.fit.shapes import shapes_of
from meanteacher.recipes.folder import write_json
from meanteacher.train import Listener

FEWEST_MINUTES = 1
_PLAN = "plan.json"
_ALL = np.empty(0, dtype=np.int64)
"""The part that is kept apart when nothing is: the last run on all labels."""


class Onlooker(Protocol):
    """Whom the fit tells what it is doing."""

    def show(self, name: str, steps: int) -> AbstractContextManager[Listener]: ...

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


def fit(wishes: Wishes, onlooker: Onlooker, *, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
    """Do all of it, and leave the results in `wishes.out`.

    Returns:
        What fit.json holds; None when `should_stop` ended it, to be resumed.

    Raises:
        InputError: something given is wrong; nothing that was there is lost.
    """
    began = time.perf_counter()
    photos = find_photos(wishes.photos, wishes.labels)
    previous = read_previous(wishes.start) if wishes.start else None
    device = _device(wishes)
    _claim(wishes)
    timing = Timing(began)
    shapes = None if photos.arrays is not None else shapes_of(photos)
    if previous:
        size = previous.size
    elif photos.arrays is not None:
        size = image_size(None, min(photos.arrays.shape[1:3]))
    else:
        size = image_size(shapes)
    decoded = decode_all(
        photos, size, wishes.out / "cache", progress=lambda done, n: onlooker.progress("Reading images", done, n)
    )
    timing.end("decode")
    findings = check(photos, decoded, shapes)
    onlooker.found(findings)
    usable = np.setdiff1d(np.arange(len(photos)), np.array(sorted(decoded.unreadable), dtype=np.int64))
    _check_usable(photos, usable)
    groups = duplicate_groups(decoded.images)
    judging = _judging(photos, usable, groups, previous)
    images = torch.from_numpy(decoded.images)
    timing.end("check")

    fingerprint = _fingerprint(photos, decoded)
    data, split = round_data(images, photos.labels, usable, photos.class_names, judging.parts[0])
    plan = _read_plan(wishes, fingerprint)
    if plan is None:
        onlooker.say("Measuring this machine …")
        plan = make_plan(
            minutes=wishes.minutes,
            spent=time.perf_counter() - began,
            size=size,
            flip=flip_is_safe(photos.class_names) if wishes.flip is None else wishes.flip,
            n_rounds=1 if judging.how == "held-out" else len(judging.parts) + 1,
            n_images=len(usable),
            data=data,
            split=split,
            width=previous.network.width if previous else None,
            device=str(device),
        )
        about = {"fingerprint": fingerprint, "plan": plan.to_json(), "device": device.type}
        write_json(wishes.out / _PLAN, about)
    onlooker.say(plan.sentence())
    timing.end("plan")

    rounds = Rounds(
        images,
        photos.labels,
        usable,
        photos.class_names,
        plan=plan,
        fingerprint=fingerprint,
        out=wishes.out / "runs",
        show=onlooker.show,
        should_stop=should_stop,
        device=str(device),
    )
    # A model that was taught by every label cannot be judged by any of them, so folds start anew.
    going_on = previous.continued(photos.class_names) if previous else None
    rounds.model = going_on if judging.how == "held-out" else None
    try:
        judged = {}
        for method in ("supervised", "mean-teacher"):
            judged[method] = rounds.judge(method, judging)
            timing.end(method)
        better = (
            "mean-teacher" if judged["mean-teacher"].wrong.sum() <= judged["supervised"].wrong.sum() else "supervised"
        )
        shipped: Trained = judged[better].first
        if judging.how == "folds":
            rounds.model = going_on
            shipped = rounds.train(better, _ALL, f"{better}-on-all-labels")
            timing.end("on all labels")
    except Interrupted:
        return None
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
    )
    return write_results(
        fitted,
        wishes.out,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=lambda: timing.after("predict"),
        progress=lambda done, n: onlooker.progress("Predicting", done, n),
    )


def _claim(wishes: Wishes) -> None:
    """See that the folder is free, or is to be resumed or overwritten, before anything is written."""
    out = wishes.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a folder with --out.")
    holds_fit = (out / _PLAN).exists()
    if wishes.resume:
        if not holds_fit:
            raise InputError(f"{out} holds no fit to resume. Start it without --resume.")
    elif holds_fit and wishes.overwrite:
        for name in ("runs", "model"):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / _PLAN).unlink()
    elif out.exists() and any(path.name != "cache" for path in out.iterdir()):
        what = (
            "a fit already. Continue it with --resume, replace it with --overwrite, or" if holds_fit else "other files:"
        )
        raise InputError(f"{out} holds {what} give another folder with --out.")


def _device(wishes: Wishes) -> torch.device:
    """Where to compute; a resumed fit on the same kind of device as before, for which its plan was made."""
    if not (wishes.resume and (wishes.out / _PLAN).exists()):
        return choose_device(wishes.device)
    # A fit that does not say it was made before there was a choice.
    return same_kind(wishes.device, _saved(wishes).get("device", "cpu"), wishes.out)


def _check_usable(photos: Photos, usable: np.ndarray) -> None:
    known = photos.labels[usable][photos.labels[usable] != UNLABELLED]
    counts = np.bincount(known, minlength=len(photos.class_names))
    if (counts == 0).any():
        lost = ", ".join(name for name, n in zip(photos.class_names, counts, strict=True) if n == 0)
        raise InputError(f"No labelled image of {lost} can be read: label another, or leave the class out.")


def _judging(photos: Photos, usable: np.ndarray, groups: np.ndarray, previous: Previous | None) -> Judging:
    labels = np.full(len(photos), UNLABELLED, dtype=np.int64)
    labels[usable] = photos.labels[usable]
    if previous and previous.held_out:
        # What judged the model before has not taught it yet, and must not now.
        held = [i for i, name in enumerate(photos.names) if name in previous.held_out and labels[i] != UNLABELLED]
        if held:
            return Judging("held-out", (np.array(held, dtype=np.int64),))
    judging = choose_judging(labels, groups, seed=0)
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


def _read_plan(wishes: Wishes, fingerprint: str) -> Plan | None:
    if not wishes.resume:
        return None
    saved = _saved(wishes)
    try:
        plan = Plan(**saved["plan"])
    except (KeyError, TypeError) as error:
        raise _damaged(wishes, error) from error
    if saved.get("fingerprint") != fingerprint:
        raise InputError(
            f"The photos or their labels are not those that {wishes.out} was begun with. "
            "Put them back as they were to resume, or start again with --overwrite."
        )
    return plan


def _saved(wishes: Wishes) -> dict[str, Any]:
    try:
        saved = json.loads((wishes.out / _PLAN).read_text(encoding="utf-8"))
        if not isinstance(saved, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise _damaged(wishes, error) from error
    return saved


def _damaged(wishes: Wishes, error: Exception) -> InputError:
    return InputError(f"{wishes.out / _PLAN} is damaged ({error}). Start again with --overwrite.")


class Timing:
    """How long each part of the work took."""

    def __init__(self, began: float) -> None:
        self.began = self.last = began
        self.parts: dict[str, float] = {}

    def end(self, name: str) -> None:
        now = time.perf_counter()
        self.parts[name] = round(now - self.last, 1)
        self.last = now

    def after(self, name: str) -> dict[str, Any]:
        """All of it, once the last part is done."""
        self.end(name)
        return {"total_seconds": round(self.last - self.began, 1), "parts": self.parts}
