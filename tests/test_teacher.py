import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from mypy import api as mypy_api
from torch import Tensor, nn

from meanteacher.core import DivergedError, InputError
from meanteacher.models.layers import WeightNormLinear
from meanteacher.teacher import Buffers, Teacher, warmed_up
from support import parameters_of

POLICIES: tuple[Buffers, ...] = ("own", "average", "copy")
every_policy = pytest.mark.parametrize("policy", POLICIES)


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def batch_normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def weight_normalised() -> nn.Module:
    return nn.Sequential(WeightNormLinear(4, 6, mean_decay=0.9), nn.ReLU(), WeightNormLinear(6, 3, mean_decay=0.9))


NETWORKS = {"batch-norm": batch_normalised, "weight-norm": weight_normalised}
every_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


class Tied(nn.Module):
    """One matrix in, the same matrix out."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 4)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).relu())


def moved(network: nn.Module) -> None:
    """As an optimiser would: every parameter somewhere else."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))


def snapshot(network: nn.Module, *, buffers: bool = False) -> dict[str, Tensor]:
    named = network.named_buffers() if buffers else network.named_parameters()
    return {name: tensor.detach().clone() for name, tensor in named}


def assert_equal(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], msg=lambda words, name=name: f"{name}: {words}")


def weighted(students: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    assert sum(weights) == pytest.approx(1)
    return {
        name: sum(weight * past[name].double() for weight, past in zip(weights, students, strict=True)).float()
        for name in students[0]
    }


# --- the average of the weights -------------------------------------------------------------------------


@every_policy
@every_network
def test_teacher_is_the_exponential_average_of_past_students(make: Callable[[], nn.Module], policy: Buffers) -> None:
    decay, student = 0.8, make()
    teacher = Teacher(student, decay, buffers=policy)
    past = []
    for step in range(12):
        moved(student)
        past.append(snapshot(student))
        teacher.update(student)
        t = step + 1
        if t <= 5:  # up to 1 / (1 - decay) students: their plain mean, the random start forgotten
            weights = [1 / t] * t
        else:
            weights = [0.2 * decay ** (t - 5)] * 5 + [(1 - decay) * decay ** (t - i) for i in range(6, t + 1)]
        assert_equal(snapshot(teacher.network), weighted(past, weights))


def test_without_warm_up_the_start_stays_in_the_average() -> None:
    student = nn.Linear(3, 2)
    teacher = Teacher(student, 0.5, warm_up=False, buffers="own")
    past = [snapshot(student)]
    for _ in range(3):
        moved(student)
        past.append(snapshot(student))
        teacher.update(student)
    assert_equal(snapshot(teacher.network), weighted(past, [0.125, 0.125, 0.25, 0.5]))


@pytest.mark.parametrize(("decay", "follows"), [(0.0, "student"), (1.0, "start")])
def test_the_ends_of_the_decay_are_exact(decay: float, follows: str) -> None:
    student = nn.Linear(3, 2)
    teacher, start = Teacher(student, decay, warm_up=False), snapshot(student)
    moved(student)
    teacher.update(student)
    expected = snapshot(student) if follows == "student" else start
    assert all(torch.equal(value, expected[name]) for name, value in snapshot(teacher.network).items())


@pytest.mark.parametrize(
    ("decay", "step", "expected"),
    [(0.99, 0, 0.0), (0.99, 1, 0.5), (0.99, 98, 98 / 99), (0.99, 99, 0.99), (0.99, 10**6, 0.99), (0.0, 50, 0.0)],
)
def test_the_warm_up_ends_where_the_decay_takes_over(decay: float, step: int, expected: float) -> None:
    assert warmed_up(decay, step) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_average_of_a_student_in_half_precision_is_float32(dtype: torch.dtype) -> None:
    student = nn.Linear(4, 3).to(dtype)
    nn.init.ones_(student.weight)
    teacher = Teacher(student, 0.999, warm_up=False, buffers="average")
    nn.init.constant_(student.weight, 1.0078125)  # the next number in bfloat16
    for _ in range(10):
        teacher.update(student)
    assert {p.dtype for p in teacher.network.parameters()} == {torch.float32}
    # In bfloat16 every one of these updates would be rounded away.
    expected = 1 + 0.0078125 * (1 - 0.999**10)
    torch.testing.assert_close(teacher.network.weight, torch.full((3, 4), expected), atol=1e-6, rtol=0)
    assert {p.dtype for p in student.parameters()} == {dtype}
    assert teacher(torch.randn(2, 4)).dtype == torch.float32


@every_policy
@every_network
def test_the_teacher_of_a_float64_student_is_float64(make: Callable[[], nn.Module], policy: Buffers) -> None:
    student = make().double()
    teacher = Teacher(student, 0.75, warm_up=False, buffers=policy)
    start = parameters_of(student)
    moved(student)
    teacher.update(student)
    tensors = [*teacher.network.parameters(), *teacher.network.buffers()]
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float64}
    # No update passes through float32, which would leave 1e-8.
    expected = 0.75 * start + 0.25 * parameters_of(student)
    torch.testing.assert_close(parameters_of(teacher.network), expected, atol=1e-14, rtol=0)
    assert teacher(torch.randn(8, 4).double()).dtype == torch.float64


@pytest.mark.parametrize("policy", ["average", "copy"])
def test_the_buffers_of_a_student_in_half_precision_are_kept_in_float32(policy: Buffers) -> None:
    student = nn.BatchNorm1d(3).bfloat16()
    teacher = Teacher(student, 0.75, warm_up=False, buffers=policy)
    student.running_mean.fill_(2.0)
    teacher.update(student)
    assert teacher.network.running_mean.dtype == torch.float32
    assert teacher.network.running_mean.tolist() == [0.5 if policy == "average" else 2.0] * 3


# --- nothing moves the teacher but the average, and the teacher moves nothing ---------------------------


@every_policy
@every_network
def test_no_gradient_reaches_the_teacher(make: Callable[[], nn.Module], policy: Buffers) -> None:
    student = make()
    teacher = Teacher(student, buffers=policy)
    assert not any(p.requires_grad for p in teacher.parameters())
    x = torch.randn(8, 4, requires_grad=True)
    output = teacher(x)
    assert not output.requires_grad
    assert output.grad_fn is None
    teacher.update(student, decay=0.5)
    assert not any(t.requires_grad for t in [*teacher.parameters(), *teacher.buffers()])
    assert all(p.requires_grad for p in student.parameters())


@every_policy
@every_network
def test_the_student_is_never_written(make: Callable[[], nn.Module], policy: Buffers) -> None:
    student = make()
    student(torch.randn(8, 4))
    before, modes = copy.deepcopy(student.state_dict()), [m.training for m in student.modules()]
    teacher = Teacher(student, buffers=policy)
    teacher(torch.randn(8, 4))
    moved(teacher.network)
    teacher.update(student, decay=0.3)
    with teacher.average_parameters(student):
        assert_equal(snapshot(student), snapshot(teacher.network))
    teacher.eval()
    teacher(torch.randn(8, 4))
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert [m.training for m in student.modules()] == modes


@every_policy
@every_network
def test_teacher_and_student_share_no_storage(make: Callable[[], nn.Module], policy: Buffers) -> None:
    student = make()
    teacher = Teacher(student, buffers=policy)
    for decay in (0.0, 0.5):
        teacher.update(student, decay=decay)
        addresses = [
            {t.data_ptr() for t in [*network.parameters(), *network.buffers()]} for network in (student, teacher)
        ]
        assert not addresses[0] & addresses[1]


@every_policy
def test_tied_weights_stay_tied_and_are_averaged_once(policy: Buffers) -> None:
    student = Tied()
    teacher = Teacher(student, 0.5, warm_up=False, buffers=policy)
    start = snapshot(student)
    moved(student)
    teacher.update(student)
    assert teacher.network.decode.weight is teacher.network.encode.weight
    assert_equal(snapshot(teacher.network), weighted([start, snapshot(student)], [0.5, 0.5]))
    x = torch.randn(5, 4)
    torch.testing.assert_close(teacher(x), teacher.network(x))


# --- buffers --------------------------------------------------------------------------------------------


def floating(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in buffers.items() if value.is_floating_point()}


def history(make: Callable[[], nn.Module], policy: Buffers, decay: float) -> tuple[Teacher, list[dict[str, Tensor]]]:
    """A few steps in which both networks run in training mode; the student's buffers at the start and after each."""
    student = make()
    teacher = Teacher(student, decay, warm_up=False, buffers=policy)
    past = [snapshot(student, buffers=True)]
    for step in range(4):
        student(torch.randn(16, 4) + step)
        teacher(torch.randn(16, 4) - 5)
        past.append(snapshot(student, buffers=True))
        teacher.update(student)
        teacher(torch.randn(16, 4) - 5)
    return teacher, past


@every_network
def test_own_buffers_are_the_statistics_of_what_the_teacher_saw(make: Callable[[], nn.Module]) -> None:
    student = make()
    teacher, alone = Teacher(student, 1.0, warm_up=False), copy.deepcopy(student)
    for step in range(4):
        student(torch.randn(16, 4) + 5)
        x = torch.randn(16, 4) - step
        teacher(x)
        alone(x)
        before = snapshot(teacher.network, buffers=True)
        teacher.update(student)
        assert_equal(snapshot(teacher.network, buffers=True), before)
    assert_equal(snapshot(teacher.network, buffers=True), snapshot(alone, buffers=True))


@every_network
def test_an_update_leaves_own_buffers_alone_even_when_it_replaces_the_weights(make: Callable[[], nn.Module]) -> None:
    student = make()
    teacher = Teacher(student, buffers="own")
    teacher(torch.randn(16, 4) - 3)
    before = snapshot(teacher.network, buffers=True)
    student(torch.randn(16, 4) + 3)
    teacher.update(student, decay=0.0)
    assert_equal(snapshot(teacher.network, buffers=True), before)


@every_network
def test_averaged_buffers_are_the_exponential_average_of_the_students(make: Callable[[], nn.Module]) -> None:
    teacher, past = history(make, "average", decay=0.5)
    weights = [0.0625, 0.0625, 0.125, 0.25, 0.5]
    expected = weighted([floating(buffers) for buffers in past], weights)
    assert_equal(floating(snapshot(teacher.network, buffers=True)), expected)


@every_network
def test_copied_buffers_are_the_students_latest(make: Callable[[], nn.Module]) -> None:
    teacher, past = history(make, "copy", decay=0.5)
    assert_equal(snapshot(teacher.network, buffers=True), past[-1])


@pytest.mark.parametrize(("policy", "count"), [("own", 8), ("average", 4), ("copy", 4)])
def test_a_count_of_batches_is_a_whole_number_under_every_policy(policy: Buffers, count: int) -> None:
    # The student ran four times, the teacher eight.
    teacher, _ = history(batch_normalised, policy, decay=0.3)
    assert teacher.network[1].num_batches_tracked.dtype == torch.int64
    assert teacher.network[1].num_batches_tracked == count


@every_network
def test_in_training_mode_the_teacher_normalises_alike_under_every_policy(make: Callable[[], nn.Module]) -> None:
    student, x = make(), torch.randn(16, 4) * 3 + 2
    outputs = [Teacher(student, buffers=policy)(x) for policy in POLICIES]
    torch.testing.assert_close(outputs[0], student(x).detach())
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@every_policy
@every_network
def test_in_evaluation_mode_the_teacher_uses_its_buffers_and_keeps_them(
    make: Callable[[], nn.Module], policy: Buffers
) -> None:
    teacher, _ = history(make, policy, decay=0.5)
    teacher.eval()
    before = snapshot(teacher.network, buffers=True)
    x = torch.randn(16, 4) * 3 + 2
    whole = teacher(x)
    # With running statistics the other images of a batch make no difference.
    torch.testing.assert_close(torch.cat([teacher(row) for row in x.split(1)]), whole)
    assert_equal(snapshot(teacher.network, buffers=True), before)
    teacher.train()
    assert not torch.allclose(teacher(x), whole, atol=1e-2)


@every_policy
def test_a_teacher_without_dropout_still_normalises_by_the_batch(policy: Buffers) -> None:
    # Figure 4(b) takes the teacher's dropout away and nothing else.
    student = nn.Sequential(nn.Linear(4, 50), nn.BatchNorm1d(50), nn.Dropout(0.5), nn.Linear(50, 3))
    noisy, calm = (Teacher(student, buffers=policy, dropout=dropout).train() for dropout in (None, 0.0))
    x = torch.randn(16, 4) * 3 + 2
    assert not torch.equal(noisy(x), noisy(x))
    hidden = student[0](x)
    expected = student[3]((hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt())
    torch.testing.assert_close(calm(x), expected.detach(), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(calm.eval()(x), expected.detach(), atol=1e-2)


@pytest.mark.parametrize("rate", [0.25, 0.75])
def test_a_teacher_drops_units_at_its_own_rate_and_leaves_the_students_alone(rate: float) -> None:
    student = nn.Sequential(nn.Dropout(0.5))
    shares = [
        float((network(torch.ones(100, 1000)) == 0).float().mean())
        for network in (Teacher(student, dropout=rate).train(), Teacher(student).train(), student)
    ]
    assert shares == pytest.approx([rate, 0.5, 0.5], abs=0.01)
    calm = Teacher(student, dropout=rate).eval()
    assert torch.equal(calm(torch.ones(2, 9)), torch.ones(2, 9))


def test_a_rate_that_no_layer_could_use_is_refused() -> None:
    with pytest.raises(InputError, match="Linear has no dropout layer"):
        Teacher(nn.Linear(2, 2), dropout=0.25)
    Teacher(nn.Linear(2, 2), dropout=0.0)
    for rate in (1.0, 1.5, -0.1, True):
        with pytest.raises(InputError, match=r"is a rate from 0 .* to below 1"):
            Teacher(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), dropout=rate)


@every_policy
def test_a_teacher_survives_being_saved_and_loaded(policy: Buffers) -> None:
    teacher, _ = history(batch_normalised, policy, decay=0.5)
    restored = Teacher(batch_normalised(), buffers=policy)
    restored.load_state_dict(teacher.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(restored.eval()(x), teacher.eval()(x))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InputError, match="buffers has to be own, average or copy; got 'ema'"):
        Teacher(nn.Linear(2, 2), buffers="ema")


# --- a teacher that cannot be used wrongly in silence -----------------------------------------------------------------


def a_loop(teacher: Teacher, student: nn.Module, steps: int = 3) -> Tensor:
    """As a user writes it; the last target."""
    for _ in range(steps):
        target = teacher(torch.randn(16, 4) + 3)
        moved(student)
        teacher.update(student)
    return target


def test_a_teacher_in_evaluation_mode_is_not_updated_if_its_own_statistics_would_stay_behind() -> None:
    student = batch_normalised()
    teacher = Teacher(student).eval()
    with pytest.raises(InputError, match=r"evaluation mode.*statistics do not follow.*teacher.train\(\)"):
        a_loop(teacher, student)
    a_loop(teacher.train(), student)
    teacher.eval()(torch.randn(2, 4))  # to evaluate in between, and to forget it
    with pytest.raises(InputError, match="evaluation mode"):
        teacher.update(student)


@pytest.mark.parametrize("make", [weight_normalised, lambda: nn.Linear(4, 3)], ids=["weight-norm", "no statistics"])
def test_evaluation_mode_is_refused_only_if_there_are_statistics_to_lose(make: Callable[[], nn.Module]) -> None:
    for policy in POLICIES:
        student = make()
        loses = policy == "own" and any(True for _ in student.buffers())
        teacher = Teacher(student, buffers=policy).eval()
        if loses:
            with pytest.raises(InputError, match="evaluation mode"):
                a_loop(teacher, student)
        else:
            a_loop(teacher, student)


@pytest.mark.parametrize("ask", [lambda t, s: t.predictor(), lambda t, s: t.eval()(torch.ones(2, 4))])
def test_statistics_that_were_never_fed_are_refused(ask: Callable[[Teacher, nn.Module], object]) -> None:
    student = batch_normalised()
    teacher = Teacher(student)
    ask(teacher, student)  # still the student's own weights and statistics
    teacher.train()
    teacher.update(student)
    with pytest.raises(InputError, match=r"never fed.*buffers='average' or 'copy'"):
        ask(teacher, student)
    restored = Teacher(batch_normalised())
    restored.load_state_dict(teacher.state_dict())
    with pytest.raises(InputError, match="never fed"):
        ask(restored, student)
    teacher.train()(torch.randn(8, 4))
    ask(teacher, student)


def test_a_student_in_evaluation_mode_has_a_teacher_that_feeds_its_statistics() -> None:
    """Hugging Face's from_pretrained returns one."""
    student = batch_normalised().eval()
    teacher = Teacher(student)
    a_loop(teacher, student)
    assert teacher.network[1].num_batches_tracked == 3
    assert not student.training
    partly = batch_normalised()
    partly[1].eval()  # a layer that is kept in evaluation mode on purpose
    teacher = Teacher(partly)
    a_loop(teacher, partly)
    assert teacher.network[1].num_batches_tracked == 0


def test_modes_of_the_network_last_for_a_pass() -> None:
    """Whoever calls `teacher.network` feeds nothing to its statistics."""
    student = batch_normalised()
    teacher = Teacher(student)
    a_loop(teacher, student)
    before = snapshot(teacher.network, buffers=True)
    for _ in range(2):
        assert not any(module.training for module in teacher.network.modules())
        teacher.network(torch.randn(8, 4) + 9)
        assert_equal(snapshot(teacher.network, buffers=True), before)
        teacher.train()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        teacher(torch.zeros(1, 9))
    assert not any(module.training for module in teacher.network.modules())


def test_a_predictor_is_a_copy_in_evaluation_mode() -> None:
    student = batch_normalised()
    teacher = Teacher(student)
    a_loop(teacher, student)
    predictor, x = teacher.predictor(), torch.randn(8, 4)
    assert not any(module.training for module in predictor.modules())
    first = predictor(x)
    assert not first.requires_grad
    assert torch.equal(first, teacher.eval()(x))
    a_loop(teacher.train(), student)
    assert torch.equal(predictor(x), first)
    later = teacher.eval()(x)
    assert not torch.equal(later, first)
    predictor.train()(torch.randn(8, 4) - 9)
    assert torch.equal(teacher(x), later)


@pytest.mark.parametrize("decay", [-0.1, 1.1, 99, float("nan"), "0.99", True, None, torch.tensor(0.9)], ids=repr)
def test_what_is_no_decay_is_refused(decay: object) -> None:
    student = nn.Linear(4, 3)
    with pytest.raises(InputError, match=r"decay is a number from 0 .* to 1"):
        Teacher(student, decay)
    if decay is not None:
        with pytest.raises(InputError, match=r"decay is a number from 0 .* to 1"):
            Teacher(student).update(student, decay=decay)


def with_names(**layers: nn.Module) -> nn.Module:
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return network


STRANGERS: dict[str, tuple[nn.Module, str]] = {
    "a shape that broadcasts": (with_names(a=nn.Linear(1, 4), b=nn.Linear(4, 4)), r"'a.weight' has the shape \[4, 1\]"),
    "another order": (with_names(b=nn.Linear(4, 4), a=nn.Linear(4, 4)), "the same ones in another order"),
    "other names": (
        with_names(a=nn.Linear(4, 4), c=nn.Linear(4, 4)),
        "no parameter 'b.weight'.* a further .*'c.weight'",
    ),
    "a layer less": (with_names(a=nn.Linear(4, 4)), "no parameter 'b.weight'"),
    "a layer more": (
        with_names(a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4)),
        "a further parameter 'c.weight'",
    ),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_student_with_other_parameters_is_refused_and_nothing_is_averaged(kind: str) -> None:
    teacher = Teacher(with_names(a=nn.Linear(4, 4), b=nn.Linear(4, 4)))
    before = snapshot(teacher.network)
    stranger, words = STRANGERS[kind]
    with pytest.raises(InputError, match=words):
        teacher.update(stranger)
    with pytest.raises(InputError, match=words), teacher.average_parameters(stranger):
        pass
    assert all(torch.equal(value, before[name]) for name, value in snapshot(teacher.network).items())


@pytest.mark.parametrize("policy", ["average", "copy"])
def test_a_buffer_of_another_shape_is_refused(policy: Buffers) -> None:
    student = nn.BatchNorm1d(3)
    teacher = Teacher(student, buffers=policy)
    student.running_mean = torch.zeros(1)
    with pytest.raises(InputError, match=r"buffer 'running_mean' has the shape \[1\], the teacher's has \[3\]"):
        teacher.update(student)


def test_weights_that_are_tied_later_are_refused() -> None:
    student = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    teacher = Teacher(student)
    student[1].weight = student[0].weight
    with pytest.raises(InputError, match=r"no parameter '1.weight'.*tied"):
        teacher.update(student)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_student_that_is_not_finite_does_not_enter_the_average(value: float) -> None:
    student = batch_normalised()
    teacher = Teacher(student)
    a_loop(teacher, student)
    before = snapshot(teacher.network)
    with torch.no_grad():
        student[3].weight[1, 2] = value
    with pytest.raises(DivergedError, match=r"student's '3.weight' is not finite"):
        teacher.update(student)
    assert all(torch.equal(average, before[name]) for name, average in snapshot(teacher.network).items())
    teacher.network[3].weight[1, 2] = value
    with pytest.raises(DivergedError, match=r"teacher's '3.weight' is not finite"):
        teacher.predictor()


def test_large_weights_are_finite() -> None:
    student = nn.Linear(4, 3)
    teacher = Teacher(student)
    nn.init.constant_(student.weight, 1e30)  # whose squares are not
    teacher.update(student)
    assert bool((teacher.network.weight == 1e30).all())


def test_the_default_decay_warms_up_and_the_count_of_updates_is_saved() -> None:
    student = nn.Linear(4, 3)
    teacher, past = Teacher(student), []
    for _ in range(4):
        moved(student)
        past.append(snapshot(student))
        teacher.update(student, decay=0.9)  # the warm-up applies to it, too
    assert_equal(snapshot(teacher.network), weighted(past, [0.25] * 4))
    resumed = Teacher(nn.Linear(4, 3))
    resumed.load_state_dict(teacher.state_dict())
    moved(student)
    for goes_on in (teacher, resumed):
        goes_on.update(student)
    past.append(snapshot(student))
    assert resumed.n_updates == teacher.n_updates == 5
    assert_equal(snapshot(resumed.network), weighted(past, [0.2] * 5))


@pytest.mark.parametrize("lower", [lambda t: t.half(), lambda t: t.bfloat16(), lambda t: t.to(torch.bfloat16)])
def test_an_average_keeps_its_precision(lower: Callable[[Teacher], Teacher]) -> None:
    student = batch_normalised()
    teacher = Teacher(student)
    before = snapshot(teacher.network)
    lower(teacher)
    assert all(torch.equal(value, before[name]) for name, value in snapshot(teacher.network).items())
    assert teacher(torch.randn(8, 4).bfloat16()).dtype == torch.float32
    assert teacher.double()(torch.randn(8, 4).double()).dtype == torch.float64


def test_inputs_in_half_precision_are_converted_wherever_they_are() -> None:
    class OfDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, batch: dict[str, object], *, more: tuple[Tensor, ...]) -> Tensor:
            return self.layer(batch["x"]) + self.layer(batch["deeper"][0]["x"]) + self.layer(more[0])

    x = torch.randn(2, 4).bfloat16()
    teacher = Teacher(OfDict().bfloat16())
    given = {"x": x, "deeper": [{"x": x}], "ids": torch.arange(2)}
    assert teacher(given, more=(x,)).dtype == torch.float32
    assert given["x"].dtype == torch.bfloat16


def test_the_student_has_the_average_in_a_with_block_and_its_own_weights_after_it() -> None:
    student = batch_normalised()
    teacher, x = Teacher(student), torch.randn(8, 4)
    a_loop(teacher, student)
    student(torch.randn(8, 4))
    before, tensors = copy.deepcopy(student.state_dict()), list(student.parameters())
    with teacher.average_parameters(student):
        assert torch.equal(student.eval()(x), teacher.eval()(x))
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    with pytest.raises(RuntimeError, match="mat1 and mat2"), teacher.average_parameters(student):
        student(torch.zeros(1, 9))
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert all(one is other for one, other in zip(student.parameters(), tensors, strict=True))


def test_wrappers_are_looked_through() -> None:
    student = nn.Linear(4, 3)
    wrapped = nn.DataParallel(student)
    teacher = Teacher(torch.compile(wrapped, backend="eager"))
    assert type(teacher.network) is nn.Linear
    moved(student)
    teacher.update(torch.compile(wrapped, backend="eager"))
    assert_equal(snapshot(teacher.network), snapshot(student))


def test_a_type_checker_knows_arguments_and_outputs_of_a_teacher(tmp_path: Path) -> None:
    page = tmp_path / "typed.py"
    page.write_text(
        "import torch\nfrom torch import Tensor, nn\nfrom meanteacher import Teacher\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x: Tensor, *, scale: int) -> dict[str, Tensor]:\n        return {}\n"
        "teacher = Teacher(Net())\nreveal_type(teacher(torch.zeros(1), scale=2))\nreveal_type(teacher.predictor())\n"
        "teacher(1, scale=2)\ndef plain(module: nn.Module) -> None:\n    reveal_type(Teacher(module)(1))\n",
        encoding="utf-8",
    )
    words, _, _ = mypy_api.run([str(page), "--strict", "--no-error-summary"])
    found = re.findall(r'Revealed type is "(.*)"|error: (.*?)  \[', words)
    assert [one or other for one, other in found] == [
        "dict[str, torch._tensor.Tensor]",
        "typed.Net",
        'Argument 1 to "__call__" of "Teacher" has incompatible type "int"; expected "Tensor"',
        "Any",
    ]
