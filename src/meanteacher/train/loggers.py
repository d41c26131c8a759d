"""Loggers: what a run tells its callbacks, sent to TensorBoard or to Weights & Biases.

Both libraries are extras. A logger writes nothing before the first event, so that of several processes only the one
that calls its callbacks opens a log.
"""

import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from meanteacher.core import MissingExtraError
from meanteacher.files import read_regular, write_atomic
from meanteacher.records import Alarm, Evaluation, RecordedRecipe
from meanteacher.train.callbacks import Callback, LogEntry

LoggerName = Literal["tensorboard", "wandb"]
"""What `--log` takes."""
_MAX_BYTES = 100
"""Largest size of a W&B run's identity, in bytes."""


class ScalarLogger(Callback, ABC):
    """Sends numbers and alarms, each with its step. Subclass it for a logger of your own.

    Whatever the library raises becomes one warning, and from then on nothing is sent: a logger never ends a run.

    >>> class Printed(ScalarLogger):
    ...     def send(self, step, numbers):
    ...         print(step, numbers)
    ...     def send_alarm(self, alarm):
    ...         print(alarm.sentence)
    >>> Printed().on_evaluation(Evaluation(step=10, part="test", student=0.25, teacher=0.2))
    10 {'error/test/student': 0.25, 'error/test/teacher': 0.2}
    """

    _failed = False

    @abstractmethod
    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send numbers by their names; names are grouped by a slash."""

    @abstractmethod
    def send_alarm(self, alarm: Alarm) -> None:
        """Send an alarm of the vitals."""

    def close(self) -> None:
        """End the log. Called at the end of a `with` block."""

    def on_log(self, entry: LogEntry) -> None:
        numbers = {
            **{f"cost/{name}": value for name, value in entry.costs.items()},
            **{f"weight/{name}": value for name, value in entry.weights.items()},
            "learning rate": entry.learning_rate,
            "images per second": entry.images_per_second,
        }
        self._guarded(lambda: self.send(entry.step, numbers))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        numbers = {
            f"error/{evaluation.part}/student": evaluation.student,
            f"error/{evaluation.part}/teacher": evaluation.teacher,
        }
        self._guarded(lambda: self.send(evaluation.step, numbers))

    def on_alarm(self, alarm: Alarm) -> None:
        self._guarded(lambda: self.send_alarm(alarm))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guarded(self.close)

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            act()
        except Exception as error:
            self._failed = True
            warnings.warn(
                f"{type(self).__name__} failed and is switched off; the run goes on ({type(error).__name__}: {error}). "
                "metrics.jsonl in the folder of the run has every number.",
                stacklevel=3,
            )


class TensorBoardLogger(ScalarLogger):
    """Writes event files for TensorBoard: `tensorboard --logdir FOLDER`. Needs the extra `tensorboard`.

    Every event is on the disk when the call returns. A resumed run hides what was written after its checkpoint.

    Args:
        folder: of the event files

    >>> from tempfile import mkdtemp
    >>> from pathlib import Path
    >>> folder = mkdtemp()
    >>> with TensorBoardLogger(folder) as logger:
    ...     logger.on_evaluation(Evaluation(step=10, part="test", student=0.25, teacher=0.2))
    >>> len(list(Path(folder).iterdir()))
    1
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        _check_installed("tensorboard")
        self.folder = folder
        self._writer: Any = None

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        writer = self._opened(step)
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def send_alarm(self, alarm: Alarm) -> None:
        writer = self._opened(alarm.step)
        writer.add_text(f"alarm/{alarm.kind}", alarm.sentence, alarm.step)
        writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _opened(self, step: int) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder, purge_step=step)
        return self._writer


class WandbLogger(ScalarLogger):
    """Sends a run to Weights & Biases. Needs the extra `wandb`.

    Where it sends, and as whom, is wandb's own matter: `wandb login`, or WANDB_MODE=offline to write files alone.

    Args:
        project: that the run appears in
        folder: of the run. The identity of its W&B run is kept there, so that a resumed run continues its own
        options: of `wandb.init`, such as `name`, `dir` or `mode`; `config` has the fields of the recipe if it is not
            given

    Example: `logger = mt.WandbLogger("digits", folder="runs/mine", mode="offline")`
    """

    def __init__(
        self, project: str = "meanteacher", *, folder: str | PathLike[str] | None = None, **options: Any
    ) -> None:
        _check_installed("wandb")
        self.options = {"project": project, **options}
        self._identity = None if folder is None else Path(folder) / "wandb-id.txt"
        self._run: Any = None

    def on_start(self, recipe: RecordedRecipe, seed: int) -> None:
        self.options.setdefault("config", {"recipe": recipe.fields, "seed": seed, "fingerprint": recipe.fingerprint})

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        # As a number of its own: wandb drops what has a smaller step than before, as a resumed run may have.
        self._opened().log({"step": step, **numbers})

    def send_alarm(self, alarm: Alarm) -> None:
        self._opened().alert(title=f"{alarm.kind} at step {alarm.step}", text=alarm.sentence)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _opened(self) -> Any:
        if self._run is None:
            import wandb

            self._run = wandb.init(**self._continued(), **self.options)
            self._run.define_metric("*", step_metric="step")
        return self._run

    def _continued(self) -> dict[str, str]:
        """The identity of the run's W&B run, which is made at its first start."""
        if self._identity is None:
            return {}
        try:
            identity = read_regular(self._identity, _MAX_BYTES).decode()
        except FileNotFoundError:
            identity = secrets.token_hex(8)
            write_atomic(self._identity, identity)
        return {"id": identity, "resume": "allow"}


def _check_installed(library: str) -> None:
    """Check before the run, when nothing is lost."""
    if find_spec(library) is None:
        raise MissingExtraError(f"A log in {library}", library, extra=library)
