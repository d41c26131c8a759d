import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

from meanteacher.views import Crop


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=seeded(9), dtype=dtype)


def boxes(view: Crop, n: int, height: int, width: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """left, top, width and height of each box in pixels, read off images that hold each pixel's place."""
    x = (torch.arange(width, dtype=torch.float64) + 0.5).expand(height, -1)
    y = (torch.arange(height, dtype=torch.float64) + 0.5)[:, None].expand(-1, width)
    seen = view(torch.stack([x, y]).expand(n, -1, -1, -1), seeded(seed))
    rows, columns = seen.shape[2:]
    # The middle pixels never touch the border, where the place stops growing.
    i, j = rows // 2, columns // 2
    box_width = (seen[:, 0, i, j] - seen[:, 0, i, j - 1]).numpy() * columns
    box_height = (seen[:, 1, i, j] - seen[:, 1, i - 1, j]).numpy() * rows
    left = seen[:, 0, i, j].numpy() - (j + 0.5) / columns * box_width
    top = seen[:, 1, i, j].numpy() - (i + 0.5) / rows * box_height
    return left, top, box_width, box_height


@pytest.mark.parametrize(("shape", "size"), [((12, 12), None), ((9, 16), None), ((16, 9), 12), ((20, 20), 8)])
def test_a_crop_equals_bilinear_sampling_of_its_box_image_by_image(shape: tuple[int, int], size: int | None) -> None:
    images = photographs(10, 2, *shape, dtype=torch.float64)
    cropped = Crop(size)(images, seeded(1)).numpy()
    rows, columns = cropped.shape[2:]
    for k, (left, top, width, height) in enumerate(zip(*boxes(Crop(size), 10, *shape, seed=1), strict=True)):
        x = left + (np.arange(columns) + 0.5) / columns * width - 0.5
        y = top + (np.arange(rows) + 0.5) / rows * height - 0.5
        at = np.meshgrid(y, x, indexing="ij")
        for channel, seen in zip(images[k].numpy(), cropped[k], strict=True):
            expected = ndimage.map_coordinates(channel, at, order=1, mode="nearest")
            np.testing.assert_allclose(seen, expected, atol=1e-9)


@pytest.mark.parametrize("shape", [(20, 20), (24, 16)])
def test_the_box_is_the_same_at_every_size_of_the_result(shape: tuple[int, int]) -> None:
    for kept, resized in zip(boxes(Crop(), 20, *shape), boxes(Crop(12), 20, *shape), strict=True):
        np.testing.assert_allclose(kept, resized, atol=1e-9)


@pytest.mark.parametrize("scale", [(0.08, 0.7), (0.3, 0.4)])
def test_areas_are_uniform_and_aspects_log_uniform(scale: tuple[float, float]) -> None:
    _, _, width, height = boxes(Crop(scale=scale), 5_000, 32, 32)
    low, high = scale
    share, aspect = width * height / 32**2, np.log(width / height)
    assert low - 1e-9 <= share.min() <= share.max() <= high + 1e-9
    assert np.abs(aspect).max() <= np.log(4 / 3) + 1e-9
    assert stats.kstest(share, stats.uniform(low, high - low).cdf).pvalue > 1e-3
    assert stats.kstest(aspect, stats.uniform(np.log(3 / 4), 2 * np.log(4 / 3)).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(share, aspect)[0, 1]) < 0.05


@pytest.mark.parametrize("shape", [(32, 32), (24, 36), (36, 24)])
def test_places_are_uniform_inside_the_image(shape: tuple[int, int]) -> None:
    left, top, width, height = boxes(Crop(scale=(0.08, 0.5)), 5_000, *shape)
    for start, room in [(left, shape[1] - width), (top, shape[0] - height)]:
        assert stats.kstest(start / room, stats.uniform(0, 1).cdf).pvalue > 1e-3


@pytest.mark.parametrize("shape", [(32, 32), (20, 30), (8, 40), (40, 8)])
def test_every_box_lies_inside_the_image_with_an_allowed_area_and_shape(shape: tuple[int, int]) -> None:
    left, top, width, height = boxes(Crop(), 5_000, *shape)
    assert min(left.min(), top.min()) > -1e-6
    assert (left + width).max() < shape[1] + 1e-6
    assert (top + height).max() < shape[0] + 1e-6
    aspect, share = width / height, width * height / (shape[0] * shape[1])
    assert 3 / 4 - 1e-6 < aspect.min() < aspect.max() < 4 / 3 + 1e-6
    # The widest box allowed in a long image spans its short side.
    largest = min(1, 4 / 3 * min(shape) / max(shape))
    assert stats.kstest(share, stats.uniform(0.08, largest - 0.08).cdf).pvalue > 1e-3


def test_a_share_that_no_allowed_shape_has_gives_the_largest_one_that_fits() -> None:
    _, _, width, height = boxes(Crop(scale=(1.0, 1.0), aspect=(1.0, 1.0)), 20, 8, 40)
    np.testing.assert_allclose(width, 8)
    np.testing.assert_allclose(height, 8)


@pytest.mark.parametrize("aspect", [(1.0, 1.0), (3 / 4, 4 / 3)])
def test_the_whole_of_a_square_image_is_the_image(aspect: tuple[float, float]) -> None:
    images = photographs(5, 3, 10, 10)
    whole = Crop(scale=(1.0, 1.0), aspect=aspect)(images, seeded())
    torch.testing.assert_close(whole, images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [None, 1, 5, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 3, 5, 9), (6, 3, 9, 5), (6, 1, 1, 1)])
def test_constant_images_stay_constant_at_the_size_asked_for(
    shape: tuple[int, ...], dtype: torch.dtype, size: int | None
) -> None:
    cropped = Crop(size)(torch.full(shape, 3.0, dtype=dtype), seeded())
    expected = (*shape[:2], size, size) if size else shape
    torch.testing.assert_close(cropped, torch.full(expected, 3.0, dtype=dtype))


def test_all_channels_of_an_image_share_its_box() -> None:
    same = photographs(1, 1, 16, 16).expand(20, 3, -1, -1)
    cropped = Crop()(same, seeded())
    assert torch.equal(cropped[:, 0], cropped[:, 1])
    assert torch.equal(cropped[:, 0], cropped[:, 2])
