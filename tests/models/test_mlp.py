from collections.abc import Iterator

import pytest
import torch
from torch import nn

from meanteacher.core import Problem
from meanteacher.models import MlpSpec


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def built(shape: tuple[int, ...] = (6,), n_classes: int = 3, **spec: object) -> nn.Module:
    return MlpSpec(**spec).build(Problem(n_classes=n_classes, n_examples=10, input_shape=shape))


@pytest.mark.parametrize("shape", [(2,), (64,), (1, 8, 8), (3, 5, 4)])
@pytest.mark.parametrize("hidden", [(), (7,), (9, 5, 4)])
def test_points_tables_and_images_become_one_logit_a_class(shape: tuple[int, ...], hidden: tuple[int, ...]) -> None:
    assert built(shape, 4, hidden=hidden)(torch.randn(11, *shape)).shape == (11, 4)


def test_layers_have_the_sizes_asked_for() -> None:
    linear = [layer for layer in built((3, 2, 2), hidden=(9, 5)).modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(12, 9), (9, 5), (5, 3)]


def test_the_hidden_layers_are_rectified_and_the_logits_are_not() -> None:
    network, x = built(hidden=(40, 30)).double(), torch.randn(50, 6, dtype=torch.float64)
    first, second, last = (layer for layer in network.modules() if isinstance(layer, nn.Linear))
    hidden = (x @ first.weight.T + first.bias).clamp_min(0)
    hidden = (hidden @ second.weight.T + second.bias).clamp_min(0)
    torch.testing.assert_close(network(x), hidden @ last.weight.T + last.bias)
    assert network(x).min() < 0


def test_dropout_is_active_in_training_only() -> None:
    network, x = built(hidden=(50, 50), dropout=0.5), torch.randn(20, 6)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


def test_without_dropout_training_and_evaluation_agree() -> None:
    network, x = built(hidden=(50, 50)), torch.randn(20, 6)
    assert torch.equal(network(x), network.eval()(x))


def test_dropout_comes_before_each_layer_but_the_first() -> None:
    network, x, inputs = built(hidden=(50, 40), dropout=1.0), torch.randn(20, 6), []
    for layer in network:
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _layer, given: inputs.append(given[0]))
    network(x)
    assert torch.equal(inputs[0], x)
    assert [bool(given.any()) for given in inputs] == [True, False, False]


def test_with_one_output_the_last_layer_keeps_its_name() -> None:
    assert "7.weight" in built(hidden=(20, 10)).state_dict()
