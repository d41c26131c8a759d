import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.dataset import Dataset
from meanteacher.evaluate import evaluation_mode, predict_logits
from support import error_rate


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Reads(nn.Module):
    """Predicts the class that is written in the first pixel, and notes how many images came at a time."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.chunks: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.chunks.append(len(images))
        return nn.functional.one_hot(images[:, 0].long(), self.n_classes).float() * 3 - 1


class Fails(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("out of memory")


def dataset(written: list[int], labels: list[int]) -> Dataset:
    return Dataset(torch.tensor(written, dtype=torch.float32)[:, None], torch.tensor(labels), tuple("abcd"))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def as_it_is(images: Tensor) -> Tensor:
    return images


def test_the_error_rate_is_the_share_of_wrong_predictions() -> None:
    data = dataset([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 0, 0, 2, 1, 3])
    assert error_rate(Reads(4), data, normalise=as_it_is) == 3 / 8


def test_a_network_with_two_outputs_is_judged_by_the_one_for_classification() -> None:
    class Two(Reads):
        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            logits = super().forward(images)
            return logits, logits.roll(1, 1)

    assert error_rate(Two(4), dataset([0, 1, 2, 3], [0, 1, 2, 0]), normalise=as_it_is) == 1 / 4


@pytest.mark.parametrize(
    ("index", "expected"), [([0, 1, 2], 0.0), ([3, 5, 6], 1.0), ([3, 0], 0.5), ([7, 6, 5, 4], 0.5), ([3, 3, 0, 0], 0.5)]
)
def test_the_error_rate_of_some_positions_judges_just_those(index: list[int], expected: float) -> None:
    data = dataset([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 0, 0, 2, 1, 3])
    assert error_rate(Reads(4), data, torch.tensor(index), normalise=as_it_is) == expected


def test_images_are_normalised_before_they_are_judged() -> None:
    data = dataset([1, 2, 3], [0, 1, 2])
    assert error_rate(Reads(4), data, normalise=as_it_is) == 1
    assert error_rate(Reads(4), data, normalise=lambda images: images - 1) == 0


def test_predictions_come_in_the_order_of_the_images_though_in_chunks() -> None:
    n = 1_203
    written = torch.randint(0, 4, (n, 1), generator=torch.Generator().manual_seed(0)).float()
    network = Reads(4)
    logits = predict_logits(network, written, normalise=as_it_is)
    assert torch.equal(logits.argmax(1), written[:, 0].long())
    assert logits.shape == (n, 4)
    assert sum(network.chunks) == n
    assert max(network.chunks) < n


def test_chunks_change_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = noisy(), torch.randn(23, 2)
    network(images)
    whole = predict_logits(network, images, normalise=as_it_is)
    monkeypatch.setattr("meanteacher.evaluate._BATCH", 4)
    torch.testing.assert_close(predict_logits(network, images, normalise=as_it_is), whole)


def test_evaluation_is_without_noise_and_without_gradients() -> None:
    network, images = noisy(), torch.randn(23, 2)
    first = predict_logits(network, images, normalise=as_it_is)
    assert torch.equal(predict_logits(network, images, normalise=as_it_is), first)
    assert not first.requires_grad
    assert not torch.equal(network(images), network(images))


def mixed_modes() -> nn.Module:
    """A network in training whose first batch normalisation is frozen, with the noise of a sub-network off."""
    network = nn.Sequential(noisy(), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))
    network[0][1].eval()
    network[1].eval()
    network[1][1].train()
    return network


@pytest.mark.parametrize("make", [noisy, lambda: noisy().eval(), mixed_modes], ids=["training", "evaluation", "mixed"])
def test_the_mode_of_every_module_is_restored(make: type[nn.Module]) -> None:
    network = make()
    modes = {name: module.training for name, module in network.named_modules()}
    with evaluation_mode(network):
        assert not any(module.training for module in network.modules())
    assert {name: module.training for name, module in network.named_modules()} == modes


@pytest.mark.parametrize("make", [noisy, lambda: noisy().eval(), mixed_modes], ids=["training", "evaluation", "mixed"])
def test_the_mode_of_every_module_is_restored_after_a_failure(make: type[nn.Module]) -> None:
    network = nn.Sequential(make(), Fails())
    modes = {name: module.training for name, module in network.named_modules()}
    with pytest.raises(RuntimeError, match="out of memory"):
        predict_logits(network, torch.randn(4, 2), normalise=as_it_is)
    assert {name: module.training for name, module in network.named_modules()} == modes
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_statistics_of_batch_normalisation_are_used_and_not_touched() -> None:
    network, images = noisy(), torch.randn(23, 2)
    network(images)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    together = predict_logits(network, images * 9 + 5, normalise=as_it_is)
    alone = predict_logits(network, images[:1] * 9 + 5, normalise=as_it_is)
    torch.testing.assert_close(together[:1], alone)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_network_can_be_trained_on_after_it_was_evaluated() -> None:
    network, images = noisy(), torch.randn(23, 2)
    predict_logits(network, images, normalise=as_it_is)
    network(images).square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_an_error_rate_on_unlabelled_images_is_refused() -> None:
    data = dataset([0, 1, 2], [0, UNLABELLED, 2])
    with pytest.raises(InputError, match="An error rate needs a label for every image, but some are unlabelled"):
        error_rate(Reads(4), data, normalise=as_it_is)
    assert error_rate(Reads(4), data, torch.tensor([0, 2]), normalise=as_it_is) == 0
    with pytest.raises(InputError, match="unlabelled"):
        error_rate(Reads(4), data, torch.tensor([2, 1]), normalise=as_it_is)


def test_evaluations_that_overlap_in_threads_do_not_switch_the_compiler_off() -> None:
    import torch._dynamo

    both, first_is_over = threading.Barrier(2), threading.Event()

    def evaluate(*, is_first: bool) -> None:
        if not is_first:
            started.wait(60)
        with evaluation_mode(nn.Linear(2, 2)):
            started.set()
            both.wait(60)
            if not is_first:
                first_is_over.wait(60)
        first_is_over.set()

    started = threading.Event()
    threads = [threading.Thread(target=evaluate, kwargs={"is_first": is_first}) for is_first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(nn.Linear(2, 2), backend=count)(torch.zeros(1, 2))
    assert len(graphs) == 1
