"""The on-line trainer: one step per batch that arrives, a prediction at any moment, checkpoints with the position."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from meanteacher.core import (
    UNLABELLED,
    Augment,
    Batch,
    DivergedError,
    InitialisesFromData,
    InputError,
    Method,
    Problem,
    labelled_rows,
)
from meanteacher.data import Dataset, ImageStream
from meanteacher.devices import choose_device
from meanteacher.evaluate import predict_logits
from meanteacher.experiment.describe import describe
from meanteacher.models import ModelSpec
from meanteacher.online.arrivals import (
    Arrivals,
    Arrived,
    EveryRow,
    Examples,
    Position,
    Replay,
    Rows,
    Store,
    checked,
    joined_rows,
)
from meanteacher.seeding import generator, isolated_global_randomness, seed_global
from meanteacher.train import Alarm, Checkpoints, OptimSpec, TrainState, Vitals, start, take_step
from meanteacher.train.checkpoint import check_weights
from meanteacher.train.execution import Precision, RunOptions
from meanteacher.train.optim import TorchOptim
from meanteacher.train.vitals import READ_EVERY
from meanteacher.views.normalise import ToFloat

_KEPT_READINGS = 1000
"""Readings of the gradients that are kept: a stream has no end, a checkpoint has to have one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineStep:
    """What one step did."""

    step: int
    """Steps done, this one included."""
    costs: dict[str, float]
    """Weighted, as they are summed."""
    weights: dict[str, float]
    n_labelled: int
    """Number of labelled examples that arrived."""
    n_replayed: int
    """Labelled examples of earlier steps that were shown again."""
    alarms: tuple[Alarm, ...]
    """What the vitals have found; each kind once per run."""


class OnlineTrainer:
    """Trains on a stream: every unlabelled example is seen once.

    The step is that of a run on a data set: the same methods, schedules of the step, views drawn by (seed, role, step),
    and live vitals. `predict` may be called at any moment, from any thread; it waits for the step under way.

    Args:
        model: a network, which is trained in place, or the description of one (`mt.models`)
        method: whose memory does not grow with the number of examples: all but Temporal Ensembling
        optim: the optimiser, or a function of the parameters such as `partial(torch.optim.AdamW, lr=1e-3)`; a schedule
            that falls to zero would end the learning
        n_classes: a label is 0 to n_classes - 1, or -1 where it is unknown
        input_shape: of one image
        label_shape: of one image's label: () for one class per image, (H, W) for one per pixel; views may then change
            colours and noise, but move nothing
        views: role -> what it sees of an image, for every role of the method
        labelled_view: what the student sees of rows with a label; `views["student"]` if not given
        normalise: applied before the views; if not given, bytes become 0 to 1 and floating point stays as it is
        replay: labelled examples that are shown again; None shows these, too, only once
        seed: of weights, views, noise and replay
        device: its name; "auto" takes a GPU if there is one
        precision: what the networks compute in

    >>> from meanteacher.methods import MeanTeacher
    >>> from meanteacher.train import AdamSpec
    >>> from meanteacher.views import Noise
    >>> trainer = OnlineTrainer(
    ...     nn.Linear(2, 3),
    ...     MeanTeacher(decay=0.99, buffers="own", weight=5.0),
    ...     AdamSpec(learning_rate=0.01, beta1=0.9, beta2=0.99),
    ...     n_classes=3, input_shape=(2,), views={"student": Noise(0.1), "teacher": Noise(0.1)},
    ... )
    >>> done = trainer.step(torch.randn(4, 2), torch.tensor([0, 2, -1, -1]))  # -1 where unknown
    >>> trainer.predict(torch.randn(5, 2)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        model: nn.Module | ModelSpec,
        method: Method,
        optim: OptimSpec | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        n_classes: int,
        input_shape: tuple[int, ...],
        label_shape: tuple[int, ...] = (),
        views: Mapping[str, Augment],
        labelled_view: Augment | None = None,
        normalise: nn.Module | None = None,
        replay: Replay | None = Replay(),  # noqa: B008 - frozen
        seed: int = 0,
        device: str = "auto",
        precision: Precision = "float32",
    ) -> None:
        missing = [role for role in method.roles if role not in views]
        if missing:
            raise InputError(
                f"{type(method).__name__} needs the views {', '.join(method.roles)}; {', '.join(missing)} is missing."
            )
        self.optim = optim if isinstance(optim, OptimSpec) else TorchOptim(optim)
        self.method, self.seed, self.precision = method, seed, precision
        self.views = {role: views[role] for role in method.roles}
        self.labelled_view = labelled_view
        self.device = choose_device(device)
        self.position: Position = None
        """Where the source stands, as given to the last step."""
        self.n_seen = 0
        """Examples that have arrived."""
        self._problem = Problem(n_classes, 0, tuple(input_shape), tuple(label_shape))
        self._normalise = (normalise or ToFloat()).to(self.device)
        self._store = Store(replay, seed) if replay is not None else None
        self._vitals = Vitals(None)
        self._lock = RLock()
        self._identity = {
            "configuration": _digest(model, method, self.optim, self.views, labelled_view, replay, self._problem),
            "seed": str(seed),
        }
        with isolated_global_randomness():
            seed_global(seed, "weights")
            self._student = model if isinstance(model, nn.Module) else model.build(self._problem)
        # A network whose first weights depend on data waits for the first batch.
        first = isinstance(self._student, InitialisesFromData)
        self._state: TrainState | None = None if first else self._start(None)

    @property
    def n_steps(self) -> int:
        """Steps done."""
        return 0 if self._state is None else self._state.step

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms of the run so far."""
        return tuple(self._vitals.alarms)

    def step(self, images: Any, labels: Any = None, *, position: Position = None) -> OnlineStep:
        """Train on the examples that have just arrived, once. Reads the costs, so it waits for the device.

        Args:
            images: [B, ...], an array or a tensor, bytes or floating point
            labels: [B] or [B, *label_shape], -1 where unknown; None where all are
            position: where the source stands after them, kept for `save`

        Raises:
            InputError: images or labels are not as declared; nothing has changed.
            DivergedError: a cost is not finite; the weights are spoiled, the last checkpoint is not.
        """
        with self._lock:
            ignored = getattr(self.method, "ignore_index", UNLABELLED)
            new_images, new_labels = checked(images, labels, self._problem, ignored)
            index = torch.arange(self.n_seen, self.n_seen + len(new_images))
            rows: list[Rows] = [(new_images, new_labels, index)]
            n_replayed = 0
            if self._store is not None and len(self._store):
                rows.append(self._store.draw(self.n_steps))
                n_replayed = len(rows[1][1])
            batch = self._batch(*joined_rows(rows))
            state = self._state = self._state or self._start(batch)
            with isolated_global_randomness():
                output, alarms = take_step(
                    state,
                    self.method,
                    self.optim,
                    batch,
                    seed=self.seed,
                    options=RunOptions(precision=self.precision),
                    vitals=self._vitals,
                    reads=(state.step + 1) % READ_EVERY == 0,
                )
            del self._vitals.readings[:-_KEPT_READINGS]
            done = OnlineStep(
                step=state.step,
                costs={name: float(cost.value.detach()) for name, cost in output.costs.items()},
                weights={name: float(cost.weight) for name, cost in output.costs.items() if cost.weight is not None},
                n_labelled=int(labelled_rows(new_labels).sum()),
                n_replayed=n_replayed,
                alarms=tuple(alarms),
            )
            for name, value in done.costs.items():
                if not math.isfinite(value):
                    raise DivergedError(
                        f"The cost '{name}' is {value} in step {done.step}. Likely cause: the learning rate or the "
                        "cost's weight is too large. Lower it, and go on from the last checkpoint."
                    )
            if self._store is not None:
                self._store.add(new_images, new_labels, index)
            self.n_seen += len(new_images)
            self.position = position
            return done

    def follow(
        self,
        source: Arrivals | Iterable[Any],
        *,
        folder: Path | str | None = None,
        save_every: int = 100,
        on_arrival: Callable[[Arrived], None] = lambda arrived: None,
        on_step: Callable[[OnlineStep], None] = lambda done: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Train on everything that a source gives from the trainer's position on. Returns the steps done.

        Args:
            source: any iterable of batches (images, labels), such as a generator or a DataLoader, which is read as it
                comes; `Examples`, which can continue where a checkpoint stands; or an object with the same two methods
            folder: for the checkpoints; what was read is released to the source after each of them
            save_every: steps; there is one more checkpoint at the end
            on_arrival: given every batch before it is trained on, for instance to predict it first
            on_step: given what every step did
            should_stop: asked after every step
        """
        before = self.n_steps
        if not isinstance(source, Arrivals):
            source = Examples(source, live=True)
        for arrived in source.read(self.position):
            on_arrival(arrived)
            on_step(self.step(arrived.images, arrived.labels, position=arrived.position))
            if folder is not None and self.n_steps % save_every == 0:
                self._save_and_release(folder, source)
            if should_stop():
                break
        if folder is not None and self.n_steps > before:
            self._save_and_release(folder, source)
        return self.n_steps - before

    def predict(self, images: Any) -> Tensor:
        """[N], the most probable class of each image."""
        return self.predict_proba(images).argmax(1)

    def predict_proba(self, images: Any) -> Tensor:
        """[N, n_classes], the probabilities by the method's predictor, on the CPU.

        Raises:
            InputError: a network that is initialised from data has seen none yet.
        """
        with self._lock:
            shown, _ = checked(images, None, self._problem)
            if self._state is None:
                raise InputError(f"{type(self._student).__name__} is initialised from data: take the first step first.")
            network = self._state.predictor(self.method)
            return predict_logits(network, shown, normalise=self._normalise).softmax(1)

    def save(self, folder: Path | str) -> Path:
        """Write a checkpoint: networks, optimiser, kept examples, vitals, and the position in the stream.

        Raises:
            InputError: there was no step yet, or it cannot be written; the previous checkpoint is intact.
            DivergedError: a weight is not finite; nothing is written.
        """
        with self._lock:
            if self._state is None or self._state.step == 0:
                raise InputError("There is nothing to save before the first step.")
            check_weights(self._state)
            self._state.vitals = self._vitals.state()
            self._state.stream = {
                "position": self.position,
                "n_seen": self.n_seen,
                "replay": None if self._store is None else self._store.state(),
            }
            return self._checkpoints(folder).save(self._state)

    def load(self, folder: Path | str) -> "OnlineTrainer":
        """Continue from the last checkpoint in the folder. Returns the trainer itself.

        The trainer is built with what it was built with before: a checkpoint holds numbers, and no code.

        Raises:
            InputError: there is none, it is damaged, or it is of a trainer that was built otherwise.
        """
        with self._lock:
            # The weights are read from the checkpoint: what an untrained network is initialised from has no effect.
            state = self._state or self._start(self._batch(*self._stand_in()))
            self._checkpoints(folder).restore(state)
            stream = state.stream
            try:
                if stream is None or (self._store is None) != (stream["replay"] is None):
                    raise ValueError("it does not say where the stream stands, or which examples are kept")
                if self._store is not None and stream["replay"] is not None:
                    self._store.load(stream["replay"], self._problem)
            except (ValueError, TypeError, AttributeError, RuntimeError) as error:
                raise InputError(f"{folder} holds no checkpoint of an on-line run: {error}.") from error
            self.position, self.n_seen = stream["position"], stream["n_seen"]
            self._state = state
            self._vitals.load(state.vitals)
        return self

    @staticmethod
    def is_saved(folder: Path | str) -> bool:
        """Whether the folder has a checkpoint to load."""
        return Checkpoints(Path(folder), {}).exists()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}  # no lock can be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=RLock())

    def _save_and_release(self, folder: Path | str, source: Arrivals) -> None:
        self.save(folder)
        source.release(self.position)

    def _checkpoints(self, folder: Path | str) -> Checkpoints:
        return Checkpoints(Path(folder), self._identity)

    def _batch(self, images: Tensor, labels: Tensor, index: Tensor) -> Batch:
        """What the roles see of the rows in this step: they are a data set of which every row is drawn."""
        every = EveryRow(labels)
        stream = ImageStream(
            Dataset(images, every.shows_label.long() - 1, ("labelled",)),  # 0 or -1: the labels are given below
            every,
            views=self.views,
            labelled_view=self.labelled_view,
            normalise=self._normalise,
            seed=self.seed,
            device=self.device,
        )
        return replace(stream[self.n_steps], labels=labels.to(self.device), index=index.to(self.device))

    def _stand_in(self) -> Rows:
        images = torch.rand(8, *self._problem.input_shape, generator=generator(self.seed, "stand-in"))
        return images, torch.full((8, *self._problem.label_shape), UNLABELLED), torch.arange(8)

    def _start(self, batch: Batch | None) -> TrainState:
        state = start(
            self._student,
            self.method,
            self.optim,
            {} if batch is None else {0: batch},
            normalise=self._normalise,
            problem=self._problem,
            seed=self.seed,
            device=self.device,
        )
        if any(tensor.numel() == 0 for tensor in state.memory.state_dict().values()):
            name = type(self.method).__name__
            raise InputError(f"{name} keeps something about every example of a stream without end. Use MeanTeacher.")
        return state


def _digest(*parts: object) -> str:
    """Sixteen hex digits of what a trainer is built of: a checkpoint of another is refused."""
    return hashlib.sha256(json.dumps([_described(part) for part in parts]).encode()).hexdigest()[:16]


def _described(part: object) -> Any:
    if isinstance(part, nn.Module):
        return [type(part).__name__, {name: list(value.shape) for name, value in part.state_dict().items()}]
    if isinstance(part, TorchOptim):
        return _described(part.factory)
    if isinstance(part, partial):
        return [
            _described(part.func),
            *map(_described, part.args),
            {k: _described(v) for k, v in part.keywords.items()},
        ]
    try:
        return describe(part)
    except TypeError:
        return type(part).__qualname__  # an object without fields to compare
