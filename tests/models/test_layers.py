"""Dropout with a byte of randomness a unit, and the precision of running means."""

import pytest
import torch
from torch import Tensor, nn

from meanteacher.distributed import Ranks
from meanteacher.models.layers import ByteDropout, WeightNormLayer, WeightNormLinear, synchronise_batch_norm
from meanteacher.passes import without_dropout
from pretend_gpu import pretend_gpu


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_share_of_dropped_units_is_p_and_the_mean_is_kept(p: float, layout: torch.memory_format):
    torch.manual_seed(0)
    x = torch.ones(40, 16, 30, 30).contiguous(memory_format=layout)
    y = ByteDropout(p).train()(x)
    n = x.numel()
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    assert y.is_contiguous(memory_format=layout)


def test_every_one_of_the_eight_bytes_of_a_draw_is_fair():
    """The highest byte of a signed draw would be, if only half of its range were used."""
    torch.manual_seed(0)
    kept = ByteDropout(0.5).train()(torch.ones(200_000)) > 0
    share = kept.view(-1, 8).double().mean(0)
    assert torch.allclose(share, torch.full((8,), 0.5, dtype=torch.double), atol=5 * 0.5 / 25_000**0.5)


def test_units_are_dropped_independently():
    torch.manual_seed(0)
    kept = (ByteDropout(0.5).train()(torch.ones(1000, 512)) > 0).double() - 0.5
    for lag in (1, 7, 8, 64):
        correlation = float((kept[:, lag:] * kept[:, :-lag]).mean() / 0.25)
        assert abs(correlation) < 0.01
    assert abs(float((kept[1:] * kept[:-1]).mean() / 0.25)) < 0.01


def test_mask_is_a_function_of_the_global_seed_and_passes_gradient_to_the_kept():
    layer = ByteDropout(0.5).train()
    x = torch.randn(5, 7, requires_grad=True)
    masks = []
    for _ in range(2):
        torch.manual_seed(3)
        masks.append(layer(x))
    assert torch.equal(*masks)
    (gradient,) = torch.autograd.grad(masks[0].sum(), x)
    assert torch.equal(gradient == 2, masks[0] != 0)
    assert torch.equal(gradient == 0, masks[0] == 0)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_evaluation_and_extremes(p: float):
    x = torch.randn(3, 5)
    assert torch.equal(ByteDropout(p).eval()(x), x)
    if p != 0.5:
        assert torch.equal(ByteDropout(p).train()(x), x * (1 - p))


def test_it_can_be_turned_off_like_any_dropout():
    layer = ByteDropout(0.5).train()
    x = torch.randn(9)
    with without_dropout(layer):
        assert torch.equal(layer(x), x)


def test_odd_sizes_and_views_that_are_not_dense():
    torch.manual_seed(0)
    layer = ByteDropout(0.5).train()
    assert layer(torch.ones(13)).shape == (13,)
    strided = torch.ones(10, 20)[:, ::2]
    assert layer(strided).shape == (10, 10)


class Doubles(WeightNormLayer):
    """A layer whose product rounds to bfloat16, but has no instruction that may be missing."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(torch.ones(1, 1), 0.0)
        self.dtype = dtype

    def transform(self, x: Tensor, weight: Tensor) -> Tensor:
        return (2 * x).to(self.dtype)


def test_means_of_bfloat16_products_do_not_lose_what_they_sum():
    """4,097 fits no bfloat16, whose neighbour is 4,096: neither a sum of ones nor the mean of the running means."""
    x = torch.ones(1, 1, 4097, 1)
    x[:, :, 0] = 129 / 2
    layer = Doubles(torch.bfloat16)
    layer(x)
    mean = (4096 * 2 + 129) / 4097
    torch.testing.assert_close(layer.running_mean, torch.tensor([mean]), rtol=1e-6, atol=0)
    layer.initialising = True
    layer(x)
    deviation = float((2 * x).double().std(correction=0))
    torch.testing.assert_close(layer.scale.detach(), torch.tensor([1 / deviation]), rtol=1e-4, atol=0)


def test_ordinary_batch_norm_on_a_gpu_becomes_torchs_own_that_is_synchronised():
    with pretend_gpu():
        network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), WeightNormLinear(4, 3)).to("cuda")
        before, ranks = {**network.state_dict(keep_vars=True)}, Ranks(0, 2)
        synchronise_batch_norm(network, ranks)
        assert type(network[1]) is nn.SyncBatchNorm
        assert network[2].synchronised is ranks
        after = network.state_dict(keep_vars=True)
    assert [(name, id(tensor)) for name, tensor in after.items()] == [(name, id(t)) for name, t in before.items()]
