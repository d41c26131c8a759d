"""The last layers of a pretrained network: where they start, what trains them, and how they become a whole network."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, InputError, Problem
from meanteacher.costs import Confident
from meanteacher.data import Dataset, ImageStream, Split
from meanteacher.experiment import TrainingSpec
from meanteacher.experiment.describe import describe, fingerprint
from meanteacher.methods import MeanTeacher
from meanteacher.passes import to_channels_last
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.fitting.tail import CachedView, Tail, TailSpec, save_start, tail_training
from meanteacher.views.normalise import ToFloat

BACKBONE = find_backbone("lite0")
CUTS = BACKBONE.cuts
SIZE, N_CLASSES = 64, 3
PROBLEM = Problem(n_classes=N_CLASSES, n_examples=10, input_shape=())
every_cut = pytest.mark.parametrize("cut", CUTS)


def start_file(folder: Path, *, scale: float = 1.0) -> Path:
    draws = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(*shape, generator=draws) for shape in ((N_CLASSES, BACKBONE.n_features), (N_CLASSES,)))
    path = folder / "runs" / "start.safetensors"
    save_start(path, {"head.weight": scale * weight, "head.bias": bias})
    return path


def spec(folder: Path, cut: int, *, scale: float = 1.0) -> TailSpec:
    path = start_file(folder, scale=scale)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return TailSpec(backbone=BACKBONE, cut=cut, sha256=digest, feature_length=12.0, start=str(path))


def built(folder: Path, cut: int, *, scale: float = 1.0) -> Tail:
    tail = spec(folder, cut, scale=scale).build(PROBLEM)
    assert isinstance(tail, Tail)
    return tail


def pixels(n: int = 4) -> Tensor:
    return torch.randn(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def training(folder: Path, cut: int, method: str = "mean-teacher", *, scale: float = 1.0) -> TrainingSpec:
    return tail_training(method, model=spec(folder, cut, scale=scale), steps=50, n_views=4, n_weak=2)


# --- the network ------------------------------------------------------------------------------------------------------


@every_cut
def test_a_tail_starts_as_the_given_linear_classifier_on_the_pretrained_features(cut: int, tmp_path: Path) -> None:
    network = BACKBONE.network()
    tail = built(tmp_path, cut)
    start = torch.nn.Linear(BACKBONE.n_features, N_CLASSES)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        start.weight.copy_(torch.randn(N_CLASSES, BACKBONE.n_features, generator=draws))
        start.bias.copy_(torch.randn(N_CLASSES, generator=draws))
        front = network[:cut](pixels())
        expected = start(network(pixels()))
        torch.testing.assert_close(tail(front), expected, rtol=1e-4, atol=1e-4)
    assert len(tail) == CUTS[-1] - cut + 1


def test_layers_in_the_start_file_replace_the_pretrained_ones(tmp_path: Path) -> None:
    tail = built(tmp_path, CUTS[0])
    name = "0.project.1.bias"
    before = tail.state_dict()[name].clone()
    path = tmp_path / "continued.safetensors"
    weight = torch.ones(N_CLASSES, BACKBONE.n_features)
    save_start(path, {"head.weight": weight, "head.bias": torch.zeros(N_CLASSES), name: before + 1})
    tail.load(path)
    torch.testing.assert_close(tail.state_dict()[name], before + 1)
    torch.testing.assert_close(tail.head.weight * tail.head.scale, weight)


def test_batch_normalisations_keep_their_statistics_in_training(tmp_path: Path) -> None:
    tail = built(tmp_path, CUTS[0])
    tail.eval()
    tail.train()
    norms = [layer for layer in tail.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) > 3
    assert not any(layer.training for layer in norms)
    assert tail.training
    before = {name: value.clone() for name, value in tail.named_buffers()}
    features = torch.randn(8, 192, 2, 2)
    training = tail(features)
    assert all(torch.equal(value, before[name]) for name, value in tail.named_buffers())
    assert torch.equal(tail.eval()(features), training)
    # They are trained all the same.
    assert all(layer.weight.requires_grad for layer in norms)


@every_cut
def test_the_whole_network_computes_what_the_tail_computes_behind_the_front(cut: int, tmp_path: Path) -> None:
    tail = built(tmp_path, cut)
    with torch.no_grad():
        for parameter in tail.parameters():  # as if it had been trained
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    front = BACKBONE.network()[:cut]
    whole = BACKBONE.spec.build(Problem(n_classes=N_CLASSES, n_examples=1, input_shape=(3, SIZE, SIZE)))
    tail.fill(whole, front)
    with torch.no_grad():
        expected = tail.eval()(front(pixels()))
        torch.testing.assert_close(whole.eval()(pixels()), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_view_is_drawn_for_each_photo_from_its_range_alone() -> None:
    """Photo i in view j is the number 10 i + j."""
    stored = (10 * torch.arange(500)[:, None] + torch.arange(6)).view(500, 6, 1, 1).expand(500, 6, 2, 3)
    view = CachedView(2, 5)
    first, again, other = (view(stored, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first.shape == (500, 2, 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    photo, drawn = first[:, 0, 0] // 10, first[:, 0, 0] % 10
    assert torch.equal(photo, torch.arange(500))
    assert torch.bincount(drawn, minlength=6)[[0, 1, 5]].tolist() == [0, 0, 0]
    assert (torch.bincount(drawn)[2:] > 100).all()


def test_stored_features_are_not_normalised_and_become_floats(tmp_path: Path) -> None:
    assert training(tmp_path, CUTS[-1]).normalise is None
    features = torch.randn(4, 2, 5).half()
    out = ToFloat()(features)
    assert out.dtype == torch.float32
    assert torch.equal(out, features.float())


@pytest.mark.parametrize(("n_views", "n_weak"), [(1, 1), (2, 2), (4, 2), (8, 3)])
def test_the_teacher_sees_weak_views_and_the_student_strong_ones(n_views: int, n_weak: int, tmp_path: Path) -> None:
    for method in ("supervised", "mean-teacher"):
        made = tail_training(method, model=spec(tmp_path, CUTS[-1]), steps=50, n_views=n_views, n_weak=n_weak)
        assert made.views["teacher"] == CachedView(0, n_weak)
        assert made.views["student"] == CachedView(n_weak % n_views, n_views)
        assert made.labelled_view == CachedView(0, n_views)


@pytest.mark.parametrize("n_weak", [0, 5])
def test_no_weak_view_or_more_than_there_are_is_refused(n_weak: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"n_weak is 1 to n_views=4, got {n_weak}"):
        tail_training("supervised", model=spec(tmp_path, CUTS[-1]), steps=5, n_views=4, n_weak=n_weak)


# --- the training -----------------------------------------------------------------------------------------------------


def test_a_fingerprint_depends_on_the_start_and_not_on_where_it_lies(tmp_path: Path) -> None:
    here, there = (training(tmp_path / name, CUTS[0]) for name in ("here", "there"))
    assert here.model.start != there.model.start
    assert describe(here) == describe(there)
    assert fingerprint(here) == fingerprint(there)
    assert str(tmp_path) not in str(describe(here))
    assert describe(here)["model"]["backbone"]["sha256"] == BACKBONE.sha256
    others = [
        training(tmp_path / "other", CUTS[0], scale=2.0),
        training(tmp_path / "here", CUTS[1]),
        replace(here, model=replace(here.model, feature_length=1.0)),
        training(tmp_path / "here", CUTS[0], "supervised"),
    ]
    assert len({fingerprint(each) for each in (here, *others)}) == 5


def test_both_methods_see_as_many_labelled_photos_and_differ_in_the_unlabelled_ones_alone(tmp_path: Path) -> None:
    for cut in CUTS:
        ours, baseline = (training(tmp_path, cut, method) for method in ("mean-teacher", "supervised"))
        for name in ("model", "normalise", "views", "labelled_view", "optim", "steps"):
            assert getattr(ours, name) == getattr(baseline, name), name
        assert ours.batch.labelled == baseline.batch.labelled == baseline.batch.size < ours.batch.size
        assert isinstance(ours.method, MeanTeacher)
        assert isinstance(ours.method.cost, Confident)
        assert ours.method.cost.alignment == 1.0


@every_cut
def test_the_consistency_cost_alone_moves_every_parameter(cut: int, tmp_path: Path) -> None:
    made = training(tmp_path, cut, scale=3.0)  # a start that is certain of some photos
    shape = tuple(BACKBONE.network()[:cut](pixels(1)).shape[1:])
    stored = (2 * torch.randn(120, 4, *shape, generator=torch.Generator().manual_seed(3))).half()
    data = Dataset(stored, torch.arange(120) % N_CLASSES, ("a", "b", "c"))
    split = Split(torch.arange(30), torch.arange(30, 120), torch.empty(0, dtype=torch.int64))
    stream = ImageStream(
        data,
        made.batch.sampler(split, 0),
        views=made.views,
        labelled_view=made.labelled_view,
        normalise=ToFloat(),
        seed=0,
    )
    student = made.model.build(PROBLEM).train()
    memory = made.method.init(student, PROBLEM).train()
    output = made.method.forward(student, memory, stream[0], 0)
    cost = output.costs["consistency"]
    assert cost.value > 0
    assert float(cost.weight) == 1.0
    named = dict(student.named_parameters())
    gradients = torch.autograd.grad(cost.value, list(named.values()))
    assert len(gradients) == (2 if cut == CUTS[-1] else len(list(BACKBONE.network()[cut:].parameters())) + 2)
    for name, gradient in zip(named, gradients, strict=True):
        assert gradient.abs().max() > 0, f"{name} is not trained"


def test_the_teacher_is_the_average_and_takes_no_gradient(tmp_path: Path) -> None:
    made = training(tmp_path, CUTS[-1])
    student = made.model.build(PROBLEM).train()
    memory = made.method.init(student, PROBLEM).train()
    features = to_channels_last(torch.rand(6, BACKBONE.n_features))
    batch = Batch({"student": features, "teacher": features}, torch.full((6,), UNLABELLED), torch.arange(6))
    output = made.method.forward(student, memory, batch, 0)
    assert not any(parameter.requires_grad for parameter in memory.parameters())
    before = memory.network.head.weight.clone()
    with torch.no_grad():
        student.head.weight.add_(1.0)
    made.method.after_step(student, memory, batch, output, 9)
    moved = float((memory.network.head.weight - before).mean())
    assert moved == pytest.approx(1 - 0.9, abs=1e-3)  # 9 steps warmed up, less than the decay of a run of 50
