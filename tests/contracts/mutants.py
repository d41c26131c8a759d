"""Ways in which semi-supervised code is silently wrong in practice, each as a change to the real code.

Every one of them trains without an error and prints plausible numbers. Most were shipped by somebody. Show which check
catches which with: make mutants
"""

import dataclasses
from contextlib import nullcontext
from importlib import import_module

import fit_mutants
import head_mutants
import number_mutants
import other_mutants
import pytest
import recipe_mutants
import report_mutants
import stream_mutants
import torch
import torch.nn.functional as F
import use_mutants
from catalogue import Catalogue, Patch, replace, wrap
from torch import Tensor

from meanteacher import costs, evaluate, passes, schedules, seeding, teacher
from meanteacher.core import UNLABELLED, Batch, Cost, StepOutput
from meanteacher.data import split
from meanteacher.data.split import Split
from meanteacher.data.stream import ImageStream
from meanteacher.experiment.prepared import Prepared
from meanteacher.methods import consistency, mean_teacher, pi_model, pseudo_label, supervised, temporal_ensembling, vat
from meanteacher.teacher import Teacher
from meanteacher.train import AdamSpec, TrainState, checkpoint, parallel
from meanteacher.views import Flip, Noise, PerChannel, Translate

MUTANTS = Catalogue()
mutant = MUTANTS.of("training")


# --- the consistency cost ---------------------------------------------------------------------------------------------


@mutant
def consistency_compares_the_teacher_with_itself(patch: Patch) -> None:
    def wrong(real, self, logits, consistency_logits, target, *rest, **options):
        return real(self, logits, target, target, *rest, **options)

    wrap(patch, consistency.ConsistencyMethod.step_output, wrong)


@mutant
def student_is_detached_in_the_consistency_cost(patch: Patch) -> None:
    wrap(patch, costs.softmax_mse, lambda real, s, t, rows=None, **options: real(s.detach(), t, rows, **options))


@mutant
def whole_consistency_is_computed_without_gradient(patch: Patch) -> None:
    wrap(patch, costs.Mse.__call__, lambda real, *given: torch.no_grad()(real)(*given))


@mutant
def consistency_weight_is_off_by_the_class_count(patch: Patch) -> None:
    def wrong(s, t, rows=None, class_axis=None):
        return costs._mean((s.softmax(1) - t.softmax(1)).square().sum(1), rows)

    patch.setattr(costs, "softmax_mse", wrong)


@mutant
def divergence_is_taken_the_other_way_round(patch: Patch) -> None:
    wrap(patch, costs.kl_divergence, lambda real, s, t, rows=None, **options: real(t, s, rows, **options))


@mutant
def consistency_ignores_which_rows_it_applies_to(patch: Patch) -> None:
    patch.setattr(consistency.ConsistencyMethod, "consistency_rows", lambda self, batch, rows=None: None)


@mutant
def second_side_of_the_pi_model_is_stopped(patch: Patch) -> None:
    real = consistency.ConsistencyMethod.step_output

    def wrong(self, logits, consistency_logits, target, batch, step, rows=None):
        return real(self, logits, consistency_logits, target.detach(), batch, step, rows)

    patch.setattr(pi_model.PiModel, "step_output", wrong)


@mutant
def ramp_never_rises(patch: Patch) -> None:
    wrap(patch, schedules.SigmoidRampUp.__call__, lambda real, self, step: real(self, 0))


@mutant
def ramp_counts_epochs_of_a_thousand_steps(patch: Patch) -> None:
    wrap(patch, schedules.SigmoidRampUp.__call__, lambda real, self, step: real(self, step // 1000))


@mutant
def ramp_down_is_one_minus_itself(patch: Patch) -> None:
    """As the paper prints it."""
    wrap(
        patch,
        schedules.SigmoidRampDown.__call__,
        lambda real, self, step: self.value + self.final - real(self, step),
    )


# --- the teacher ------------------------------------------------------------------------------------------------------


@mutant
def teacher_is_trained_by_gradient(patch: Patch) -> None:
    def wrong(real, self, student, **options):
        real(self, student, **options)
        self.network.requires_grad_()

    wrap(patch, Teacher.__init__, wrong)
    patch.setattr(Teacher, "forward", lambda self, x: self.network(x))


@mutant
def average_is_not_updated(patch: Patch) -> None:
    patch.setattr(Teacher, "update", lambda self, student, *, decay=None: None)


@mutant
def average_is_taken_before_the_step(patch: Patch) -> None:
    """The weights of the step before, one step late, as in a graph whose operations are not ordered."""

    def wrong(real, self, student, memory, batch, step):
        memory.update(student, decay=self.decay(step))
        return real(self, student, memory, batch, step)

    wrap(patch, mean_teacher.MeanTeacher.forward, wrong)
    patch.setattr(mean_teacher.MeanTeacher, "after_step", lambda self, *a: None)


@mutant
def decay_and_its_complement_are_swapped(patch: Patch) -> None:
    wrap(patch, teacher.warmed_up, lambda real, decay, updates: 1 - real(decay, updates))


@mutant
def average_keeps_its_random_start(patch: Patch) -> None:
    patch.setattr(teacher, "warmed_up", lambda decay, updates: decay)


@mutant
def teacher_shares_its_tensors_with_the_student(patch: Patch) -> None:
    patch.setattr(teacher, "copied", lambda network: network)


@mutant
def teacher_runs_in_evaluation_mode(patch: Patch) -> None:
    """Its batch statistics stay at their start, and its noise is gone."""

    def wrong(self, x):
        self.network.eval()
        with torch.no_grad():
            return self.network(x)

    patch.setattr(Teacher, "forward", wrong)


@mutant
def teacher_takes_the_students_statistics_whatever_was_said(patch: Patch) -> None:
    def wrong(real, self, student, *, decay):
        real(self, student, decay=decay)
        for ours, theirs in zip(self.network.buffers(), student.buffers(), strict=True):
            ours.copy_(theirs)

    wrap(patch, Teacher.update, wrong)


@mutant
def averaged_statistics_are_overwritten_by_the_teachers_own_pass(patch: Patch) -> None:
    patch.setattr(teacher, "untracked", lambda network, x, parameters=None: network(x))


@mutant
def teacher_keeps_the_students_precision(patch: Patch) -> None:
    """In bfloat16 a decay of 0.999 is rounded away."""
    patch.setattr(teacher, "at_least_float32", lambda tensor: tensor)


@mutant
def teachers_dropout_cannot_be_turned_off(patch: Patch) -> None:
    patch.setattr(teacher, "set_dropout", lambda network, rate: None)


@mutant
def student_is_evaluated_instead_of_the_teacher(patch: Patch) -> None:
    patch.setattr(supervised.TeacherMethod, "predictor", lambda self, student, memory: student)


# --- labels and batches -----------------------------------------------------------------------------------------------


@mutant
def hidden_labels_enter_the_batch(patch: Patch) -> None:
    def wrong(real, self, step):
        batch = real(self, step)
        return Batch(batch.views, self.dataset.labels[batch.index], batch.index)

    wrap(patch, ImageStream.__getitem__, wrong)


@mutant
def labelled_images_show_their_label_in_unlabelled_rows(patch: Patch) -> None:
    def wrong(real, self, step):
        index, shows = real(self, step)
        return index, shows | torch.isin(index, self.labelled.pool)

    wrap(patch, split._FixedSampler.draw, wrong)


@mutant
def labels_are_those_of_other_images(patch: Patch) -> None:
    """Shuffled once more on their way, as when images and labels are shuffled apart."""

    def wrong(real, self, step):
        batch = real(self, step)
        shown = (batch.labels != UNLABELLED).nonzero().flatten()
        labels = batch.labels.clone()
        labels[shown] = labels[shown.roll(1)]
        return Batch(batch.views, labels, batch.index)

    wrap(patch, ImageStream.__getitem__, wrong)


@mutant
def unlabelled_rows_count_as_class_zero(patch: Patch) -> None:
    def wrong(real, logits, labels, *rest, **options):
        return real(logits, labels.clamp_min(0), *rest, **options)

    wrap(patch, costs.classification_cost, wrong)


@mutant
def classification_is_divided_by_the_whole_batch(patch: Patch) -> None:
    def wrong(logits: Tensor, labels: Tensor, labelled_share: float | None = None, **options: object) -> Tensor:
        return F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum") / len(labels)

    patch.setattr(costs, "classification_cost", wrong)


@mutant
def batch_without_labels_gives_nan(patch: Patch) -> None:
    def wrong(logits: Tensor, labels: Tensor, labelled_share: float | None = None, **options: object) -> Tensor:
        return F.cross_entropy(logits, labels, ignore_index=UNLABELLED)

    replace(patch, costs.classification_cost, wrong)


@mutant
def validation_images_are_trained_on(patch: Patch) -> None:
    def wrong(real, self, size, split, seed):
        everyone = torch.cat([split.unlabelled, split.validation])
        real(self, size, Split(split.labelled, everyone, split.validation[:0]), seed)

    wrap(patch, split._MixedSampler.__init__, wrong)


@mutant
def every_pass_has_the_same_order(patch: Patch) -> None:
    patch.setattr(split, "generator", lambda seed, purpose, number=0: seeding.generator(seed, purpose))


# --- views ------------------------------------------------------------------------------------------------------------


@mutant
def both_roles_see_the_same_view(patch: Patch) -> None:
    patch.setattr(
        "meanteacher.data.stream.generator",
        lambda seed, purpose, step=0, device="cpu": seeding.generator(seed, "view", step, device),
    )


@mutant
def one_augmentation_is_drawn_for_the_whole_batch(patch: Patch) -> None:
    for view in (Translate, Flip, Noise):
        real = view.__call__

        def wrong(self, images, generator, real=real):
            state = generator.get_state()
            rows = []
            for image in images:
                generator.set_state(state)
                rows.append(real(self, image[None], generator))
            return torch.cat(rows)

        patch.setattr(view, "__call__", wrong)


# --- evaluation and saving --------------------------------------------------------------------------------------------


@mutant
def evaluation_happens_in_training_mode(patch: Patch) -> None:
    patch.setattr(evaluate, "evaluation_mode", lambda network: torch.no_grad())


@mutant
def predictions_come_in_another_order(patch: Patch) -> None:
    wrap(patch, evaluate.predict_logits, lambda real, *given, **options: real(*given, **options).flip(0))


@mutant
def optimiser_is_not_restored(patch: Patch) -> None:
    def wrong(real, self, state, *name):
        fresh = state.optimizer.state_dict()
        real(self, state, *name)
        state.optimizer.load_state_dict(fresh)

    wrap(patch, checkpoint.Checkpoints.restore, wrong)


@mutant
def noise_of_a_resumed_run_is_drawn_anew(patch: Patch) -> None:
    patch.setattr(parallel, "seed_networks", lambda seed, step, ranks: None)


# --- the other methods ------------------------------------------------------------------------------------------------


@mutant
def temporal_targets_of_unvisited_rows_shrink(patch: Patch) -> None:
    def wrong(self, momentum):
        self.average.mul_(momentum).add_(self.latest * self.visited[:, None], alpha=1 - momentum)
        self.n_updates += 1
        self.visited.zero_()

    patch.setattr(temporal_ensembling.EnsembleTable, "end_epoch", wrong)


@mutant
def temporal_targets_are_not_bias_corrected(patch: Patch) -> None:
    def wrong(self, index, momentum):
        return self.average[index].clamp_min(1e-30).log(), self.n_updates[index] > 0

    patch.setattr(temporal_ensembling.EnsembleTable, "target", wrong)


@mutant
def passes_of_vat_drop_different_units(patch: Patch) -> None:
    patch.setattr(passes.SameNoise, "again", lambda self: nullcontext())


@mutant
def extra_passes_of_vat_count_in_the_batch_statistics(patch: Patch) -> None:
    patch.setattr(vat, "untracked", lambda network, x, parameters=None: network(x))


@mutant
def smoothness_of_vat_is_detached(patch: Patch) -> None:
    def wrong(real, self, *given):
        output = real(self, *given)
        cost = output.costs[self.cost_name]
        return StepOutput({**output.costs, self.cost_name: Cost(cost.value.detach(), cost.weight)}, output.logits)

    wrap(patch, vat.Vat.forward, wrong)


@mutant
def threshold_of_fixmatch_is_ignored(patch: Patch) -> None:
    patch.setattr(pseudo_label.FixMatch, "thresholds", lambda self, memory, guess: torch.zeros(len(guess)))


@mutant
def decay_schedule_is_read_only_at_step_0(patch: Patch) -> None:
    patch.setattr(supervised, "as_schedule", lambda decay: schedules.Constant(schedules.as_schedule(decay)(0)))


@mutant
def threshold_is_applied_to_the_sharpened_target(patch: Patch) -> None:
    def wrong(real, student, target, *, temperature=1.0, **options):
        return real(student, target / temperature, **options)

    wrap(patch, costs.confident_cross_entropy, wrong)


@mutant
def sharpened_target_is_trained(patch: Patch) -> None:
    def wrong(real, student, target, *, temperature=1.0, **options):
        value = real(student, target, temperature=temperature, **options)
        through_target = -((target / temperature).softmax(1) * student.detach().log_softmax(1)).sum(1).mean()
        return value + through_target - through_target.detach()

    wrap(patch, costs.confident_cross_entropy, wrong)


# --- a run and its record ---------------------------------------------------------------------------------------------

of_runs = MUTANTS.of("runs")


def _restored_with(patch: Patch, field: str, value: object) -> None:
    """A run that is resumed has lost something."""

    def wrong(real, self, state, *name):
        real(self, state, *name)
        setattr(state, field, value)

    wrap(patch, checkpoint.Checkpoints.restore, wrong)


@of_runs
def time_before_an_interruption_is_lost(patch: Patch) -> None:
    _restored_with(patch, "seconds", 0.0)


@of_runs
def processor_time_before_an_interruption_is_lost(patch: Patch) -> None:
    _restored_with(patch, "cpu_seconds", 0.0)


@of_runs
def curve_before_an_interruption_is_lost(patch: Patch) -> None:
    _restored_with(patch, "curve", [])


@of_runs
def learning_rate_schedule_is_read_only_at_step_0(patch: Patch) -> None:
    wrap(patch, AdamSpec.set_step, lambda real, self, optimizer, step: real(self, optimizer, 0))


@of_runs
def best_checkpoint_is_chosen_by_the_test_error(patch: Patch) -> None:
    patch.setattr(TrainState, "best", lambda self: min(self.curve, key=lambda point: point.teacher, default=None))


@of_runs
def best_checkpoint_is_chosen_by_the_students_error(patch: Patch) -> None:
    def wrong(self):
        candidates = [point for point in self.curve if point.part == "validation"]
        return min(candidates, key=lambda point: point.student, default=None)

    patch.setattr(TrainState, "best", wrong)


@of_runs
def students_error_is_recorded_as_the_teachers(patch: Patch) -> None:
    def wrong(real, networks, *given, **options):
        student = networks.get("student")
        return real({name: student or network for name, network in networks.items()}, *given, **options)

    wrap(patch, evaluate.top_error_rates, wrong)


@of_runs
def validation_error_is_recorded_as_the_test_error(patch: Patch) -> None:
    def wrong(real, self, state):
        found = real(self, state)
        student, teacher = (dataclasses.replace(each, test=each.validation) for each in (found.student, found.teacher))
        return dataclasses.replace(found, student=student, teacher=teacher)

    wrap(patch, Prepared.final_errors, wrong)


@of_runs
def validation_error_is_that_of_all_training_images(patch: Patch) -> None:
    def wrong(real, networks, dataset, index=None, **options):
        return real(networks, dataset, None, **options)

    wrap(patch, evaluate.top_error_rates, wrong)


@of_runs
def normalisation_is_fitted_to_validation_images_too(patch: Patch) -> None:
    wrap(patch, PerChannel.fit, lambda real, self, images, index=None: real(self, images))


@of_runs
def speed_is_counted_in_batches(patch: Patch) -> None:
    def wrong(real, prepared, *given):
        found = real(prepared, *given)
        size = prepared.training.batch.size
        return dataclasses.replace(found, images_per_second=found.images_per_second / size)

    wrap(patch, import_module("meanteacher.experiment.run")._record, wrong)


for others in (
    recipe_mutants,
    stream_mutants,
    other_mutants,
    fit_mutants,
    head_mutants,
    use_mutants,
    report_mutants,
    number_mutants,
):
    MUTANTS.extend(others.MUTANTS)


def table() -> str:
    """Each mutant beside what caught it."""
    from detectors import caught_by, prepare

    lines = [
        f"# {len(MUTANTS)} silent mistakes, and what catches each",
        "",
        "Generated by `make mutants` from `tests/contracts/mutants.py`, which applies each to the real code. Each",
        "raises no error and gives plausible numbers. An alarm is one that a live run raises by itself.",
    ]
    for area in dict.fromkeys(each.area for each in MUTANTS):
        lines += ["", f"## {area.capitalize()}", "", "| mutant | caught by |", "|---|---|"]
        for each in (each for each in MUTANTS if each.area == area):
            prepare(area)
            with pytest.MonkeyPatch.context() as patch:
                each.apply(patch)
                found = list(caught_by(each.area))
            lines.append(f"| {each.name} | {'; '.join(found) or '**nothing**'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
