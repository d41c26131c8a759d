"""The training of a fit: plan, features and runs, within the minutes that are left."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from meanteacher.core import UNLABELLED, InputError, Interrupted
from meanteacher.files import reporting_full_disk, write_json
from meanteacher.files.typed import RecordError, read_json
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.features.extraction import Extraction
from meanteacher.photos.fitting.budget import Timing, limited_threads
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.crossval import Comparison, CrossValidation
from meanteacher.photos.fitting.plan import FEWEST_STEPS, BackboneSpeed, Machine, make_backbone_plan, make_plan
from meanteacher.photos.fitting.split import EvaluationSplit, FitData, How, choose_split
from meanteacher.photos.fitting.stands import FromScratch, OnBackbone, Stand
from meanteacher.photos.fitting.warm_start import EarlierFit
from meanteacher.records import Fit, Plan, PlanRecord, Trial, read_fit
from meanteacher.train import Callback
from meanteacher.views.normalise import per_channel

_FEATURES_LIMIT = 0.6
"""Share of the remaining seconds after which no further view is started, if the machine is slower than measured."""
_REPORT_SECONDS = 4.0
"""For the pages, after the predictions."""
_MOST_BYTES = 8 << 30
"""Largest size of the file of features."""


RESULTS = ("fit.json", "model", "predictions.csv", "label-next.csv", "report.html", "MODEL_CARD.md")
"""Files of a complete fit."""


class PlanFile:
    """plan.json of a fit: the plan, the trial, the seconds used so far, and what must be unchanged to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "plan.json"

    def exists(self) -> bool:
        return self.path.exists()

    def write(self, content: PlanRecord) -> None:
        with reporting_full_disk(self.path):
            write_json(self.path, asdict(content))

    def read(self) -> PlanRecord:
        return read_json(self.path, PlanRecord, "Start again with overwrite=True (--overwrite).")

    def spent(self, fingerprint: str) -> float:
        """The seconds used so far on these photos; a plan of others is refused."""
        saved = self.read()
        if saved.fingerprint != fingerprint:
            raise InputError(
                f"The photos or their labels are not those that {self.folder} was begun with. "
                "Restore them to resume, or start again with overwrite=True (--overwrite)."
            )
        return saved.spent

    def complete_fit(self, fingerprint: str) -> Fit | None:
        """The content of fit.json, if it is of this plan and these photos, and no other result is missing."""
        saved = self.read()
        if saved.fingerprint != fingerprint or not all((self.folder / name).exists() for name in RESULTS):
            return None
        try:
            fit = read_fit(self.folder)
        except RecordError:
            return None  # results are written again
        return fit if fit.plan == saved.plan else None


@dataclass(slots=True, eq=False, kw_only=True)
class Training:
    """Plans, trains and evaluates both methods on the chosen network, once the photos are read."""

    config: FitConfig
    callback: Callback
    timing: Timing
    plan: Plan | None
    """Time plan of a resumed fit."""
    trial: Trial | None
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
        """Train and evaluate the last layers of the pretrained network. A resumed fit has a plan and needs no speed."""

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
        about = (self.fingerprint, backbone.sha256, plan.cut, plan.size, plan.n_views, plan.flip)
        with if_stopped(self._save):
            self.extraction = Extraction(
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
            features = self.extraction.run()
            self.timing.end("features")
            stand = OnBackbone(
                data=self.data,
                plan=plan,
                backbone=backbone,
                features=features,
                earlier=self.earlier.tail(self.data.photos.class_names) if self.earlier else None,
            )
            return self._compare(stand, max(plan.seconds_per_image, features.seconds_per_image))

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
        with if_stopped(self._save):
            stand = FromScratch(data=self.data, plan=plan, earlier=model)
            return self._compare(stand, plan.seconds_per_image)

    def _planned(self, planned: Callable[[int], Plan]) -> Plan:
        """The plan, and with it which labelled photos evaluate the models."""
        if self.plan is None:
            self.plan = planned(self._split(None).n_rounds)
            if self.plan.steps < FEWEST_STEPS:  # folds take many runs, of which each would be too short
                self.plan = planned(self._split("held-out").n_rounds)
            remove_old_fit(self.config.out)
            self._save()
        self.split = self._split("held-out" if self.plan.n_rounds == 1 else None)
        self.callback.on_message(self.plan.sentence())
        self.timing.end("plan")
        return self.plan

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

    def _save(self) -> None:
        """Note the plan and the seconds used, so that a resumed fit keeps to the minutes."""
        assert self.plan is not None
        spent, device = self.spent + time.perf_counter() - self.began, self.device.type
        PlanFile(self.config.out).write(
            PlanRecord(plan=self.plan, trial=self.trial, fingerprint=self.fingerprint, spent=spent, device=device)
        )


def _room(out: Path) -> int:
    """Bytes that the features may take: at most half of what is free."""
    folder = next(path for path in (out, *out.resolve().parents) if path.exists())
    return min(_MOST_BYTES, shutil.disk_usage(folder).free // 2)


def remove_old_fit(out: Path) -> None:
    """So that it is not resumed in the place of a new one. Called once nothing can be refused any more."""
    for name in ("runs", "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    PlanFile(out).path.unlink(missing_ok=True)


@contextmanager
def if_stopped(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` if the user stops what is done inside."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        act()
        raise
