"""Everything that trains, predicts or is saved can do so on a GPU, shown without one in two ways.

A pretended GPU (`pretend_gpu`) takes whole runs, to the same weights as the CPU. torch's fake tensors, whose rules are
torch's own, take a step of every method and a pass of every network, view and normaliser; "meta" is their other device,
since for a GPU that torch was not built for the first gradient ends the process. Both raise where two devices meet.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from instances import ALL_VIEWS, GENERATORS, NETWORKS, NORMALISERS
from PIL import Image
from safetensors.torch import load_file
from test_no_waiting import MORE, VIEWS, a_step
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from meanteacher.core import Problem
from meanteacher.data import Dataset, Fixed, ImageStream, TrainTest
from meanteacher.data.download import Progress
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import DataSpec, Outcome, Recipe, run
from meanteacher.models import Conv13Spec, FastNetSpec, ImageGeneratorSpec, PointGeneratorSpec
from meanteacher.passes import Logits, both_outputs
from meanteacher.photos.model.bundle import Classifier
from meanteacher.recipes.fast import fast_views, weak_labelled_view
from meanteacher.schedules import Constant
from meanteacher.teacher import Buffers, Memory, Teacher
from meanteacher.train import MuonSpec, RunOptions, SgdSpec, StopWhen
from meanteacher.views import PerChannel, Zca, normalise
from pretend_gpu import GPU, NAME, OnGpu, TwoDevicesError, pretend_gpu
from support import METHODS, PROBLEM, SHAPE, SmallNet, error_rate, recipe

IMAGES = Problem(n_classes=3, n_examples=24, input_shape=(3, 32, 32))


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def _close(got: Tensor, expected: Tensor) -> None:
    """As close as two ways through the same arithmetic come; what is on the wrong device raises, or is nowhere near."""
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


# --- the pretended GPU refuses what a real one refuses ----------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda x: torch.ones(3, 3) @ x,
        lambda x: torch.ones(3)[x.long()],
        lambda x: nn.functional.cross_entropy(x[None], torch.tensor([0])),
        lambda x: torch.rand(3, device=GPU, generator=torch.Generator("cpu")),
        lambda x: torch.rand(3, generator=torch.Generator(GPU)),
        lambda x: torch.ones(3).lerp_(x, 0.5),
        lambda x: x.numpy(),
    ],
)
def test_devices_do_not_mix(mix: Callable[[Tensor], Any]):
    with pretend_gpu(), pytest.raises(TwoDevicesError):
        mix(torch.ones(3, device=GPU))


def test_what_a_gpu_allows_is_allowed():
    with pretend_gpu():
        x = torch.arange(3.0).to("cuda")
        assert x.device == GPU
        assert isinstance(x * torch.tensor(2.0), OnGpu)
        assert x[torch.tensor([2, 1])].tolist() == [2, 1]
        assert x.cpu().numpy().tolist() == [0, 1, 2]
        assert torch.zeros(3).copy_(x).tolist() == [0, 1, 2]
        assert float(x.max()) == 2
        drawn = torch.rand(2, device=GPU, generator=torch.Generator(GPU).manual_seed(0))
    assert drawn.tolist() == torch.rand(2, generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("buffers", ["own", "average", "copy"])
def test_a_teacher_in_host_memory_computes_on_the_device_of_its_inputs(buffers: Buffers):
    with pretend_gpu():
        torch.manual_seed(0)
        student = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(GPU)
        there = Teacher(student, buffers=buffers)
        host = Teacher(student, buffers=buffers, in_host_memory=True).to(GPU)
        for _ in range(3):
            x = torch.randn(16, 4).to(GPU)
            with torch.no_grad():
                student(x)
                for parameter in student.parameters():
                    parameter.add_(torch.full(parameter.shape, 0.1).to(GPU))
            assert host(x).tolist() == there(x).tolist()
            assert isinstance(host(x), OnGpu)
            there(x)
            for teacher in (host, there):
                teacher.update(student, decay=0.9)
        for (name, kept), moved in zip(host.state_dict().items(), there.state_dict().values(), strict=True):
            assert not isinstance(kept, OnGpu), name
            assert kept.tolist() == moved.tolist(), name
        host.eval()
        there.eval()
        assert host(x).tolist() == there(x).tolist()


# --- whole runs -------------------------------------------------------------------------------------------


def _run(whole: Recipe, out: Path, device: str, *, resume: bool = False, stop_after: int = 1000) -> Outcome:
    asked = iter(range(stop_after - 1))
    data = whole.data.source.load(out)
    stop = lambda: next(asked, None) is None  # noqa: E731
    if device == "cpu":
        return run(
            whole,
            seed=3,
            out=out,
            data=data,
            resume=resume,
            options=RunOptions(device=device),
            callbacks=[StopWhen(stop)],
        )
    with pretend_gpu():
        return run(
            whole,
            seed=3,
            out=out,
            data=data,
            resume=resume,
            options=RunOptions(device=device),
            callbacks=[StopWhen(stop)],
        )


def _weights(out: Path) -> dict[str, Tensor]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return {
        f"{path.stem}.{name}": tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def _short(method: str = "mean-teacher", **changes: object) -> Recipe:
    whole = recipe(method, steps=3, optim=SgdSpec(learning_rate=Constant(0.02)))
    return whole.varied(**changes)


@pytest.mark.parametrize("method", METHODS)
def test_run_on_a_gpu_ends_like_one_on_the_cpu(method: str, tmp_path: Path):
    """Start, steps, readings, evaluation, checkpoint and record."""
    outcome = _run(_short(method), tmp_path / "gpu", "auto")
    assert torch.backends.cudnn.benchmark
    _run(_short(method), tmp_path / "cpu", "cpu")
    assert outcome.record is not None
    environment = outcome.record.environment
    assert (environment["device"], environment["device_name"]) == ("cuda", NAME)
    assert outcome.record.vitals
    assert outcome.record.alarms == ()
    on_gpu, on_cpu = _weights(tmp_path / "gpu"), _weights(tmp_path / "cpu")
    assert on_gpu.keys() == on_cpu.keys()
    for name, tensor in on_gpu.items():
        _close(tensor, on_cpu[name])


@dataclasses.dataclass(frozen=True)
class Photos:
    """Images large enough for every network, unless told otherwise."""

    side: int = 32

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        images, labels = _bytes(48, 3, self.side, self.side), torch.arange(48) % 3
        return TrainTest(*(Dataset(images[i::2], labels[i::2], ("a", "b", "c")) for i in (0, 1)))


_PHOTOS: dict[str, Any] = {
    "data": DataSpec(source=Photos(), n_labelled=6),
    "batch": Fixed(size=8, labelled=4, unlabelled_pool="all"),
}
PARTS: dict[str, dict[str, Any]] = {
    # The labelled rows have a view of their own, and the strong views read what each image drew.
    "fast": {
        "model": FastNetSpec(width=0.25),
        "views": fast_views(32, flip=True),
        "labelled_view": weak_labelled_view(32, flip=True),
        "optim": MuonSpec(learning_rate=Constant(0.02), sgd_learning_rate=Constant(0.02)),
    },
    # With its dropout, which draws other numbers on a GPU, and Adam. Whitening larger images takes a minute.
    "paper": {
        "data": DataSpec(source=Photos(side=12), n_labelled=6),
        "model": Conv13Spec(width=0.05),
        "normalise": Zca(contrast=True, epsilon=0.1),
        "optim": recipe().training.optim,
    },
}


@pytest.mark.parametrize("parts", PARTS)
def test_run_is_resumed_exactly_on_a_gpu(parts: str, tmp_path: Path):
    whole = _short(**{**_PHOTOS, **PARTS[parts]})
    assert not _run(whole, tmp_path / "a", "cuda", stop_after=2).complete
    assert _run(whole, tmp_path / "a", "auto", resume=True).complete
    _run(whole, tmp_path / "b", "cuda")
    a, b = _weights(tmp_path / "a"), _weights(tmp_path / "b")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    if parts == "fast":
        _run(whole, tmp_path / "c", "cpu")
        c = _weights(tmp_path / "c")
        for name in a:
            _close(a[name], c[name])


def test_state_that_a_gpu_saved_is_restored_anywhere(tmp_path: Path):
    whole = _short("temporal-ensembling")
    _run(whole, tmp_path / "run", "cuda")
    data = whole.data.source.load(tmp_path)
    images = data.test.images[:5]

    def logits(device: str) -> Tensor:
        state = run(whole, seed=3, out=tmp_path / "run", data=data, resume=True).restored(device=device)
        assert next(state.student.parameters()).device.type == device
        saved = {name: x.device.type for name, x in state.memory.state_dict().items() if "_extra_state" not in name}
        assert set(saved.values()) == {device}
        return predict_logits(state.predictor(whole.training.method), images, normalise=state.normalise)

    with pretend_gpu():
        there = logits("cuda")
    assert type(there) is Tensor
    _close(there, logits("cpu"))


@pytest.mark.parametrize("free_bytes", [1 << 30, 100])
def test_images_move_at_once_if_they_fit_and_else_a_batch_at_a_time(free_bytes: int):
    data = Photos().load(Path()).train
    images = dataclasses.replace(data, on_disk=True)
    sampler = Fixed(size=4, labelled=2, unlabelled_pool="all").sampler(_split(data), 0)

    def batch(dataset: Dataset, device: torch.device) -> Any:
        fitted = PerChannel().fit(data.images).to(device)
        return ImageStream(dataset, sampler, views={"student": VIEWS["flip"]}, normalise=fitted, seed=0, device=device)[
            2
        ]

    with pretend_gpu(free_bytes):
        moved = images.on(GPU)
        assert isinstance(moved.images, OnGpu) == (free_bytes > 100)
        assert moved.on_disk == (free_bytes == 100)
        assert moved.images.dtype == torch.uint8
        there = batch(moved, GPU)
        assert isinstance(there.labels, OnGpu)
        assert isinstance(there.index, OnGpu)
        seen = there.views["student"].cpu()
    here = batch(images, torch.device("cpu"))
    _close(seen, here.views["student"])
    assert (there.labels.tolist(), there.index.tolist()) == (here.labels.tolist(), here.index.tolist())
    assert images.on(torch.device("cpu")) is images


def _split(data: Dataset) -> Any:
    from meanteacher.data import make_split

    return make_split(data.labels, n_classes=3, n_labelled=6, seed=0)


# --- each part --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_network_passes_forward_and_back_on_a_gpu(name: str):
    def passed(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        network = NETWORKS[name].build(IMAGES).train().to(device)
        x = _random(6, 3, 32, 32).to(device)
        for layer in network.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0  # a GPU draws other masks
        if hasattr(network, "initialise_from"):
            network.initialise_from(x)
        torch.manual_seed(1)
        logits, matched = both_outputs(network(x))
        (logits - 0.5 * matched).square().sum().backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        tensors = [*gradients, *network.buffers(), both_outputs(network.eval()(x))[0].detach()]
        assert {tensor.device for tensor in tensors} == {device}
        return [tensor.cpu() for tensor in tensors]

    with pretend_gpu():
        there = passed(GPU)
    here = passed(torch.device("cpu"))
    assert len(there) == len(here)
    for got, expected in zip(there, here, strict=True):
        torch.testing.assert_close(got, expected, rtol=0.01, atol=0.01 * float(expected.abs().max()) + 1e-6)


def test_dropout_of_the_convnet_is_a_gpus_own():
    network = Conv13Spec(width=0.05).build(IMAGES).train()
    with pretend_gpu():
        layer = network.dropout1
        x = torch.ones(4, 8, 16, 16, device=GPU)
        dropped = layer(x)
        assert isinstance(dropped, OnGpu)
        assert sorted(set(dropped.flatten().tolist())) == [0, 2]
        assert torch.equal(layer.eval()(x).cpu(), torch.ones(4, 8, 16, 16))


@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
def test_generator_makes_its_examples_on_a_gpu(spec: PointGeneratorSpec | ImageGeneratorSpec):
    with pretend_gpu():
        network = spec.build(IMAGES).to(GPU)
        assert isinstance(network(torch.randn(4, spec.n_noise, device=GPU)), OnGpu)


@pytest.mark.parametrize("name", ALL_VIEWS)
def test_view_shows_the_same_on_a_gpu(name: str):
    images = _random(5, 3, 16, 16).double()
    with pretend_gpu():
        there = ALL_VIEWS[name](images.to(GPU), torch.Generator(GPU).manual_seed(4))
        assert isinstance(there, OnGpu)
        there = there.cpu()
    _close(there, ALL_VIEWS[name](images, torch.Generator().manual_seed(4)))


@pytest.mark.parametrize("name", NORMALISERS)
def test_normaliser_computes_the_same_on_a_gpu(name: str):
    images = _bytes(20, 3, 8, 8)
    fitted = NORMALISERS[name].fit(images)
    expected = fitted(images)
    with pretend_gpu():
        there = fitted.to(GPU)(images.to(GPU))
        assert isinstance(there, OnGpu)
        _close(there.cpu(), expected)


@pytest.mark.parametrize("images_on", ["cpu", "cuda"])
def test_evaluation_is_where_the_network_is(images_on: str):
    torch.manual_seed(0)
    network, data = SmallNet(), Photos().load(Path()).test
    data = Dataset(data.images[:, :1, :6, :6].contiguous(), data.labels, data.class_names)
    fitted, index = PerChannel().fit(data.images), torch.tensor([3, 1, 7])
    expected = predict_logits(network, data.images, normalise=fitted)
    error = error_rate(network, data, index, normalise=fitted)
    with pretend_gpu():
        network.to(GPU)
        fitted.to(GPU)
        there = data.on(GPU) if images_on == "cuda" else data
        got = predict_logits(network, there.images, normalise=fitted)
        assert type(got) is Tensor
        _close(got, expected)
        assert error_rate(network, there, index, normalise=fitted) == error


def test_model_predicts_the_same_on_a_gpu_and_stays_where_it_was(tmp_path: Path):
    draws = np.random.default_rng(0)
    for label in "abc":
        for number in range(3):
            path = tmp_path / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    torch.manual_seed(0)
    network = FastNetSpec(width=0.25).build(IMAGES).eval()
    model = Classifier(network, PerChannel().fit(_bytes(9, 3, 32, 32)), ("a", "b", "c"), 32, 2.0, {})
    photos, here, there = tmp_path / "photos", tmp_path / "here.csv", tmp_path / "there.csv"
    model.predict(photos, out=here, device="cpu")
    judged = model.evaluate(photos, device="cpu")
    with pretend_gpu():
        model.predict(photos, out=there, device="auto")
        assert model.evaluate(photos, device="cuda:0")["confusion"] == judged["confusion"]
    labels = [[line.split(",")[:2] for line in path.read_text().splitlines()] for path in (here, there)]
    assert labels[0] == labels[1]
    assert {type(tensor) for tensor in model.network.state_dict().values()} == {Tensor}


# --- broken on purpose ------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["normaliser", "memory", "student", "generator", "labels"])
def test_what_is_left_on_the_cpu_is_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stays = lambda self, *_, **__: self  # noqa: E731
    if broken == "normaliser":
        monkeypatch.setattr(normalise._PerChannelModule, "to", stays)
    elif broken == "memory":
        monkeypatch.setattr(Memory, "to", stays)
    elif broken == "student":
        monkeypatch.setattr(SmallNet, "to", stays)
    elif broken == "generator":
        from meanteacher.data import stream

        real = stream.generator
        monkeypatch.setattr(stream, "generator", lambda seed, purpose, step, device: real(seed, purpose, step))
    else:
        real_batch = ImageStream.__getitem__

        def batch(self: ImageStream, step: int) -> Any:
            whole = real_batch(self, step)
            return dataclasses.replace(whole, labels=whole.labels.cpu())

        monkeypatch.setattr(ImageStream, "__getitem__", batch)
    with pytest.raises(TwoDevicesError):
        _run(_short("temporal-ensembling"), tmp_path, "cuda")


# --- torch's fake tensors ---------------------------------------------------------------------------------

OTHER = "meta"


@contextmanager
def _fake() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@pytest.mark.parametrize("method", [*METHODS.values(), *MORE.values()], ids=[*METHODS, *MORE])
def test_step_of_a_method_mixes_no_devices(method: Any):
    student = SmallNet().train().to(OTHER)
    memory = method.init(student, PROBLEM).train().to(OTHER)
    with _fake():
        a_step(method, student, memory, device=OTHER)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_mixes_no_devices(name: str):
    network = NETWORKS[name].build(IMAGES).train().to(OTHER)
    with _fake():
        output: Logits = network(torch.randn(4, 3, 32, 32, device=OTHER))
        both_outputs(output)[0].sum().backward()
        network.eval()(torch.randn(4, 3, 32, 32, device=OTHER))


@pytest.mark.parametrize("name", VIEWS)
def test_view_mixes_no_devices(name: str):
    with _fake():
        assert VIEWS[name](torch.randn(4, 3, 16, 16, device=OTHER), torch.Generator()).device.type == OTHER


@pytest.mark.parametrize("name", NORMALISERS)
@pytest.mark.parametrize("moved", [True, False])
def test_evaluation_behind_a_normaliser_that_was_left_on_the_cpu_fails(name: str, moved: bool):
    network = SmallNet().to(OTHER)
    fitted = NORMALISERS[name].fit(_bytes(9, *SHAPE))
    has_tensors = bool(fitted.state_dict())
    if moved:
        fitted.to(OTHER)
    with _fake():
        images = torch.zeros(9, *SHAPE, dtype=torch.uint8)
        if moved or not has_tensors:
            assert predict_logits(network, images, normalise=fitted).shape == (9, 3)
        else:
            with pytest.raises(RuntimeError, match="found at least two devices"):
                predict_logits(network, images, normalise=fitted)
