"""The training of a fit: plans, features and runs on each stand, within the minutes that are left."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from meanteacher.core import UNLABELLED, InputError, Interrupted
from meanteacher.files import write_json
from meanteacher.fitting.budget import Timing, limited_threads, measure_machine
from meanteacher.fitting.config import FitCallback, FitConfig
from meanteacher.fitting.crossval import Comparison, CrossValidation
from meanteacher.fitting.plan import FEWEST_STEPS, BackboneSpeed, Machine, Plan, make_backbone_plan, make_plan
from meanteacher.fitting.split import EvaluationSplit, FitData, choose_split, prepare
from meanteacher.fitting.stands import FromScratch, OnBackbone, Stand
from meanteacher.fitting.warm_start import EarlierFit, width_of
from meanteacher.photos.cache import decode_all
from meanteacher.photos.duplicates import find_duplicates
from meanteacher.photos.flip import flip_is_safe
from meanteacher.pretrained.backbones import Backbone
from meanteacher.pretrained.features import MAX_VIEWS, Extraction
from meanteacher.views.normalise import per_channel

_FEATURES_LIMIT = 0.6
"""Of the seconds left: where the machine turns out slower than measured, no further view is begun after this."""
_VIEWS_OF_TWO = 2
"""Of each photo, where a network from scratch needs the time, too."""
_REPORT_SECONDS = 4.0
"""For the pages, after the predictions."""
_MOST_BYTES = 8 << 30
"""Of the file of features."""


class PlanFile:
    """plan.json of a fit: the plans, the seconds used so far, and what must be unchanged to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "plan.json"

    def exists(self) -> bool:
        return self.path.exists()

    def write(
        self, plans: Mapping[str, Plan], stands: Sequence[str], *, fingerprint: str, spent: float, device: str
    ) -> None:
        about = {"fingerprint": fingerprint, "spent": spent, "device": device, "stands": list(stands)}
        write_json(self.path, about | {"plans": {name: plan.to_json() for name, plan in plans.items()}})

    def device(self) -> str:
        """The kind of device that the fit was started on; versions that did not record it had only the CPU."""
        return str(self._saved().get("device", "cpu"))

    def stands(self) -> list[str]:
        """All that are tried, those without a plan yet included."""
        return list(map(str, self._saved().get("stands", ["scratch"])))

    def plans(self) -> dict[str, Plan]:
        """By the stand that each is for, in the order in which they were made.

        Raises:
            InputError: the file is damaged.
        """
        saved = self._saved()
        try:
            # Earlier versions had one plan, that of a network from scratch.
            plans = saved["plans"] if "plans" in saved else {"scratch": saved["plan"]}
            if not plans:
                raise ValueError("it holds no plan")
            return {str(name): Plan.from_json(plan) for name, plan in plans.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
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


@dataclass(slots=True, eq=False, kw_only=True)
class Training:
    """Plans, trains and evaluates both methods on each stand, once the photos are read."""

    config: FitConfig
    callback: FitCallback
    timing: Timing
    plan_file: PlanFile
    plans: dict[str, Plan]
    """Those made so far, by stand."""
    stands: list[str]
    """All that will be tried."""
    data: FitData
    fingerprint: str
    overhead: float
    device: torch.device
    earlier: EarlierFit | None
    spent: float
    """Seconds, before `began`."""
    began: float
    split: EvaluationSplit | None = None
    extraction: Extraction | None = None
    seconds_per_image: float = 0.0
    """That predictions will take on the slowest stand so far."""

    def on_backbone(
        self, backbone: Backbone, speed: BackboneSpeed | Machine | None, *, share: float
    ) -> tuple[CrossValidation, Comparison]:
        """Train and evaluate the last layers of the pretrained network, in this share of the time left.

        `speed` is needed to make a plan; a resumed fit has one.
        """
        until = time.perf_counter() + share * self._left()

        def planned(n_rounds: int) -> Plan:
            assert isinstance(speed, BackboneSpeed)
            return make_backbone_plan(
                speed,
                backbone=backbone.name,
                minutes=self.config.minutes,
                seconds=share * self._left(),
                overhead=self.overhead,
                size=self.data.decoded.images.shape[-1],
                flip=self._flip(),
                n_rounds=n_rounds,
                n_images=len(self.data.photos),
                room=_room(self.config.out),
                most_views=MAX_VIEWS if share == 1 else _VIEWS_OF_TWO,
            )

        plan = self._plan("pretrained", planned)
        with self._saved_if_stopped():
            self.extraction = self._extraction(backbone, plan, until)
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
            return self._compare(stand, max(plan.seconds_per_image, features.seconds_per_image), until)

    def _extraction(self, backbone: Backbone, plan: Plan, until: float) -> Extraction:
        now = time.perf_counter()
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
            ends=now + _FEATURES_LIMIT * (until - now),
        )

    def from_scratch(self, speed: BackboneSpeed | Machine | None, *, size: int) -> tuple[CrossValidation, Comparison]:
        """Train and evaluate a small network on the pixels; the machine is measured where `speed` is not that."""
        data = self.data
        if size != data.decoded.images.shape[-1]:
            decoded = decode_all(data.photos, size, self.config.out / "cache")
            data = prepare(data.photos, decoded, find_duplicates(decoded.images))

        def planned(n_rounds: int) -> Plan:
            return make_plan(
                speed if isinstance(speed, Machine) else self._measured(size),
                minutes=self.config.minutes,
                spent=60 * self.config.minutes - self._left(),
                overhead=self.overhead,
                size=size,
                flip=self._flip(),
                n_rounds=n_rounds,
                n_images=len(data.usable),
                n_labelled=int((data.labels != UNLABELLED).sum()),
            )

        plan = self._plan("scratch", planned)
        model = self.earlier.continued(data.photos.class_names) if self.earlier else None
        with self._saved_if_stopped():
            stand = FromScratch(data=data, plan=plan, fingerprint=self.fingerprint, earlier=model)
            return self._compare(stand, plan.seconds_per_image)

    def _measured(self, size: int) -> Machine:
        """In the minutes that are left."""
        n_classes, width = len(self.data.photos.class_names), width_of(self.earlier)
        minutes = max(1.0, self._left() / 60)
        return measure_machine(minutes=minutes, size=size, n_classes=n_classes, width=width, device=str(self.device))

    def _plan(self, name: str, planned: Callable[[int], Plan]) -> Plan:
        """The plan of a stand; the first one also decides which labelled photos evaluate the models.

        Folds take many runs: where each would be too short, a part is held out instead.
        """
        held_out = self.earlier.held_out if self.earlier else None
        if name not in self.plans:
            for prefer in (None, "held-out") if self.split is None else ():
                self.split = choose_split(self.data, held_out, prefer=prefer)
                plan = planned(self._n_rounds())
                if plan.steps >= FEWEST_STEPS:
                    break
            else:
                plan = planned(self._n_rounds())
            if not self.plans:
                _remove_old_fit(self.config.out)
            self.plans[name] = plan
            self._save()
        plan = self.plans[name]
        if self.split is None:
            self.split = choose_split(self.data, held_out, prefer="held-out" if plan.n_rounds == 1 else None)
        self.callback.on_message(plan.sentence())
        self.timing.end("plan")
        return plan

    def _n_rounds(self) -> int:
        assert self.split is not None
        return 1 if self.split.how == "held-out" else len(self.split.parts) + 1

    def _compare(
        self, stand: Stand, seconds_per_image: float, until: float = float("inf")
    ) -> tuple[CrossValidation, Comparison]:
        """Train and evaluate on a stand until a time; predictions will take so many seconds per image."""
        assert self.split is not None
        plan, n = stand.plan, len(self.data.usable)
        self.seconds_per_image = max(self.seconds_per_image, seconds_per_image)
        validation = CrossValidation(
            stand=stand,
            split=self.split,
            # The first stand has the folder; the second one a folder in it.
            out=self.config.out / "runs" / ("" if next(iter(self.plans)) == stand.name else stand.name),
            ends=min(until, time.perf_counter() + self._left() - self.seconds_per_image * n - _REPORT_SECONDS),
            overhead=self.overhead,
            callback=self.callback,
            timing=self.timing,
            device=str(self.device),
        )
        with limited_threads(plan.threads):
            comparison = validation.compare(continued=self.earlier is not None)
        if comparison.skipped:
            self.callback.on_message(comparison.skipped)
        return validation, comparison

    def _left(self) -> float:
        """Seconds until the minutes are over."""
        return 60 * self.config.minutes - self.spent - (time.perf_counter() - self.began)

    def _flip(self) -> bool:
        return flip_is_safe(self.data.photos.class_names) if self.config.flip is None else self.config.flip

    @contextmanager
    def _saved_if_stopped(self) -> Iterator[None]:
        """Note the seconds used, so that a resumed fit keeps to the minutes."""
        try:
            yield
        except (Interrupted, KeyboardInterrupt):
            self._save()
            raise

    def _save(self) -> None:
        spent = self.spent + time.perf_counter() - self.began
        self.plan_file.write(
            self.plans, self.stands, fingerprint=self.fingerprint, spent=spent, device=self.device.type
        )


def _room(out: Path) -> int:
    """Bytes that the features may take: at most half of what is free."""
    folder = next(path for path in (out, *out.resolve().parents) if path.exists())
    return min(_MOST_BYTES, shutil.disk_usage(folder).free // 2)


def _remove_old_fit(out: Path) -> None:
    """Called once nothing can be refused any more."""
    for name in ("runs", "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    PlanFile(out).path.unlink(missing_ok=True)
