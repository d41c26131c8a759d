"""What must hold of the whole system, as functions that raise AssertionError: the net in which mutants are caught."""

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import classifier_detectors
import fit_detectors
import head_detectors
import label_detectors
import number_detectors
import other_detectors
import photo_detectors
import recipe_detectors
import report_detectors
import run_detectors
import stream_detectors
import torch
from catalogue import Checks, named
from torch import nn

from meanteacher import costs, evaluate, schedules, teacher
from meanteacher import testing as contract
from meanteacher.core import UNLABELLED, Batch
from meanteacher.data import Fixed, ImageStream, Mixed, make_split
from meanteacher.experiment import run
from meanteacher.methods import FixMatch, MeanTeacher, PiModel
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.methods.temporal_ensembling import EnsembleTable
from meanteacher.teacher import Teacher
from meanteacher.train import StopWhen
from meanteacher.views import Chain, Flip, Noise, PerChannel, Translate
from support import (
    METHODS,
    N_CLASSES,
    PROBLEM,
    SHAPE,
    VIEWS,
    SmallNet,
    error_rate,
    made_up,
    parameters_of,
    recipe,
    stream,
    train_steps,
)


def hidden_labels_stay_hidden() -> None:
    data = made_up(60, seed=0)
    split = make_split(data.labels, n_classes=N_CLASSES, n_labelled=9, seed=0, validation=0.2)
    shown = set(split.labelled.tolist())
    for spec in (Mixed(size=12), Fixed(size=12, labelled=3, unlabelled_pool="all")):
        batches = ImageStream(
            data, spec.sampler(split, 0), views=VIEWS, normalise=PerChannel().fit(data.images), seed=0
        )
        n_shown = []
        for step in range(20):
            batch = batches[step]
            labelled = batch.labels != UNLABELLED
            n_shown.append(int(labelled.sum()))
            assert set(batch.index[labelled].tolist()) <= shown, "a hidden label entered a batch"
            assert not set(batch.index.tolist()) & set(split.validation.tolist()), "a validation image is trained on"
            assert torch.equal(batch.labels[labelled], data.labels[batch.index[labelled]]), "a label is another image's"
        if isinstance(spec, Fixed):
            assert set(n_shown) == {3}, "the number of labelled rows is not the declared one"


def images_belong_to_their_index() -> None:
    data = made_up(60, seed=0)
    split = make_split(data.labels, n_classes=N_CLASSES, n_labelled=9, seed=0)
    normalise = PerChannel().fit(data.images)
    plain = ImageStream(
        data, Mixed(size=12).sampler(split, 0), views={"student": Chain(())}, normalise=normalise, seed=0
    )
    batch = plain[0]
    assert torch.equal(batch.views["student"], normalise(data.images[batch.index])), "images and index disagree"


def every_pass_has_another_order() -> None:
    data = made_up(60, seed=0)
    split = make_split(data.labels, n_classes=N_CLASSES, n_labelled=9, seed=0)
    sampler = Mixed(size=60).sampler(split, 0)
    (first, _), (second, _) = sampler.draw(0), sampler.draw(1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(60)), "a pass skips or repeats an example"
    assert not torch.equal(first, second), "every pass has the same order"


def every_image_has_its_own_draw() -> None:
    images = torch.randn(1, *SHAPE).expand(64, *SHAPE)
    for view in (Translate(2), Flip(), Noise(0.3)):
        rows = view(images, torch.Generator().manual_seed(0))
        assert len({tuple(row.flatten().tolist()) for row in rows}) > 1, f"{view}: one draw for the whole batch"


def views_of_the_roles_are_independent() -> None:
    for step in range(3):
        views = stream()[step].views
        for one, other in itertools.combinations(views.values(), 2):
            assert not torch.equal(one, other), "two roles see the same noise"


def costs_have_the_scale_they_declare() -> None:
    certain, opposite = torch.tensor([[50.0, 0, 0, 0]]), torch.tensor([[0, 50.0, 0, 0]])
    assert abs(costs.softmax_mse(certain, opposite).item() - 0.5) < 1e-5, "softmax_mse is not the mean over classes"
    logits, labels = torch.zeros(4, 2), torch.tensor([0, UNLABELLED, UNLABELLED, UNLABELLED])
    assert abs(costs.classification_cost(logits, labels).item() - 0.6931) < 1e-3, "not the mean over labelled rows"
    confident = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
    labels = torch.tensor([UNLABELLED, 0])
    assert costs.classification_cost(confident, labels).item() < 1e-3, "an unlabelled row has a class"


def target_divergence_is_of_the_target() -> None:
    student, target = torch.tensor([[0.0, 0.0]]), torch.tensor([[50.0, 0.0]])
    assert abs(costs.kl_divergence(student, target).item() - 0.6931) < 1e-3, "the divergence is the other way round"


def ramps_rise() -> None:
    ramp = schedules.SigmoidRampUp(value=1.0, steps=100)
    values = [ramp(step) for step in range(0, 120, 10)]
    assert values[0] < 0.01, "the ramp starts high"
    assert all(a < b for a, b in itertools.pairwise(values[:10])), "the ramp does not rise"
    assert values[-1] == 1.0, "the ramp does not arrive"
    down = schedules.SigmoidRampDown(value=1.0, steps=50, total=100)
    assert down(0) == 1.0, "the ramp-down begins at once"
    assert down(100) < 0.01, "the ramp-down does not arrive"


def the_average_is_what_is_evaluated() -> None:
    for name, method in METHODS.items():
        student, memory = contract.begin(method)
        predictor = method.predictor(student, memory)
        assert predictor is contract.teacher_in(memory), f"{name} evaluates something else than the average"


def evaluation_has_no_noise_and_leaves_no_trace() -> None:
    network = SmallNet().train()
    data = made_up(60, seed=0)
    normalise = PerChannel().fit(data.images)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    first, second = (evaluate.predict_logits(network, data.images, normalise=normalise) for _ in range(2))
    assert torch.equal(first, second), "evaluation is noisy"
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items()), "it leaves a trace"
    assert network.training, "it leaves the network in evaluation mode"
    one = evaluate.predict_logits(network, data.images[7:8], normalise=normalise)
    torch.testing.assert_close(first[7:8], one, msg="rows are in another order, or depend on each other")


def buffers_follow_their_policy() -> None:
    for policy in ("own", "average", "copy"):
        student, memory = SmallNet().train(), Teacher(SmallNet(), 0.5, warm_up=False, buffers=policy)
        x = stream()[0].views["student"]
        student(x)
        before = memory.network.layers[1].running_mean.clone()
        memory(x)
        seen = memory.network.layers[1].running_mean.clone()
        assert torch.equal(seen, before) == (policy != "own"), (
            f"{policy}: the teacher's pass wrote its statistics, or not"
        )
        memory.update(student)
        after = memory.network.layers[1].running_mean
        theirs = student.layers[1].running_mean
        expected = {"own": seen, "average": 0.5 * (seen + theirs), "copy": theirs}[policy]
        torch.testing.assert_close(after, expected, msg=f"{policy}: other statistics after the update")


def teacher_keeps_full_precision() -> None:
    student = nn.Linear(2, 2).bfloat16()
    memory = Teacher(student, buffers="copy")
    assert all(p.dtype == torch.float32 for p in memory.parameters()), "the teacher is not float32"


def teacher_is_noisy_as_told() -> None:
    x = torch.randn(8, *SHAPE)
    for dropout in (None, 0.0):
        memory = Teacher(SmallNet(), buffers="average", dropout=dropout).train()
        assert torch.equal(memory(x), memory(x)) == (dropout == 0), "the teacher's dropout is not as told"


def pi_model_trains_both_sides() -> None:
    method = METHODS["pi-model"]
    assert isinstance(method, PiModel)
    student = SmallNet().eval()
    batch = stream()[0]
    view = batch.views["teacher"].requires_grad_()
    cost = method.forward(student, method.init(student, PROBLEM), batch, 0).costs["consistency"].value
    (gradient,) = torch.autograd.grad(cost, view, allow_unused=True)
    assert gradient is not None, "the second side is stopped"


def temporal_targets_are_bias_corrected_and_kept() -> None:
    table = EnsembleTable(PROBLEM)
    predictions = torch.randn(60, 3).softmax(1)
    table.note(torch.arange(60), predictions)
    table.end_epoch(0.6)
    target = table.target(torch.arange(60), 0.6)[0].exp()
    torch.testing.assert_close(target, predictions, msg="the first target is not the first prediction")
    table.note(torch.arange(50), predictions[:50])
    table.end_epoch(0.6)
    kept = table.target(torch.arange(60), 0.6)[0].exp()
    torch.testing.assert_close(kept[50:], predictions[50:], msg="a row that was not visited lost its target")


def smoothness_without_perturbation_is_nothing() -> None:
    for name in ("vat", "vat-entmin"):
        method = dataclasses.replace(METHODS[name], epsilon=0.0)
        student = SmallNet().train()
        cost = method.forward(student, method.init(student, PROBLEM), stream()[0], 0).costs["smoothness"].value
        assert abs(cost.item()) < 1e-5, "the passes of a step drop different units"


def the_threshold_decides() -> None:
    method = METHODS["fixmatch"]
    assert isinstance(method, FixMatch)
    student = SmallNet().eval()
    strict = dataclasses.replace(method, threshold=1.1)
    cost = strict.forward(student, strict.init(student, PROBLEM), stream()[0], 0).costs["pseudo-label"].value
    assert cost.item() == 0, "a row under the threshold is learnt from"


def consistency_can_leave_labelled_rows_out() -> None:
    method = METHODS["mean-teacher"]
    assert isinstance(method, MeanTeacher)
    method = dataclasses.replace(method, consistency_on="unlabelled")
    student = SmallNet().eval()
    batch = stream()[0]
    view = batch.views["student"].requires_grad_()
    cost = method.forward(student, method.init(SmallNet(), PROBLEM).eval(), batch, 0).costs["consistency"].value
    (gradient,) = torch.autograd.grad(cost, view)
    moved = gradient.flatten(1).abs().sum(1) > 0
    assert torch.equal(moved, batch.labels == UNLABELLED), "consistency applies to other rows than declared"


def resumed_run_equals_uninterrupted_run() -> None:
    whole = recipe(steps=8, evaluate_every=4)
    with tempfile.TemporaryDirectory() as folder:
        data = whole.data.source.load(Path(folder))
        steps = iter(range(5))
        run(whole, seed=0, out=Path(folder) / "a", data=data, callbacks=[StopWhen(lambda: next(steps, None) is None)])
        records = [run(whole, seed=0, out=Path(folder) / name, data=data, resume=name == "a").record for name in "ab"]
        final = [Path(folder) / name / "checkpoints" / "step_00000008" / "memory.safetensors" for name in "ab"]
        assert final[0].read_bytes() == final[1].read_bytes(), (
            "where the run was interrupted can be seen in its weights"
        )
    resumed, uninterrupted = (record.curve for record in records if record is not None)
    assert resumed == uninterrupted, "points of the curve are lost, or others"


def own_loop_and_ours_agree() -> None:
    """The loop takes the average after the step: the teacher after one step is the student after one step."""
    whole = recipe(steps=1, evaluate_every=1)
    with tempfile.TemporaryDirectory() as folder:
        run(whole, seed=0, out=Path(folder) / "a", data=whole.data.source.load(Path(folder)))
        checkpoint = Path(folder) / "a" / "checkpoints" / "step_00000001"
        from safetensors.torch import load_file

        student, memory = load_file(checkpoint / "student.safetensors"), load_file(checkpoint / "memory.safetensors")
    for name, value in student.items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(memory[f"network.{name}"], value), "the average was not taken after the step"


def warm_up_forgets_the_start() -> None:
    assert teacher.warmed_up(0.999, 0) == 0, "the random start stays in the average"
    assert teacher.warmed_up(0.999, 10**6) == 0.999, "the decay never arrives"


def a_method_needs_no_labels_in_a_batch() -> None:
    for name, method in METHODS.items():
        student, memory = contract.begin(method, warm_up=1)
        batch = stream()[1]
        empty = Batch(batch.views, torch.full_like(batch.labels, UNLABELLED), batch.index)
        output = method.forward(student, memory, empty, 1)
        assert all(bool(torch.isfinite(cost.value)) for cost in output.costs.values()), (
            f"{name}: not finite without labels"
        )


def training_learns() -> None:
    """Thirty steps on stripes that a network of any worth tells apart."""
    method = METHODS["mean-teacher"]
    torch.manual_seed(0)
    student = SmallNet()
    memory = method.init(student, PROBLEM).train()
    train_steps(method, student, memory, steps=60)
    data = made_up(60, seed=0)
    error = error_rate(method.predictor(student, memory), data, normalise=PerChannel().fit(data.images))
    assert error < 0.2, "the teacher has learnt nothing"


def the_decay_follows_its_schedule() -> None:
    decay = schedules.StepChange(first=0.3, then=0.95, at=6)
    for name in ("supervised", "mean-teacher", "vat"):
        method = dataclasses.replace(METHODS[name], decay=decay)
        torch.manual_seed(0)
        student = SmallNet().train()
        memory = method.init(student, PROBLEM).train()
        students: list[torch.Tensor] = []
        train_steps(
            method, student, memory, steps=12, each=lambda _, s=student, all_=students: all_.append(parameters_of(s))
        )
        expected = students[0]
        for step, past in enumerate(students):
            alpha = min(step / (step + 1), 0.3 if step < 6 else 0.95)
            expected = alpha * expected + (1 - alpha) * past
        found = parameters_of(contract.teacher_in(memory))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=f"{name}: another decay than declared")


def a_target_must_be_certain_before_it_is_sharpened() -> None:
    """Sharpened at a temperature of 0.1, a probability of 0.6 is one of 0.98."""
    cost = costs.Confident(threshold=0.8, temperature=0.1)
    for probability, is_certain in ((0.6, False), (0.79, False), (0.81, True)):
        target = torch.tensor([[probability, 1 - probability]]).log()
        assert (cost(torch.zeros(1, 2), target).item() > 0) == is_certain, (
            f"a target of {probability} is learnt, or not"
        )
        assert bool(cost.is_active(target)) == is_certain, "the weight is said to act where the cost does not"


def no_gradient_flows_through_a_sharpened_target() -> None:
    for method in METHODS.values():
        if isinstance(method, ConsistencyMethod):
            contract.no_gradient_flows_through_a_sharpened_target(method)


def _each_method(check: Callable[..., None], *arguments: object) -> Callable[[], None]:
    def check_all() -> None:
        for method in METHODS.values():
            check(method, *arguments)

    return check_all


DETECTORS: Checks = {
    **named(
        (
            hidden_labels_stay_hidden,
            images_belong_to_their_index,
            every_pass_has_another_order,
            every_image_has_its_own_draw,
            views_of_the_roles_are_independent,
            costs_have_the_scale_they_declare,
            target_divergence_is_of_the_target,
            ramps_rise,
            the_average_is_what_is_evaluated,
            evaluation_has_no_noise_and_leaves_no_trace,
            buffers_follow_their_policy,
            teacher_keeps_full_precision,
            teacher_is_noisy_as_told,
            pi_model_trains_both_sides,
            temporal_targets_are_bias_corrected_and_kept,
            smoothness_without_perturbation_is_nothing,
            the_threshold_decides,
            consistency_can_leave_labelled_rows_out,
            resumed_run_equals_uninterrupted_run,
            own_loop_and_ours_agree,
            warm_up_forgets_the_start,
            a_method_needs_no_labels_in_a_batch,
            training_learns,
            the_decay_follows_its_schedule,
            a_target_must_be_certain_before_it_is_sharpened,
            no_gradient_flows_through_a_sharpened_target,
        )
    ),
    # These take longest: a test of a mutant ends with the first that notices it.
    "every cost moves the student": _each_method(contract.every_cost_moves_the_student),
    "nothing but the average moves the teacher": _each_method(contract.nothing_but_the_average_moves_the_teacher),
    "teacher is the average of past students": _each_method(contract.teacher_is_the_average_of_past_students),
    "forward writes no memory": _each_method(contract.forward_writes_no_memory),
    "statistics count views alone": _each_method(contract.statistics_count_views_alone),
}


def alarms_of_a_live_run() -> list[str]:
    """The kinds of alarm that a short run of Mean Teacher raises."""
    found: set[str] = set()
    for batch in ("fixed", "mixed"):
        whole = recipe(batch=batch, steps=40)
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(whole, seed=0, out=Path(folder) / "run", data=whole.data.source.load(Path(folder)))
        assert outcome.record is not None
        found |= {alarm.kind for alarm in outcome.record.alarms}
    return sorted(found)


AREAS: dict[str, Callable[[], Checks]] = {
    "training": lambda: DETECTORS,
    "runs": lambda: named(run_detectors.DETECTORS),
    "recipes": lambda: named(recipe_detectors.DETECTORS),
    "several processes": lambda: named(stream_detectors.PROCESSES),
    "shards": lambda: named(stream_detectors.SHARDS),
    "on-line learning": lambda: named(stream_detectors.ONLINE),
    "scikit-learn": lambda: named(other_detectors.ESTIMATORS),
    "outputs per pixel": lambda: named(other_detectors.DENSE),
    "files": lambda: named(other_detectors.FILES),
    "fit": fit_detectors.of_a_fit,
    "heads and features": lambda: named(head_detectors.DETECTORS),
    "photos": lambda: named(photo_detectors.DETECTORS),
    "model files": lambda: named(classifier_detectors.DETECTORS),
    "export": lambda: named(classifier_detectors.EXPORT),
    "labelling page": lambda: named(label_detectors.DETECTORS),
    "tables of runs": lambda: named(report_detectors.RECORDS),
    "report of a fit": lambda: named(report_detectors.FITS),
    "statistics": lambda: named(number_detectors.STATISTICS),
    "readings of a run": lambda: named(number_detectors.READINGS),
    "views and evaluation": lambda: named(number_detectors.VIEWS),
}
"""What is looked at for a mutant of each area."""


def prepare(area: str) -> None:
    """Make what the checks of an area begin with, while the code is still sound."""
    for needed in {
        "model files": (classifier_detectors.model,),
        "export": (classifier_detectors.model,),
    }.get(area, ()):
        needed()


def caught_by(area: str = "training", first: Container[str] = ()) -> Iterator[str]:
    """Everything that notices something wrong with the code as it is now, one after the other.

    Args:
        area: whose checks are asked
        first: names of those that are asked before the others
    """
    for name, check in sorted(AREAS[area]().items(), key=lambda item: item[0] not in first):
        try:
            check()
        except Exception as error:
            if isinstance(error, NameError):
                raise  # a slip in the mutant itself
            yield name if isinstance(error, AssertionError) else f"{name} ({type(error).__name__})"
    if area == "training":
        try:
            yield from (f"alarm: {kind}" for kind in alarms_of_a_live_run())
        except Exception as error:
            yield f"live run ({type(error).__name__})"
