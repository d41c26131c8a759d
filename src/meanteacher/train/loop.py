"""The training loop: batch, costs, gradient, optimiser, average; logging, evaluation and checkpoints."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, DivergedError, InitialisesFromData, Method, Problem, StepOutput, Stream
from meanteacher.distributed import ALONE, Ranks, step_of
from meanteacher.passes import to_channels_last
from meanteacher.records import Alarm, Evaluation
from meanteacher.seeding import generator, isolated_global_randomness, seed_global
from meanteacher.train import parallel
from meanteacher.train.callbacks import Callback, LogEntry
from meanteacher.train.checkpoint import Checkpoints, Keeper, TrainState, trained_parameters
from meanteacher.train.execution import DEFAULT, RunOptions, autocast, gradient_scaler
from meanteacher.train.optim import OptimSpec
from meanteacher.train.vitals import READ_EVERY, Vitals


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
    ranks: Ranks = ALONE,
) -> TrainState:
    """The state before the first step, student and memory on the device. Of several processes all have rank 0's."""
    student.to(device).train()
    for parameter in student.parameters():
        parameter.data = to_channels_last(parameter.data)
    with isolated_global_randomness():
        if isinstance(student, InitialisesFromData) and ranks.is_first:
            seed_global(seed, "initialise")
            student.initialise_from(stream[0].views["student"])
        ranks.broadcast_([*student.parameters(), *student.buffers()], "sharing the first weights")
        seed_global(seed, "memory")  # a method may have weights of its own, for instance a generator
        memory = method.init(student, problem).to(device).train()
    return TrainState(student, memory, normalise, optim.build(trained_parameters(student, memory)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often a run evaluates, logs and saves. It does all three at its end, too."""

    evaluate: int
    """Steps. Each evaluation also saves a checkpoint."""
    log: int = READ_EVERY
    """Steps."""
    save_seconds: float = 300
    """The most that a crash can cost if evaluations are far apart."""


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
    options: RunOptions = DEFAULT,
    ranks: Ranks = ALONE,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    skip_to: Callable[[int], int] | None = None,
) -> bool:
    """Train from `state.step` to `steps`, in place.

    Step t is a function of the state and t alone, so where a run was interrupted cannot be seen in its weights.

    A run that is short of time leaves steps out: `skip_to` is given the step that is due and returns it, or a later
    one. Every schedule then still reaches its end, in fewer steps, and the last step is always taken.

    With several processes all take the same steps, none left out: one of them stops all. Rank 0 alone calls the
    callbacks and saves. All have the same state after every step.

    Returns:
        Whether the run is complete, by its steps or by a callback's `is_satisfied`; False when a callback's
        `should_stop` ended it, with a checkpoint of where it was.

    Raises:
        DivergedError: a cost or a weight is no longer finite. The last checkpoint is older and intact.
    """
    if state.vitals:
        vitals.load(state.vitals)
    log = Log(callbacks if ranks.is_first else ())
    keeper = Keeper(state, vitals, checkpoints, ranks, every.save_seconds)
    engine = parallel.engine(trained_parameters(state.student, state.memory), ranks)
    with isolated_global_randomness():
        while state.step < steps:
            due = state.step
            if skip_to is not None:
                state.step = max(due, min(skip_to(due), steps - 1))
                state.skipped += state.step - due
            batch = parallel.agreed_batch(stream[state.step], ranks)
            logs = _passes(due, state.step + 1, every.log)
            output, alarms = take_step(
                state,
                method,
                optim,
                batch,
                seed=seed,
                vitals=vitals,
                reads=logs,
                options=options,
                ranks=ranks,
                engine=engine,
            )
            log.add(output, alarms)
            complete = state.step == steps
            evaluates = complete or _passes(due, state.step, every.evaluate)
            stops, overdue = keeper.agree(not complete and any(callback.should_stop() for callback in callbacks))
            if logs or evaluates or stops:
                log.close(state.step, state.optimizer.param_groups[0]["lr"])
            if evaluates or stops or overdue:
                if evaluates:
                    with autocast(options.precision, batch.labels.device):
                        state.curve.append(evaluate(state))
                    log.evaluated(state.curve[-1])
                keeper.save()
                log.restart()
            if evaluates and not complete and keeper.agree(any(callback.is_satisfied() for callback in callbacks))[0]:
                return True
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
    options: RunOptions = DEFAULT,
    ranks: Ranks = ALONE,
    engine: parallel.Step = lambda compute: compute(),
) -> tuple[StepOutput, list[Alarm]]:
    """Step `state.step` on this batch, in place: costs, gradient, optimiser, average. Draws from the global generator.

    With `reads` the vitals read what is cheap; they do so by themselves if they read the gradients. What is returned
    are the method's output and the alarms of this step. If gradients overflow in float16, neither the student nor the
    memory changes, and the step is counted.
    """
    step, n_rows, device = state.step, len(batch.labels), batch.labels.device
    parallel.seed_networks(seed, step, ranks)
    optim.set_step(state.optimizer, step)
    trained = trained_parameters(state.student, state.memory)
    scaler = gradient_scaler(options.precision, device, state.scaler)
    scale = scaler.get_scale()
    outputs: list[StepOutput] = []
    alarms = []

    def compute() -> Tensor:
        with (
            autocast(options.precision, device),
            parallel.whole_batches(state, method, ranks, options.micro_batch) as (student, memory),
            parallel.explained(method, n_rows, ranks),
        ):
            outputs.append(method.forward(student, memory, batch, step))
        return outputs[0].total

    with (
        step_of(ranks, n_rows, generator(seed, "network noise", step, device)),
        parallel.averaged_statistics(state, ranks),
    ):
        total = engine(compute)
        output = outputs[0]
        if gradients_too := vitals.reads_gradients(step):
            parallel.check_costs(output, ranks)
            alarms += vitals.read_gradients(step, output.costs, state.student, trained, batch.labels, ranks, scale)
        state.optimizer.zero_grad(set_to_none=True)
        with ranks.waiting(f"averaging the gradients of step {step}", computes=True):
            scaler.scale(total).backward()
    scaler.unscale_(state.optimizer)
    scaler.update()
    overflowed = scaler.get_scale() < scale
    state.overflows += overflowed
    state.scaler = scaler.state_dict()
    try:
        if not overflowed:
            # GradScaler.step would call a fused optimiser in any case, and SGD then takes its momentum from anywhere.
            state.optimizer.step()
            method.after_step(state.student, state.memory, batch, output, step)
    except DivergedError as error:
        spoiled = [f"'{name}'" for name, cost in output.costs.items() if not bool(cost.value.isfinite())]
        if not spoiled:
            raise
        raise DivergedError(f"The cost {' and '.join(spoiled)} is not finite in step {step}. {error}") from error
    state.step += 1
    vitals.note_labels(batch)
    if (reads or gradients_too) and not overflowed:
        alarms += vitals.read(step, output.costs, state.student, state.predictor(method), output.logits)
    return output, alarms


class Log:
    """Sums over the steps since the last log entry, and the callbacks that receive the entries.

    The sums stay on the device: reading one in every step would stall it.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._costs: dict[str, Tensor] = {}
        self._weights: dict[str, float | Tensor] = {}
        self._clear()

    def add(self, output: StepOutput, alarms: Sequence[Alarm]) -> None:
        """Count a step, and report its alarms."""
        self._steps += 1
        self._images += len(output.logits)
        self._weights = {name: cost.weight for name, cost in output.costs.items() if cost.weight is not None}
        for name, cost in output.costs.items():
            value = cost.value.detach()
            self._costs[name] = self._costs[name] + value if name in self._costs else value
        for alarm in alarms:
            for callback in self._callbacks:
                callback.on_alarm(alarm)

    def close(self, step: int, learning_rate: float) -> None:
        """Report the means, which have to be finite, and begin the next entry."""
        means = {name: float(total) / self._steps for name, total in self._costs.items()}
        for name, mean in means.items():
            if not math.isfinite(mean):
                raise DivergedError(
                    f"The cost '{name}' is {mean} within the {self._steps} steps before step {step}. Likely "
                    "cause: the learning rate or a cost's weight is too large; lower it or ramp it up slowly."
                )
        seconds = max(time.perf_counter() - self._began, 1e-9)
        entry = LogEntry(
            step=step,
            costs=means,
            weights={name: float(weight) for name, weight in self._weights.items()},
            learning_rate=learning_rate,
            images_per_second=self._images / seconds,
            seconds_per_step=seconds / self._steps,
        )
        self._clear()
        for callback in self._callbacks:
            callback.on_log(entry)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Report an evaluation."""
        for callback in self._callbacks:
            callback.on_evaluation(evaluation)

    def restart(self) -> None:
        """Begin to measure the time of the next entry anew: evaluations and checkpoints do not count."""
        self._began = time.perf_counter()

    def _clear(self) -> None:
        self._steps = self._images = 0
        self._costs = {}
        self.restart()
