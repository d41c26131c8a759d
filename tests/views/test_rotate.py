from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage, stats
from torch import Tensor

from meanteacher.views import Rotate
from meanteacher.views.basic import rotation, warped


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=seeded(9), dtype=dtype)


def places(n: int, height: int, width: int) -> Tensor:
    """Two channels that hold each pixel's distance right of and below the centre."""
    x = (torch.arange(width, dtype=torch.float64) - (width - 1) / 2).expand(height, -1)
    y = (torch.arange(height, dtype=torch.float64) - (height - 1) / 2)[:, None].expand(-1, width)
    return torch.stack([x, y]).expand(n, -1, -1, -1)


def angles(view: Rotate, n: int, seed: int = 0) -> Tensor:
    """In degrees, read off where the pixel right of the centre came from."""
    seen = view(places(n, 9, 9), seeded(seed))[:, :, 4, 5]
    return torch.rad2deg(torch.atan2(seen[:, 1], seen[:, 0]))


@pytest.mark.parametrize("turns", [-1, 0, 1, 2])
@pytest.mark.parametrize("size", [8, 9])
def test_quarter_turns_are_those_of_rot90(turns: int, size: int) -> None:
    images = photographs(4, 3, size, size, dtype=torch.float64)
    turned = warped(images, rotation(torch.full((4,), turns * torch.pi / 2, dtype=torch.float64)))
    torch.testing.assert_close(turned, torch.rot90(images, turns, (2, 3)), atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(12, 12), (9, 16), (16, 7)])
def test_rotation_equals_that_of_scipy_image_by_image(shape: tuple[int, int]) -> None:
    images = photographs(10, 2, *shape, dtype=torch.float64)
    turned = Rotate(60)(images, seeded()).numpy()
    for image, result, angle in zip(images.numpy(), turned, angles(Rotate(60), 10).tolist(), strict=True):
        for channel, seen in zip(image, result, strict=True):
            expected = ndimage.rotate(channel, angle, reshape=False, order=1, mode="grid-constant")
            np.testing.assert_allclose(seen, expected, atol=1e-9)


@pytest.mark.parametrize("beyond", ["zeros", "border"])
@pytest.mark.parametrize("size", [(9, 16), (5, 7), (20, 3)])
def test_any_map_at_any_size_is_that_of_torch(size: tuple[int, int], beyond: Literal["zeros", "border"]) -> None:
    images = photographs(6, 2, 9, 16, dtype=torch.float64)
    source = torch.randn(6, 2, 3, generator=seeded(1), dtype=torch.float64)
    # torch counts in halves: of the result for where a pixel is shown, of the image for where it is seen.
    shown, seen = (torch.tensor([w / 2, h / 2, 1], dtype=torch.float64) for h, w in (size, (9, 16)))
    grid = F.affine_grid(source * shown / seen[:2, None], [6, 2, *size], align_corners=False)
    expected = F.grid_sample(images, grid, padding_mode=beyond, align_corners=False)
    torch.testing.assert_close(warped(images, source, size=size, beyond=beyond), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("degrees", [10.0, 45.0])
def test_angles_are_uniform_up_to_the_given_one_either_way(degrees: float) -> None:
    drawn = angles(Rotate(degrees), 5_000).numpy()
    assert np.abs(drawn).max() <= degrees + 1e-6
    assert stats.kstest(drawn, stats.uniform(-degrees, 2 * degrees).cdf).pvalue > 1e-3


def test_what_turns_in_from_outside_is_zero() -> None:
    turned = warped(torch.ones(1, 1, 8, 8), rotation(torch.tensor([torch.pi / 4])))
    assert turned[0, 0, 0, 0] == turned[0, 0, -1, 0] == 0
    torch.testing.assert_close(turned[0, 0, 3:5, 3:5], torch.ones(2, 2))


def test_all_channels_of_an_image_share_its_angle() -> None:
    same = photographs(1, 1, 16, 16).expand(20, 3, -1, -1)
    turned = Rotate()(same, seeded())
    assert torch.equal(turned[:, 0], turned[:, 1])
    assert torch.equal(turned[:, 0], turned[:, 2])
