"""The training loop: batch, costs, gradient, optimiser, average; logging, evaluation and checkpoints."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, DivergedError, InitialisesFromData, Method, Problem, StepOutput, Stream
from meanteacher.distributed.ranks import ALONE, Ranks
from meanteacher.distributed.rows import step_of
from meanteacher.passes import to_channels_last
from meanteacher.records import Alarm, Evaluation
from meanteacher.seeding import isolated_global_randomness, seed_global
from meanteacher.train.callbacks import Callback, Callbacks, LogEntry
from meanteacher.train.checkpoint import Checkpoints, TrainState, trained_parameters
from meanteacher.train.compile import Speed, autocast
from meanteacher.train.optim import OptimSpec
from meanteacher.train.parallel import agreed_batch, keep_own_buffers, merge_buffers, put_back, whole_batches
from meanteacher.train.vitals import Vitals

_DEFAULT = Speed()


def start(
    student: nn.Module,
    method: Method,
    optim: OptimSpec,
    stream: Stream,
    *,
    normalise: nn.Module,
    problem: Problem,
    seed: int,
    device: torch.device | str = "cpu",
) -> TrainState:
    """The state before the first step, student and memory on the device."""
    student.to(device).train()
    for parameter in student.parameters():
        parameter.data = to_channels_last(parameter.data)
    with isolated_global_randomness():
        if isinstance(student, InitialisesFromData):
            seed_global(seed, "initialise")
            student.initialise_from(stream[0].views["student"])
        seed_global(seed, "memory")  # a method may have weights of its own, for instance a generator
        memory = method.init(student, problem).to(device).train()
    return TrainState(student, memory, normalise, optim.build(trained_parameters(student, memory)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often a run evaluates, logs and saves. It does all three at its end, too."""

    evaluate: int
    """Steps. Each evaluation also saves a checkpoint."""
    log: int = 10
    """Steps."""
    save_seconds: float = 300
    """The most that a crash can cost where evaluations are far apart."""


def train(
    state: TrainState,
    method: Method,
    optim: OptimSpec,
    stream: Stream,
    *,
    steps: int,
    seed: int,
    vitals: Vitals,
    evaluate: Callable[[TrainState], Evaluation],
    every: Intervals,
    speed: Speed = _DEFAULT,
    ranks: Ranks = ALONE,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    skip_to: Callable[[int], int] | None = None,
) -> bool:
    """Train from `state.step` to `steps`, in place.

    Step t is a function of the state and t alone, so where a run was interrupted cannot be seen in its weights.

    A run that is short of time leaves steps out: `skip_to` is given the step that is due and returns it, or a later
    one. Every schedule then still reaches its end, in fewer steps, and the last step is always taken.

    With several processes all take the same steps: one of them stops all, and rank 0 says which steps are left out. It
    alone calls the callbacks and saves. Batch statistics are merged for evaluations and checkpoints, and at the end.

    Returns:
        Whether the run is complete; False when `should_stop` ended it, with a checkpoint of where it was.

    Raises:
        DivergedError: a cost or a weight is no longer finite. The last checkpoint is older and intact.
    """
    if state.vitals:
        vitals.load(state.vitals)
    if not state.processes or state.processes[-1][1] != ranks.size:
        state.processes.append((state.step, ranks.size))
    everyone = Callbacks(callbacks if ranks.is_first else ())
    began = time.perf_counter() - state.seconds
    cpu_began, cpu_before = time.process_time(), state.cpu_seconds
    saved = time.perf_counter()
    window = _Window()
    with isolated_global_randomness():
        while state.step < steps:
            due = state.step
            if skip_to is not None:
                (wanted,) = ranks.agree(skip_to(due) if ranks.is_first else 0, doing=f"beginning step {due}")
                state.step = max(due, min(wanted, steps - 1))
                state.skipped += state.step - due
            logs = _passes(due, state.step + 1, every.log)
            batch = agreed_batch(stream[state.step], ranks)
            output, alarms = take_step(
                state, method, optim, batch, seed=seed, vitals=vitals, reads=logs, speed=speed, ranks=ranks
            )
            window.add(output)
            for alarm in alarms:
                everyone.on_alarm(alarm)
            complete = state.step == steps
            evaluates = complete or _passes(due, state.step, every.evaluate)
            stops, overdue = ranks.agree(
                not complete and should_stop(),
                time.perf_counter() - saved > every.save_seconds,
                doing=f"ending step {due}",
            )
            keeps = evaluates or stops or overdue
            own = merge_buffers(state, ranks) if keeps else {}
            if logs or evaluates or stops:
                everyone.on_log(window.close(state.step, state.optimizer.param_groups[0]["lr"]))
            if evaluates:
                state.curve.append(evaluate(state))
                everyone.on_evaluation(state.curve[-1])
            if keeps:
                saved = time.perf_counter()
                state.seconds = saved - began
                state.cpu_seconds = cpu_before + sum(
                    ranks.gather(time.process_time() - cpu_began, f"saving step {state.step}")
                )
                state.vitals = vitals.state()
                check_weights(state)
                keep_own_buffers(state, own, ranks)
                if checkpoints is not None and ranks.is_first:
                    checkpoints.save(state)
                if not complete:
                    put_back(state, own)
                window.began = time.perf_counter()  # evaluations do not count
            if stops:
                return False
    return True


def _passes(due: int, step: int, every: int) -> bool:
    """Whether a multiple of `every` lies above `due` and not above `step`."""
    return step // every > due // every


def take_step(
    state: TrainState,
    method: Method,
    optim: OptimSpec,
    batch: Batch,
    *,
    seed: int,
    vitals: Vitals,
    reads: bool,
    speed: Speed = _DEFAULT,
    ranks: Ranks = ALONE,
) -> tuple[StepOutput, list[Alarm]]:
    """Step `state.step` on this batch: costs, gradient, optimiser, average. Draws from the global generator.

    Args:
        state: of the run, changed in place
        method: that is trained
        optim: that `state.optimizer` was built by
        batch: of this step
        seed: of the networks' noise
        vitals: told about the step
        reads: whether they also read what is cheap; they do so by themselves where they read the gradients
        speed: how the networks compute
        ranks: the processes that share the batch

    Returns:
        What the method computed, and the alarms of this step.
    """
    step = state.step
    seed_global(seed, "network noise", step)
    optim.set_step(state.optimizer, step)
    trained = trained_parameters(state.student, state.memory)
    alarms = []
    with step_of(ranks, len(batch.labels), synchronised=speed.sync_batch_norm):
        with (
            autocast(speed.precision, batch.labels.device),
            whole_batches(state, method, ranks, speed.micro_batch) as (student, memory),
        ):
            output = method.forward(student, memory, batch, step)
        if gradients_too := vitals.reads_gradients(step):
            alarms += vitals.read_gradients(step, batch, output, trained, ranks)
        state.optimizer.zero_grad(set_to_none=True)
        output.total.backward()
    ranks.average_([p.grad for p in trained if p.grad is not None], f"averaging the gradients of step {step}")
    state.optimizer.step()
    method.after_step(state.student, state.memory, batch, output, step)
    state.step += 1
    vitals.note_labels(batch)
    if reads or gradients_too:
        alarms += vitals.read(step, batch, output, state.student, state.predictor(method))
    return output, alarms


@dataclass(slots=True, eq=False)
class _Window:
    """Sums since the last log entry. They stay on the device: reading one in every step would stall it."""

    steps: int = 0
    images: int = 0
    costs: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    def add(self, output: StepOutput) -> None:
        self.steps += 1
        self.images += len(output.logits)
        self.weights = {name: cost.weight for name, cost in output.costs.items() if cost.weight is not None}
        for name, cost in output.costs.items():
            value = cost.value.detach()
            self.costs[name] = self.costs[name] + value if name in self.costs else value

    def close(self, step: int, learning_rate: float) -> LogEntry:
        means = {name: float(total) / self.steps for name, total in self.costs.items()}
        for name, mean in means.items():
            if not math.isfinite(mean):
                raise DivergedError(
                    f"The cost '{name}' is {mean} within the {self.steps} steps before step {step}. Likely "
                    "cause: the learning rate or a cost's weight is too large; lower it or ramp it up slowly."
                )
        seconds = max(time.perf_counter() - self.began, 1e-9)
        entry = LogEntry(
            step=step,
            costs=means,
            weights={name: float(weight) for name, weight in self.weights.items()},
            learning_rate=learning_rate,
            images_per_second=self.images / seconds,
            seconds_per_step=seconds / self.steps,
        )
        self.steps, self.images, self.costs, self.began = 0, 0, {}, time.perf_counter()
        return entry


def check_weights(state: TrainState) -> None:
    """Refuse to save weights that are not finite: the checkpoint would replace a usable one."""
    for name, parameter in state.student.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DivergedError(
                f"The student's '{name}' is no longer finite at step {state.step}. Likely cause: the "
                "learning rate is too large; lower it or ramp it up more slowly."
            )


class Pace:
    """Chooses the next step of a run so that it ends in time: the one that is due, or a later one.

    While the run is in time no step is skipped, and its weights do not depend on the clock. Once it is late, the steps
    ahead are thinned out until there is time for those that remain, so that the schedules still reach their ends.
    """

    _RECENT = 16
    """Steps that the speed is estimated from. Only the faster half counts: an evaluation, or a reading of the vitals,
    does not make a run late."""
    _FAR_OFF = 4.0

    def __init__(
        self, *, steps: int, seconds_per_step: float, ends: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.steps, self.planned, self.ends, self.clock = steps, seconds_per_step, ends, clock
        self.last_step_began: float | None = None
        self._recent: deque[float] = deque(maxlen=self._RECENT)

    def __call__(self, due: int) -> int:
        now = self.clock()
        if self.last_step_began is not None:
            self._recent.append(now - self.last_step_began)
        self.last_step_began = now
        possible = (self.ends - now) / self._seconds_per_step()
        left = self.steps - due
        if possible >= left:
            return due
        return due + math.ceil(left / max(possible, 1.0)) - 1

    def _seconds_per_step(self) -> float:
        faster_half = sorted(self._recent)[: max(1, len(self._recent) // 2)]
        if len(self._recent) >= self._RECENT // 2:
            return fmean(faster_half)
        # The first steps are slower than most, but not by so much.
        return faster_half[0] if faster_half and faster_half[0] > self._FAR_OFF * self.planned else self.planned
