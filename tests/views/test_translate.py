import numpy as np
import pytest
import torch

from meanteacher.core import InputError
from meanteacher.views import Translate


def reference(images: np.ndarray, shifts: np.ndarray, pixels: int) -> np.ndarray:
    """One image at a time: pad by reflection, cut the shifted window out."""
    _, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)), mode="reflect")
    return np.stack(
        [
            padded[i, :, pixels + down : pixels + down + height, pixels + right : pixels + right + width]
            for i, (down, right) in enumerate(shifts)
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize(
    ("pixels", "shape"),
    [(1, (3, 8, 8)), (2, (3, 32, 32)), (4, (1, 9, 5)), (4, (2, 5, 12)), (2, (1, 3, 3))],
)
def test_translation_equals_reflection_padding_image_by_image(
    pixels: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    images = torch.randint(0, 256, (60, *shape), generator=torch.Generator().manual_seed(1)).to(dtype)
    translated = Translate(pixels)(images, torch.Generator().manual_seed(5))
    equal = torch.Generator().manual_seed(5)
    shifts = torch.randint(-pixels, pixels + 1, (2, 60, 1), generator=equal)[:, :, 0].T.numpy()
    np.testing.assert_array_equal(translated.numpy(), reference(images.numpy(), shifts, pixels))
    assert translated.dtype == dtype


def test_shifts_cover_the_whole_range_uniformly_along_both_axes() -> None:
    # The value of a pixel is its place, so the centre pixel tells the shift.
    place = torch.arange(81.0).view(1, 1, 9, 9)
    n_images = 12_500
    centre = Translate(2)(place.expand(n_images, -1, -1, -1), torch.Generator().manual_seed(0))[:, 0, 4, 4]
    down, right = centre.div(9, rounding_mode="floor") - 4, centre.remainder(9) - 4
    pairs, counts = torch.stack([down, right], 1).unique(dim=0, return_counts=True)
    assert pairs.tolist() == [[i, j] for i in range(-2, 3) for j in range(-2, 3)]
    # 500 each; a chi-square of 24 degrees of freedom exceeds 60 once in ten thousand.
    assert ((counts - 500).square() / 500).sum() < 60


def test_all_channels_of_an_image_move_together() -> None:
    grey = torch.rand(20, 1, 8, 8).expand(-1, 3, -1, -1)
    moved = Translate(2)(grey, torch.Generator().manual_seed(0))
    assert torch.equal(moved[:, 0], moved[:, 1])
    assert torch.equal(moved[:, 0], moved[:, 2])


@pytest.mark.parametrize(("pixels", "shape"), [(8, (8, 8)), (3, (3, 9)), (1, (9, 1))])
def test_a_shift_as_large_as_the_image_is_refused(pixels: int, shape: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=rf"{pixels} pixels .*{shape[0]}x{shape[1]}.* at most {min(shape) - 1}"):
        Translate(pixels)(torch.zeros(2, 3, *shape), torch.Generator())
