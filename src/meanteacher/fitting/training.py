"""The training of a fit: a trial that chooses the network, plan, features and runs, within the minutes left."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from meanteacher.core import UNLABELLED, InputError, Interrupted
from meanteacher.files import write_json
from meanteacher.fitting.answer import error_of
from meanteacher.fitting.budget import Timing, limited_threads
from meanteacher.fitting.config import FitCallback, FitConfig
from meanteacher.fitting.crossval import Comparison, CrossValidation
from meanteacher.fitting.plan import FEWEST_STEPS, WIDTHS, BackboneSpeed, Machine, Plan, make_backbone_plan, make_plan
from meanteacher.fitting.split import EvaluationSplit, FitData, How, choose_split, draw_split, labelled_photos
from meanteacher.fitting.stands import FromScratch, OnBackbone, Stand
from meanteacher.fitting.warm_start import EarlierFit
from meanteacher.formats import count, percent
from meanteacher.photos.cache import Decoded, decode_all
from meanteacher.photos.find import Photos
from meanteacher.pretrained.backbones import Backbone
from meanteacher.pretrained.features import Extraction
from meanteacher.pretrained.spreading import Floats, linear_classifier
from meanteacher.views.normalise import per_channel

_FEATURES_LIMIT = 0.6
"""Of the seconds left: where the machine turns out slower than measured, no further view is begun after this."""
_REPORT_SECONDS = 4.0
"""For the pages, after the predictions."""
_MOST_BYTES = 8 << 30
"""Of the file of features."""
_TRIAL_SHARE, _TRIAL_SECONDS = 0.08, 60.0
"""Of the time left, that the trial may take, and at most so many seconds."""
_TRIAL_FEATURES_SHARE = 0.5
"""Of that, for the features."""
_TRIAL_LABELS = 1000
"""At most; more would hardly change the outcome."""
_TRIAL_STEPS = 150
"""Of each run of the trial (docs/experiments/backbones.md)."""
_TRIAL_RATIO = 1.2
"""Times as many errors as the pretrained network that one from scratch may make in the trial and be chosen."""


class PlanFile:
    """plan.json of a fit: the plan, the trial, the seconds used so far, and what must be unchanged to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "plan.json"

    def exists(self) -> bool:
        return self.path.exists()

    def write(self, plan: Plan, *, trial: dict[str, Any] | None, fingerprint: str, spent: float, device: str) -> None:
        about = {"fingerprint": fingerprint, "spent": spent, "device": device, "trial": trial}
        write_json(self.path, about | {"plan": plan.to_json()})

    def device(self) -> str:
        """The kind of device that the fit was started on; versions that did not record it had only the CPU."""
        return str(self._saved().get("device", "cpu"))

    def trial(self) -> dict[str, Any] | None:
        """As `choose_network` returned it; None where there was none."""
        trial: dict[str, Any] | None = self._saved().get("trial")
        return trial

    def plan(self) -> Plan:
        """Of the network that was chosen.

        Raises:
            InputError: the file is damaged.
        """
        saved = self._saved()
        try:
            return Plan.from_json(saved["plan"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def spent(self, fingerprint: str) -> float:
        """The seconds used so far.

        Raises:
            InputError: the file is damaged, or belongs to other photos.
        """
        saved = self._saved()
        try:
            spent = float(saved["spent"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        if saved.get("fingerprint") != fingerprint:
            raise InputError(
                f"The photos or their labels are not those that {self.folder} was begun with. "
                "Restore them to resume, or start again with overwrite=True (--overwrite)."
            )
        return spent

    def _saved(self) -> dict[str, Any]:
        try:
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(saved, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError) as error:
            raise self._damaged(error) from error
        return saved

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.path} is damaged ({error}). Start again with overwrite=True (--overwrite).")


def choose_network(
    config: FitConfig,
    callback: FitCallback,
    timing: Timing,
    photos: Photos,
    decoded: Decoded,
    backbone: Backbone,
    speed: BackboneSpeed,
    *,
    size: int,
    flip: bool,
    device: torch.device,
) -> dict[str, Any]:
    """Whether all time is given to the pretrained network or to one from scratch: a trial on the labelled photos alone.

    In folds, so that every label evaluates a model that it has not trained. On the pretrained network that is a linear
    classifier, from scratch a short supervised run.

    Args:
        config: of the fit
        callback: follows it
        timing: of the fit
        photos: all of them
        decoded: at the size that they have from scratch
        backbone: the pretrained network
        speed: of this machine
        size: of the photos on the pretrained network
        flip: whether they may be mirrored
        device: where to compute

    Returns:
        What plan.json and fit.json hold, from `trial_result`.

    Raises:
        InputError: no labelled photo of a class can be read.
        Interrupted: the callback stopped it. A resumed fit begins again.
    """
    callback.on_message("Trying a pretrained network and one from scratch on the labelled images …")
    seconds = max(1.0, min(_TRIAL_SHARE * (60 * config.minutes - timing.total()), _TRIAL_SECONDS))
    ends = time.perf_counter() + seconds
    most = min(_TRIAL_LABELS, max(1, int(_TRIAL_FEATURES_SHARE * seconds / speed.seconds(1, size))))
    data = labelled_photos(photos, decoded, most)
    split = draw_split(data.labels, data.groups, seed=0, prefer="folds")
    # Half the time per step that there is: a machine which is as fast as that skips no step.
    per_step = seconds / _TRIAL_STEPS / len(split.parts) / 2
    plan = Plan(
        minutes=config.minutes,
        size=decoded.images.shape[-1],
        steps=_TRIAL_STEPS,
        flip=flip,
        width=WIDTHS[0],
        seconds_per_step={"supervised": per_step},
    )
    try:
        with TemporaryDirectory(dir=config.out / "cache") as folder:
            features = _plain_features(data, backbone, size, Path(folder), callback, device)
            from_scratch = CrossValidation(
                stand=FromScratch(data=data, plan=plan, fingerprint="trial", earlier=None),
                split=split,
                out=Path(folder, "runs"),
                ends=ends,
                overhead=0.0,
                callback=callback,
                timing=timing,
                device=str(device),
                runs=["supervised"] * len(split.parts),
            )
            result, _ = from_scratch.evaluate("supervised", continued=False, name="trial")
    except (Interrupted, KeyboardInterrupt):
        remove_old_fit(config.out)  # or it would be resumed
        raise
    guesses = []
    for part in split.parts:
        trained, _ = data.training_rows(part)
        linear = linear_classifier(features[trained], data.labels[trained], len(photos.class_names))
        guesses.append(linear.logits(features[part]).argmax(1))
    wrong = {"pretrained": np.concatenate(guesses) != data.labels[split.positions], "scratch": result.wrong}
    trial = trial_result(wrong, backbone.title)
    callback.on_message(trial["sentence"])
    return trial


def _plain_features(
    data: FitData, backbone: Backbone, size: int, folder: Path, callback: FitCallback, device: torch.device
) -> Floats:
    """[n, n_features] of the photos themselves."""
    extraction = Extraction(
        images=decode_all(data.photos, size, folder).images,
        normalise=per_channel(backbone.mean, backbone.deviation),
        front=backbone.network(),
        n_views=1,
        flip=False,
        file=folder / "features.npy",
        key="trial",
        device=device,
        should_stop=callback.should_stop,
    )
    return extraction.run().values[:, 0].float().numpy()


def trial_result(wrong: dict[str, np.ndarray], title: str) -> dict[str, Any]:
    """The outcome of a trial: the stand "chosen", the errors of both on "n" photos, and a sentence.

    The linear classifier has nearly the error that the pretrained network ends with, while a network from scratch
    improves much in the time that it gets. So it is chosen unless it makes `_TRIAL_RATIO` times as many errors.

    Args:
        wrong: stand -> [n] of bool, where it was wrong
        title: of the pretrained network
    """
    n_wrong = {stand: int(its.sum()) for stand, its in wrong.items()}
    is_better = n_wrong["scratch"] > _TRIAL_RATIO * n_wrong["pretrained"]
    chosen, other = ("pretrained", "scratch") if is_better else ("scratch", "pretrained")
    errors, n = {stand: error_of(its) for stand, its in wrong.items()}, len(wrong["scratch"])
    names = {"pretrained": f"the pretrained network {title}", "scratch": "a small network from scratch"}
    more = "" if n_wrong[chosen] < n_wrong[other] else ", but training improves a network from scratch more"
    sentence = (
        f"A short trial on {count(n, 'labelled image')} chose {names[chosen]}: it was wrong on "
        f"{percent(errors[chosen]['error'])}, {names[other]} on {percent(errors[other]['error'])}{more}."
    )
    return {"chosen": chosen, "n": n, **errors, "sentence": sentence}


@dataclass(slots=True, eq=False, kw_only=True)
class Training:
    """Plans, trains and evaluates both methods on the chosen network, once the photos are read."""

    config: FitConfig
    callback: FitCallback
    timing: Timing
    plan_file: PlanFile
    plan: Plan | None
    """Of a resumed fit."""
    trial: dict[str, Any] | None
    """What chose the network, if anything did."""
    data: FitData
    flip: bool
    fingerprint: str
    overhead: float
    device: torch.device
    earlier: EarlierFit | None
    spent: float
    """Seconds, before `began`."""
    began: float
    split: EvaluationSplit | None = None
    extraction: Extraction | None = None

    def on_backbone(
        self, backbone: Backbone, speed: BackboneSpeed | Machine | None
    ) -> tuple[CrossValidation, Comparison]:
        """Train and evaluate the last layers of the pretrained network.

        `speed` is needed to make a plan; a resumed fit has one.
        """

        def planned(n_rounds: int) -> Plan:
            assert isinstance(speed, BackboneSpeed)
            return make_backbone_plan(
                speed,
                backbone=backbone.name,
                minutes=self.config.minutes,
                seconds=self._left(),
                overhead=self.overhead,
                size=self.data.decoded.images.shape[-1],
                flip=self.flip,
                n_rounds=n_rounds,
                n_images=len(self.data.photos),
                room=_room(self.config.out),
            )

        plan = self._planned(planned)
        with self._saved_if_stopped():
            self.extraction = self._extraction(backbone, plan)
            features = self.extraction.run()
            self.timing.end("features")
            stand = OnBackbone(
                data=self.data,
                plan=plan,
                fingerprint=self.fingerprint,
                backbone=backbone,
                features=features,
                earlier=self.earlier.tail(self.data.photos.class_names) if self.earlier else None,
            )
            return self._compare(stand, max(plan.seconds_per_image, features.seconds_per_image))

    def _extraction(self, backbone: Backbone, plan: Plan) -> Extraction:
        about = (self.fingerprint, backbone.sha256, plan.cut, plan.size, plan.n_views, plan.flip)
        return Extraction(
            images=self.data.decoded.images,
            normalise=per_channel(backbone.mean, backbone.deviation),
            front=backbone.network()[: plan.cut],
            n_views=plan.n_views,
            flip=plan.flip,
            file=self.config.out / "cache" / "features.npy",
            key=" ".join(map(str, about)),
            device=self.device,
            progress=partial(self.callback.on_progress, "Looking at the images"),
            should_stop=self.callback.should_stop,
            ends=time.perf_counter() + _FEATURES_LIMIT * self._left(),
        )

    def from_scratch(self, speed: BackboneSpeed | Machine | None) -> tuple[CrossValidation, Comparison]:
        """Train and evaluate a small network on the pixels; `speed` as for `on_backbone`."""

        def planned(n_rounds: int) -> Plan:
            assert isinstance(speed, Machine)
            return make_plan(
                speed,
                minutes=self.config.minutes,
                spent=60 * self.config.minutes - self._left(),
                overhead=self.overhead,
                size=self.data.decoded.images.shape[-1],
                flip=self.flip,
                n_rounds=n_rounds,
                n_images=len(self.data.usable),
                n_labelled=int((self.data.labels != UNLABELLED).sum()),
            )

        plan = self._planned(planned)
        model = self.earlier.continued(self.data.photos.class_names) if self.earlier else None
        with self._saved_if_stopped():
            stand = FromScratch(data=self.data, plan=plan, fingerprint=self.fingerprint, earlier=model)
            return self._compare(stand, plan.seconds_per_image)

    def _planned(self, planned: Callable[[int], Plan]) -> Plan:
        """The plan, and with it which labelled photos evaluate the models."""
        if self.plan is None:
            self.plan = self._new_plan(planned)
            remove_old_fit(self.config.out)
            self._save()
        self.split = self._split("held-out" if self.plan.n_rounds == 1 else None)
        self.callback.on_message(self.plan.sentence())
        self.timing.end("plan")
        return self.plan

    def _new_plan(self, planned: Callable[[int], Plan]) -> Plan:
        """Folds take many runs: where each would be too short, a part is held out instead."""
        plan = planned(_n_rounds(self._split(None)))
        return plan if plan.steps >= FEWEST_STEPS else planned(_n_rounds(self._split("held-out")))

    def _split(self, prefer: How | None) -> EvaluationSplit:
        return choose_split(self.data, self.earlier.held_out if self.earlier else None, prefer=prefer)

    def _compare(self, stand: Stand, seconds_per_image: float) -> tuple[CrossValidation, Comparison]:
        """Train and evaluate; predictions will take so many seconds per image."""
        assert self.split is not None
        plan, predicting = stand.plan, seconds_per_image * len(self.data.usable)
        validation = CrossValidation(
            stand=stand,
            split=self.split,
            out=self.config.out / "runs",
            ends=time.perf_counter() + self._left() - predicting - _REPORT_SECONDS,
            overhead=self.overhead,
            callback=self.callback,
            timing=self.timing,
            device=str(self.device),
            runs=plan.runs(),
        )
        with limited_threads(plan.threads):
            comparison = validation.compare(continued=self.earlier is not None)
        if comparison.skipped:
            self.callback.on_message(comparison.skipped)
        return validation, comparison

    def _left(self) -> float:
        """Seconds until the minutes are over."""
        return 60 * self.config.minutes - self.spent - (time.perf_counter() - self.began)

    @contextmanager
    def _saved_if_stopped(self) -> Iterator[None]:
        """Note the seconds used, so that a resumed fit keeps to the minutes."""
        try:
            yield
        except (Interrupted, KeyboardInterrupt):
            self._save()
            raise

    def _save(self) -> None:
        assert self.plan is not None
        spent = self.spent + time.perf_counter() - self.began
        self.plan_file.write(
            self.plan, trial=self.trial, fingerprint=self.fingerprint, spent=spent, device=self.device.type
        )


def _n_rounds(split: EvaluationSplit) -> int:
    return 1 if split.how == "held-out" else len(split.parts) + 1


def _room(out: Path) -> int:
    """Bytes that the features may take: at most half of what is free."""
    folder = next(path for path in (out, *out.resolve().parents) if path.exists())
    return min(_MOST_BYTES, shutil.disk_usage(folder).free // 2)


def remove_old_fit(out: Path) -> None:
    """Called once nothing can be refused any more."""
    for name in ("runs", "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    PlanFile(out).path.unlink(missing_ok=True)
