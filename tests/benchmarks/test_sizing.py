"""A plan on paper: what is counted by shapes is what a real step holds and computes, and docs/scale.md shows it."""

import dataclasses
import json
import re
import shlex
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from benchmarks.sizing import GPUS, Counted, app, count_step, outline, plan
from meanteacher.core import InputError, Problem
from meanteacher.data.toy import Digits, Moons
from meanteacher.experiment import Prepared, Recipe
from meanteacher.models import Conv13Spec
from meanteacher.recipes import RECIPES, find
from meanteacher.schedules import Constant
from meanteacher.train import AdamSpec, MuonSpec, OptimSpec, SgdSpec
from meanteacher.train.checkpoint import trained_parameters
from support import PROBLEM, prepared_of, recipe


@dataclasses.dataclass(frozen=True)
class Convolution:
    """One grouped convolution of stride 2 and one layer: few enough operations to count by hand."""

    def build(self, problem: Problem) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, bias=False),
            nn.Conv2d(8, 6, 3, padding=1, groups=2, bias=False),
            nn.Flatten(),
            nn.Linear(6 * 4 * 4, 3, bias=False),
        )


def test_operations_are_those_of_a_hand_calculation():
    """Two per multiplication: forward for both networks, and the gradients of weights and of all inputs but the first.

    torch's own count of the grouped convolutions' backward passes is larger.
    """
    counted = count_step(recipe().varied(model=Convolution()), Problem(3, 60, (4, 8, 8)))
    first = 2 * (4 * 4 * 8) * (4 // 2 * 9)
    second = 2 * (4 * 4 * 6) * (8 // 2 * 9)
    last = 2 * (6 * 4 * 4) * 3
    forward = first + second + last
    assert counted.flops == 2 * forward + 2 * forward - first


def real_step(made: Recipe, rows: int, precision: str = "float32") -> tuple[Prepared, int]:
    """The bytes that a real step on the CPU keeps for its backward pass."""
    prepared = prepared_of(
        made.varied(batch=dataclasses.replace(made.training.batch, size=rows)),
        seed=0,
        data=made.data.source.load(Path()),
    )
    state, batch = prepared.start(), prepared.stream[0]
    own = {t.data_ptr() for m in (state.student, state.memory) for t in (*m.parameters(), *m.buffers())}
    kept: list[weakref.ref[Tensor]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(weakref.ref(tensor))
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        output = made.training.method.forward(state.student, state.memory, batch, 0)
    assert output.total.requires_grad  # the graph is alive, and what it keeps
    alive = [tensor for tensor in (reference() for reference in kept) if tensor is not None]
    storages = [tensor.untyped_storage() for tensor in (*alive, *batch.views.values())]
    held = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return prepared, sum(n_bytes for where, n_bytes in held.items() if where not in own)


def made_counted(made: Recipe) -> Counted:
    return count_step(made, PROBLEM)


@pytest.mark.parametrize("method", ["supervised", "mean-teacher", "pi-model", "vat"])
def test_activations_are_what_a_real_step_keeps(method: str):
    made = recipe(method)
    few, many = (real_step(made, rows)[1] for rows in (6, 12))
    assert made_counted(made).activations["float32"] == (many - few) / 6


@pytest.mark.parametrize("method", ["supervised", "mean-teacher", "pi-model", "improved-gan"])
def test_activations_in_bfloat16_are_what_a_real_step_keeps(method: str):
    """Copies of the weights do not grow with the rows."""
    made = recipe(method)
    few, many = (real_step(made, rows, "bfloat16")[1] for rows in (6, 12))
    counted = made_counted(made).activations
    assert counted["bfloat16"] == (many - few) / 6
    assert counted["bfloat16"] < 0.9 * counted["float32"]


def test_parameters_weights_and_teacher_are_those_of_the_real_networks():
    state = real_step(recipe(), 6)[0].start()
    counted = made_counted(recipe())
    assert counted.n_parameters == sum(p.numel() for p in state.student.parameters())
    assert counted.gradients == 4 * counted.n_parameters
    held = state.student.state_dict().values()
    assert counted.weights == counted.memory == sum(t.numel() * t.element_size() for t in held)


@pytest.mark.parametrize(
    ("optim", "values"),
    [
        (AdamSpec(learning_rate=Constant(0.1), beta1=Constant(0.9), beta2=Constant(0.9)), 2),
        (SgdSpec(learning_rate=Constant(0.1)), 1),
        (SgdSpec(learning_rate=Constant(0.1), momentum=0.0), 0),
        (MuonSpec(learning_rate=Constant(0.1), sgd_learning_rate=Constant(0.1)), 1),
    ],
)
def test_the_optimiser_keeps_what_it_really_keeps(optim: OptimSpec, values: int):
    counted = made_counted(recipe().varied(optim=optim))
    assert counted.optimiser == values * counted.gradients


def test_what_a_method_trains_beside_the_student_is_counted():
    made = recipe("improved-gan")
    state = real_step(made, 6)[0].start()
    trained = sum(p.numel() for p in trained_parameters(state.student, state.memory))
    assert made_counted(made).gradients == 4 * trained > 4 * made_counted(made).n_parameters


def test_the_memory_of_temporal_ensembling_grows_with_the_data_and_that_of_mean_teacher_does_not():
    many = dataclasses.replace(PROBLEM, n_examples=1000 * PROBLEM.n_examples)
    grown = {name: count_step(recipe(name), many).memory for name in ("temporal-ensembling", "mean-teacher")}
    assert grown["mean-teacher"] == made_counted(recipe()).memory
    assert grown["temporal-ensembling"] > 8 * many.n_examples * PROBLEM.n_classes


@pytest.mark.parametrize("source", [Digits(), Moons()])
def test_an_outline_is_that_of_the_loaded_data(source: Digits | Moons, tmp_path: Path):
    train = source.load(tmp_path).train
    images = train.images
    assert isinstance(images, Tensor)
    found = outline(source)
    assert found.problem == Problem(train.n_classes, len(train), tuple(images.shape[1:]))
    assert found.stored_bytes == images[0].numel() * images.element_size()


def test_every_recipe_has_an_outline():
    for made in RECIPES.values():
        assert outline(made.data.source).problem.n_examples > 0, made.name


def small() -> Recipe:
    return find("table1/svhn-500/mean-teacher").varied(model=Conv13Spec(width=0.25))


def test_more_gpus_hold_less_and_send_more():
    one, four = (plan(small(), gpus=gpus) for gpus in (1, 4))
    assert (one.rows, four.rows) == (100, 25)
    for precision in ("float32", "bfloat16"):
        assert four.needs[precision].memory["activations"] * 4 == pytest.approx(
            one.needs[precision].memory["activations"]
        )
        assert four.needs[precision].compute_seconds * 4 == pytest.approx(one.needs[precision].compute_seconds)
    assert set(one.communicated.values()) == {0}
    assert four.communicated["gradients"] == pytest.approx(1.5 * four.counted.gradients)
    assert four.communicated["logits"] == pytest.approx(0.75 * 100 * 10 * 4 * 2)  # of student and teacher
    n_channels = sum(
        b.numel()
        for name, b in Conv13Spec(width=0.25).build(Problem(10, 1, (3, 32, 32))).named_buffers()
        if "mean" in name
    )
    assert four.communicated["statistics"] == pytest.approx(1.5 * 2 * n_channels * 8)


def test_more_than_one_machine_exchanges_over_the_network_and_is_warned_of():
    node, two = (plan(small(), gpus=gpus) for gpus in (8, 9))
    assert (node.bandwidth, node.advice) == (GPUS["a100-40gb"].bandwidth, ())
    assert two.bandwidth < 0.1 * node.bandwidth
    assert two.needs["float32"].communication_seconds > 10 * node.needs["float32"].communication_seconds
    assert "9 GPUs are 2 machines of 8" in two.advice[0]


def test_a_network_of_two_outputs_has_its_logits_gathered_four_times():
    method = dataclasses.replace(small().training.method, logit_distance=0.01)
    two = small().varied(model=Conv13Spec(width=0.25, outputs=2), method=method)
    assert plan(two, gpus=2).communicated["logits"] == 2 * plan(small(), gpus=2).communicated["logits"]


def test_a_thousand_times_the_data_take_a_thousand_times_the_steps():
    once, often = plan(small()), plan(small(), data_factor=1000)
    assert (often.n_images, often.steps) == (1000 * once.n_images, 1000 * once.steps)
    assert often.storage == pytest.approx(1000 * once.storage)
    ours, theirs = once.needs["float32"], often.needs["float32"]
    assert theirs.run_seconds == pytest.approx(1000 * ours.run_seconds)
    assert (theirs.total, theirs.compute_seconds) == (ours.total, ours.compute_seconds)


def test_a_plan_that_does_not_fit_says_what_to_do():
    fits = plan(small(), gpus=2)
    assert fits.advice == ()
    need = fits.needs["float32"]
    per_image = need.memory["activations"] / fits.rows
    # Room for twenty images and a half, of fifty.
    tight = dataclasses.replace(GPUS["a100-40gb"], memory=need.total - 29.5 * per_image)
    found = plan(small(), gpus=2, gpu=tight)
    assert found.needs["float32"].largest_batch == 20
    assert "micro-batches of at most 20 images" in found.advice[0]
    assert "5 GPUs" in found.advice[0]


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(InputError, match="1 to as many GPUs"):
        plan(small(), gpus=101)
    with pytest.raises(InputError, match="data_factor"):
        plan(small(), data_factor=0)
    with pytest.raises(InputError, match="is unknown"):
        plan(recipe())


PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SMALL = "digits/mean-teacher"


def printed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, done.output
    return done.output


def test_the_page_shows_what_the_command_prints_for_the_run_of_the_paper():
    section = PAGE.read_text(encoding="utf-8").partition("## What a run needs\n")[2].partition("\n## ")[0]
    ((words, text),) = re.findall(r"^    python -m benchmarks.sizing (.*)\n\n((?:    .*\n|\n)+)", section, flags=re.M)
    assert words == "table4/imagenet-10/mean-teacher-resnet --gpus 10"
    lines = [line.rstrip() for line in printed(*shlex.split(words)).splitlines()]
    assert "\n".join(lines) == re.sub(r"^    ", "", text, flags=re.M).strip("\n")
    longer = printed(*shlex.split(words), "--data-factor", "1000")
    ((float32, bfloat16),) = re.findall(r"^time of the run +(\S+ \w+) +(\S+ \w+)$", longer, flags=re.M)
    assert f"{float32} in float32, {bfloat16} in bfloat16" in " ".join(section.split())


def test_json_has_every_number_of_the_plan():
    found = json.loads(printed(SMALL, "--gpus", "4", "--json"))
    expected = plan(find(SMALL), gpus=4)
    assert found["needs"]["bfloat16"]["total"] == expected.needs["bfloat16"].total
    assert found["communicated"] == expected.communicated
    assert found["counted"]["n_parameters"] == expected.counted.n_parameters


def test_a_device_without_bfloat16_has_one_column():
    assert "bfloat16" not in printed(SMALL, "--gpu", "v100-16gb")
    assert "bfloat16" in printed(SMALL)


def test_too_little_memory_is_said_with_a_way_out():
    text = printed("table4/imagenet-10/mean-teacher-resnet", "--gpu", "v100-16gb")
    assert "does not fit" in text
    assert "more memory" in text


@pytest.mark.parametrize(
    "words",
    [["no/recipe"], [SMALL, "--gpu", "abacus"], [SMALL, "--data-factor", "0"], [SMALL, "--gpus", "1000"]],
    ids=["recipe", "device", "factor", "more GPUs than rows"],
)
def test_mistake_on_the_command_line_gets_one_sentence(words: list[str]):
    assert "Error: " in printed(*words, code=2)
