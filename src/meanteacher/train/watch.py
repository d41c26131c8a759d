"""The vitals in anybody's loop, and an audit that trains once more without the consistency cost."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from meanteacher.core import Cost, InputError
from meanteacher.formats import count, percent, points
from meanteacher.records import Alarm
from meanteacher.stats import Interval, mean_interval
from meanteacher.train.vitals import READ_EVERY, Vitals


class Watch:
    """Checks that a teacher in a loop of your own is alive. Each alarm is a warning that names the likely cause.

    It reads at steps 0, 1, 2, 4, 8 …, every tenth step a little, and changes no weight. Reading the gradients takes one
    more backward pass per cost.

    Args:
        student: the network that the optimiser moves
        teacher: the network that averages it and is evaluated: an `mt.Teacher`, or any module with the same parameters
        trained: what the costs train, if that is more than the student's parameters, such as a generator's
        raise_on: kinds of alarms, of `Watch.KINDS`, that are a RuntimeError instead of a warning

    Raises:
        InputError: teacher and student have different parameters, or a kind is none of `Watch.KINDS`.

    >>> from meanteacher import Teacher
    >>> student = nn.Linear(2, 3)
    >>> teacher, optimizer = Teacher(student), torch.optim.SGD(student.parameters(), lr=0.1)
    >>> watch = Watch(student, teacher, raise_on=Watch.KINDS)                                      # 1
    >>> for _ in range(3):
    ...     logits = student(torch.randn(8, 2))
    ...     costs = {"consistency": (logits - teacher(torch.randn(8, 2))).square().mean()}
    ...     watch.before_backward(costs)                                                            # 2
    ...     optimizer.zero_grad()
    ...     sum(costs.values()).backward()
    ...     optimizer.step()
    ...     teacher.update(student)
    ...     watch.after_step()                                                                      # 3
    >>> watch.alarms
    ()
    """

    KINDS: ClassVar[tuple[str, ...]] = (
        "dead-cost",
        "early-update",
        "resting-cost",
        "stale-teacher",
        "still-student",
        "student-in-evaluation",
        "teacher-gradient",
        "teacher-is-student",
    )
    """The kinds of alarms. That of a cost ends with its name: dead-cost/consistency."""

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        *,
        trained: Iterable[nn.Parameter] | None = None,
        raise_on: Collection[str] = (),
    ) -> None:
        if unknown := [kind for kind in raise_on if kind not in self.KINDS]:
            raise InputError(f"There is no alarm {unknown[0]!r}. raise_on takes kinds of: {', '.join(self.KINDS)}.")
        shapes = [[list(p.shape) for p in network.parameters()] for network in (student, teacher)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"The student has {count(len(shapes[0]), 'parameter')}, and the teacher's {len(shapes[1])} are not of "
                "the same shapes. Give the teacher of this student, or the part of the student that it averages."
            )
        self.student, self.raise_on = student, tuple(raise_on)
        # A module of its own: a predictor that is the student itself is a method without an average to the vitals.
        self.teacher = nn.ModuleList([teacher])
        self._trained = list(student.parameters() if trained is None else trained)
        self._trained = [p for p in self._trained if p.requires_grad]
        pairs = zip(student.parameters(), teacher.parameters(), strict=True)
        self._is_shared = any(a.data_ptr() == b.data_ptr() for a, b in pairs)
        self._vitals = Vitals(None)
        self._step = 0
        self._costs: dict[str, Cost] | None = None
        self._hook: Any = None

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms so far; each kind occurs once."""
        return tuple(self._vitals.alarms)

    def before_backward(self, costs: Mapping[str, Tensor | Cost]) -> None:
        """Read the costs of a step, each with its weight in it, after the passes and before `backward`.

        If gradients are accumulated over several batches, the first one of each step is read.
        """
        if self._costs is not None or not self._reads():
            return
        self._costs = {name: cost if isinstance(cost, Cost) else _as_cost(cost) for name, cost in costs.items()}
        if self._vitals.reads_gradients(self._step):
            self._report(self._vitals.read_gradients(self._step, self._costs, self.student, self._trained))
        if not self._is_shared:
            self._vitals.note_teacher(self.teacher)
            self._hook = register_optimizer_step_post_hook(self._after_optimizer)

    def after_step(self) -> None:
        """Read the weights, after the step of the optimiser and the update of the teacher."""
        self._unhook()
        if self._reads():
            costs, self._costs = self._costs or {}, None
            self._report(self._vitals.read(self._step, costs, self.student, self.teacher))
        self._step += 1

    def _reads(self) -> bool:
        return self._vitals.reads_gradients(self._step) or self._step % READ_EVERY == 0

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) in moved for p in self.student.parameters()):
            self._unhook()
            self._report(self._vitals.check_order(self._step, self.teacher))

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _report(self, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            sentence = f"Step {alarm.step}, {alarm.kind}: {alarm.sentence}"
            if alarm.kind.partition("/")[0] in self.raise_on:
                self._unhook()
                raise RuntimeError(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def _as_cost(value: Tensor) -> Cost:
    """A cost whose weight is not known. One of exactly zero is inactive, as before a ramp-up, if it has a path."""
    return Cost(value, float(bool(value.detach() != 0)) if value.requires_grad else None)


@dataclass(frozen=True, slots=True)
class Audit:
    """The errors of a loop with its consistency cost and without it, and what the vitals say. It prints as sentences.

    >>> print(Audit(errors=(0.12, 0.11, 0.13), control=(0.12, 0.13, 0.11), alarms=()))
    The control did as well: the error is 12.0 % with the consistency cost and 12.0 % without it, ...
    """

    errors: tuple[float, ...]
    """Error of each seed with the consistency cost."""
    control: tuple[float, ...]
    """Error of the same seed without it."""
    alarms: tuple[Alarm, ...]
    """Alarms of the runs with the consistency cost, each kind once."""

    @property
    def gain(self) -> Interval:
        """By how much the consistency cost lowers the error, paired by seed, with its 95 % interval."""
        return mean_interval([without - own for own, without in zip(self.errors, self.control, strict=True)])

    def __str__(self) -> str:
        gain = self.gain
        verdict = "The control did better" if gain.high < 0 else "The control did as well"
        if gain.low > 0:
            verdict = "The consistency cost helps"
        sentence = (
            f"{verdict}: the error is {percent(fmean(self.errors))} with the consistency cost and "
            f"{percent(fmean(self.control))} without it, a gain of {points(100 * gain.value)} points (95 % "
            f"interval {points(100 * gain.low)} to {points(100 * gain.high)}) over {len(self.errors)} seeds."
        )
        alarms = [f"Alarm at step {alarm.step}, {alarm.kind}: {alarm.sentence}" for alarm in self.alarms]
        return "\n".join([sentence, *alarms])


def audit(train: Callable[[int, float], tuple[float, Watch]], *, seeds: int = 3) -> Audit:
    """Run your loop with its consistency cost and, as a control, without it, and say whether the control did as well.

    Args:
        train: a function of (seed, factor) that trains new networks, with the consistency cost multiplied by the
            factor, and returns the teacher's error, a share, and the `Watch` of its loop
        seeds: runs of each kind, with the seeds 0, 1, …

    Raises:
        InputError: seeds is below 2, which gives no interval.

    >>> def train(seed, factor):
    ...     network = nn.Linear(1, 1)
    ...     return 0.2 - 0.1 * factor + 0.001 * seed, Watch(network, nn.Linear(1, 1))
    >>> print(audit(train))
    The consistency cost helps: the error is 10.1 % with the consistency cost and 20.1 % without it, ...
    """
    if seeds < 2:
        raise InputError(f"An interval needs at least 2 seeds, got seeds={seeds}. Usual are 3 to 10.")
    errors, alarms = [], dict[str, Alarm]()
    for seed in range(seeds):
        error, watch = train(seed, 1.0)
        errors.append(error)
        for alarm in watch.alarms:
            alarms.setdefault(alarm.kind, alarm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the consistency cost of a control trains nothing
        control = [train(seed, 0.0)[0] for seed in range(seeds)]
    return Audit(tuple(errors), tuple(control), tuple(alarms.values()))
