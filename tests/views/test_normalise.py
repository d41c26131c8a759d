import pytest
import torch
from torch import Tensor

from meanteacher.core import InputError
from meanteacher.views import PerChannel, PerImage, Scaled
from meanteacher.views.normalise import parts, to_float


def bytes_of(*shape: int, seed: int = 0) -> Tensor:
    """Random images whose channels differ in brightness and contrast."""
    source = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.2, 1, shape[1]).view(1, -1, *[1] * (len(shape) - 2))
    return (torch.rand(shape, generator=source) * scale * 255).to(torch.uint8)


def test_bytes_become_zero_to_one_and_floats_stay() -> None:
    assert torch.equal(to_float(torch.tensor([0, 51, 255], dtype=torch.uint8)), torch.tensor([0.0, 0.2, 1.0]))
    values = torch.tensor([-3.0, 300.0], dtype=torch.float64)
    assert torch.equal(to_float(values), values)


# --- scaled ---------------------------------------------------------------------------------------------


def test_scaled_spreads_bytes_evenly_around_zero() -> None:
    images = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    torch.testing.assert_close(Scaled(limit=0.5).fit(images)(images), torch.tensor([[-0.5, -0.3, 0.5]]))
    torch.testing.assert_close(Scaled(limit=1.0).fit(images)(images), torch.tensor([[-1.0, -0.6, 1.0]]))


def test_scaled_refuses_a_range_that_is_none() -> None:
    with pytest.raises(InputError, match="a limit above 0"):
        Scaled(limit=0.0)


# --- per image ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 3, 8, 8), (20, 1, 5, 7), (20, 30)])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_per_image_gives_each_image_zero_mean_and_unit_variance(shape: tuple[int, ...], as_bytes: bool) -> None:
    images = bytes_of(*shape)
    images = images if as_bytes else images.float() * 7 - 100
    normal = PerImage().fit(images)(images).flatten(1)
    torch.testing.assert_close(normal.mean(1), torch.zeros(20), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.var(1, correction=0), torch.ones(20), atol=1e-4, rtol=0)


def test_per_image_keeps_the_channels_of_an_image_apart() -> None:
    """All pixels and channels share one mean: a red image stays redder than its other channels."""
    images = torch.rand(4, 3, 8, 8)
    images[:, 0] += 1
    normal = PerImage().fit(images)(images)
    assert (normal[:, 0].mean((1, 2)) > normal[:, 1].mean((1, 2)) + 1).all()


@pytest.mark.parametrize("level", [0.0, 0.1, 1 / 3, 1.0])
def test_per_image_maps_a_constant_image_to_almost_nothing(level: float) -> None:
    images = torch.full((2, 3, 32, 32), level)
    assert PerImage().fit(images)(images).abs().max() < 0.1


def test_per_image_needs_no_training_images() -> None:
    images = bytes_of(4, 3, 8, 8)
    one, other = PerImage().fit(images), PerImage().fit(bytes_of(9, 3, 8, 8, seed=1))
    assert torch.equal(one(images), other(images))
    assert not one.state_dict()


# --- per channel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("shape", [(300, 3, 8, 8), (300, 1, 4, 6), (300, 5, 7), (300, 6)])
def test_per_channel_gives_each_channel_zero_mean_and_unit_variance(shape: tuple[int, ...], as_bytes: bool) -> None:
    images = bytes_of(*shape)
    images = images if as_bytes else images.float() * 7 - 100
    normal = PerChannel().fit(images)(images)
    assert normal.shape == shape
    by_channel = normal.transpose(0, 1).flatten(1)
    torch.testing.assert_close(by_channel.mean(1), torch.zeros(shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(by_channel.var(1, correction=0), torch.ones(shape[1]), atol=1e-3, rtol=0)


def test_per_channel_uses_the_training_statistics_on_other_images() -> None:
    train, test = bytes_of(200, 3, 6, 6), bytes_of(10, 3, 6, 6, seed=1).div(2, rounding_mode="floor")
    x = train.double() / 255
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True, correction=0)
    expected = (test.double() / 255 - mean) / deviation
    torch.testing.assert_close(PerChannel().fit(train)(test).double(), expected, atol=1e-5, rtol=0)


def test_per_channel_statistics_do_not_depend_on_how_many_images_are_read_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = bytes_of(50, 3, 4, 4)
    whole = PerChannel().fit(images)(images)
    monkeypatch.setattr("meanteacher.views.normalise._VALUES", 7 * 12)
    torch.testing.assert_close(PerChannel().fit(images)(images), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("level", [0.0, 0.1, 0.7, 123 / 255, 1234.5678, -1e6])
def test_a_channel_that_never_varies_is_centred_and_never_blown_up(level: float) -> None:
    train = torch.rand(100, 3, 8, 8)
    train[:, 1] = level
    module = PerChannel().fit(train)
    assert module(train)[:, 1].abs().max() < 1e-3 * max(1, abs(level))
    other = train[:1].clone()
    other[:, 1] += 1
    # Whatever the channel is one day, its scale stays that of the data.
    torch.testing.assert_close(module(other)[:, 1], torch.ones(1, 8, 8), atol=0.2, rtol=0)


def test_a_feature_with_a_large_offset_keeps_its_variance() -> None:
    table = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table[:, 1] = table[:, 1] * 100 + 1.6e9  # seconds since 1970
    normal = PerChannel().fit(table)(table)
    assert normal.std(0, correction=0).tolist() == pytest.approx([1.0, 1.0], rel=1e-4)


def test_a_feature_of_tiny_values_is_scaled_up_too() -> None:
    table = torch.randn(500, 1, generator=torch.Generator().manual_seed(0)) * 1e-10
    assert PerChannel().fit(table)(table).std(correction=0) == pytest.approx(1.0, rel=1e-4)


# --- parts of a set -------------------------------------------------------------------------------------


def test_some_images_are_never_copied_all_at_once() -> None:
    images, index = bytes_of(40, 3, 4, 4), torch.randperm(40, generator=torch.Generator().manual_seed(0))[:25]
    found = list(parts(images, index, 10))
    assert [len(part) for part in found] == [10, 10, 5]
    assert torch.equal(torch.cat(found), images[index])
