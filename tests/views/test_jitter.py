from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from meanteacher.views import Jitter
from meanteacher.views.strong import recoloured

YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], dtype=torch.float64)
NOTHING = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=seeded(9), dtype=dtype)


def yiq(images: Tensor) -> Tensor:
    return torch.einsum("kc,bchw->kbhw", YIQ.to(images), images)


def assert_uniform(drawn: Tensor, centre: float, most: float) -> None:
    values = drawn.numpy()
    assert np.abs(values - centre).max() <= most + 1e-9
    assert stats.kstest(values, stats.uniform(centre - most, 2 * most).cdf).pvalue > 1e-3


def test_brightness_alone_adds_to_every_value_of_an_image_one_number_of_its_own() -> None:
    images = photographs(4_000, 3, 4, 4)
    change = (Jitter(**{**NOTHING, "brightness": 0.4})(images, seeded()) - images).flatten(1)
    torch.testing.assert_close(change, change[:, :1].expand_as(change), atol=1e-9, rtol=0)
    assert_uniform(change[:, 0], 0, 0.8)


@pytest.mark.parametrize("brightness", [-0.4, 0.25])
def test_brightness_moves_the_mean_of_photographs_as_a_factor_on_their_bytes_does(brightness: float) -> None:
    mean, deviation = 120.0, 60.0
    pixels = mean + deviation * photographs(200, 3, 8, 8)
    multiplied = ((1 + brightness) * pixels - mean) / deviation
    changed = recoloured((pixels - mean) / deviation, brightness=brightness)
    assert changed.mean().item() == pytest.approx(multiplied.mean().item(), abs=0.01)


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_alone_scales_the_differences_from_the_mean_luma(channels: int) -> None:
    images = photographs(4_000, channels, 4, 4) + 1
    changed = Jitter(**{**NOTHING, "contrast": 0.4})(images, seeded())
    grey = (lambda x: yiq(x)[0]) if channels == 3 else (lambda x: x[:, 0])
    mean = grey(images).mean((1, 2))
    torch.testing.assert_close(grey(changed).mean((1, 2)), mean, atol=1e-9, rtol=0)
    before, after = ((x - mean.view(-1, 1, 1, 1)).flatten(1) for x in (images, changed))
    factor = (before * after).sum(1) / before.square().sum(1)
    torch.testing.assert_close(after, factor[:, None] * before, atol=1e-9, rtol=0)
    assert_uniform(factor, 1, 0.4)


def test_saturation_alone_scales_every_colour_and_keeps_every_luma() -> None:
    images = photographs(4_000, 3, 4, 4)
    before, after = yiq(images), yiq(Jitter(**{**NOTHING, "saturation": 0.4})(images, seeded()))
    torch.testing.assert_close(after[0], before[0], atol=1e-9, rtol=0)
    factor = after[1, :, 0, 0] / before[1, :, 0, 0]
    torch.testing.assert_close(after[1:], factor[:, None, None] * before[1:], atol=1e-9, rtol=0)
    assert_uniform(factor, 1, 0.4)


@pytest.mark.parametrize("hue", [0.1, 0.5])
def test_hue_alone_turns_every_colour_by_one_angle_and_keeps_every_luma(hue: float) -> None:
    images = photographs(4_000, 3, 4, 4)
    before, after = yiq(images), yiq(Jitter(**{**NOTHING, "hue": hue})(images, seeded()))
    torch.testing.assert_close(after[0], before[0], atol=1e-9, rtol=0)
    turn = torch.complex(after[1], after[2]) / torch.complex(before[1], before[2])
    torch.testing.assert_close(turn, turn[:, :1, :1].expand_as(turn), atol=1e-7, rtol=0)
    torch.testing.assert_close(turn.abs(), torch.ones_like(turn.abs()), atol=1e-7, rtol=0)
    assert_uniform(turn[:, 0, 0].angle() / (2 * torch.pi), 0, hue)


def test_a_quarter_of_the_hue_circle_leads_from_i_to_q() -> None:
    images = photographs(4, 3, 5, 7)
    before, after = yiq(images), yiq(recoloured(images, hue=0.25))
    torch.testing.assert_close(after, torch.stack([before[0], -before[2], before[1]]))


def test_the_four_draws_of_an_image_are_independent() -> None:
    images = photographs(1, 3, 4, 4).expand(4_000, -1, -1, -1)
    changed = yiq(Jitter()(images, seeded()))
    colour = torch.complex(changed[1], changed[2]) / torch.complex(*yiq(images)[1:])
    luma = changed[0].flatten(1)
    brightness, contrast = luma.mean(1), luma.std(1) / yiq(images)[0].flatten(1).std(1)
    draws = torch.stack([brightness, contrast, colour.abs()[:, 0, 0] / contrast, colour.angle()[:, 0, 0]])
    assert (torch.corrcoef(draws) - torch.eye(4)).abs().max() < 0.05


def test_the_order_of_the_four_changes_does_not_matter() -> None:
    images = photographs(6, 3, 5, 7) + 1
    factors = dict(zip(NOTHING, torch.rand(4, 6, generator=seeded(), dtype=torch.float64) - 0.5, strict=True))
    at_once = recoloured(images, **factors)
    for order in permutations(factors):
        changed = images
        for name in order:
            changed = recoloured(changed, **{name: factors[name]})
        torch.testing.assert_close(changed, at_once, atol=1e-9, rtol=0)


def test_grey_pixels_stay_grey() -> None:
    grey = photographs(20, 1, 6, 6).expand(-1, 3, -1, -1)
    changed = Jitter()(grey, seeded())
    torch.testing.assert_close(changed, changed[:, :1].expand_as(changed), atol=1e-9, rtol=0)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_that_have_not_three_channels_know_no_saturation_or_hue(channels: int) -> None:
    images = photographs(20, channels, 6, 6)
    assert torch.equal(Jitter(brightness=0, contrast=0)(images, seeded()), images)
    assert not torch.equal(Jitter()(images, seeded()), images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 3, 5, 9), (6, 3, 9, 5), (6, 1, 1, 1)])
def test_constant_images_stay_constant(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    changed = Jitter()(torch.full(shape, 3.0, dtype=dtype), seeded())
    torch.testing.assert_close(changed, changed[:, :1, :1, :1].expand(shape))
    assert (changed - 3).abs().max() <= 0.81
