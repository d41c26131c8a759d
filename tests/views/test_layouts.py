"""Views move pixels by their place in memory, so every way to lay a batch out must show the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from meanteacher.core import Augment
from meanteacher.views import Chain, Crop, Cutout, Flip, Jitter, Noise, RandAugment, Rotate, Translate


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def columns_first(images: Tensor) -> Tensor:
    return images.transpose(2, 3).contiguous().transpose(2, 3)


def behind_one_value(images: Tensor) -> Tensor:
    """Contiguous, but from an odd place on."""
    return torch.cat([images.new_zeros(1), images.flatten()])[1:].view(images.shape)


def inside_a_larger_batch(images: Tensor) -> Tensor:
    room = images.new_full([length + 2 for length in images.shape], torch.nan)
    inside = room[1:-1, 1:-1, 1:-1, 1:-1]
    inside.copy_(images)
    return inside


every_view = pytest.mark.parametrize(
    "view",
    [
        Crop(),
        Crop(6),
        Cutout(3),
        Flip(),
        Jitter(),
        Noise(0.15),
        RandAugment(),
        Rotate(),
        Translate(0),
        Translate(2),
        Chain((Flip(), Translate(2), Noise(0.15))),
    ],
    ids=repr,
)
every_shape = pytest.mark.parametrize("shape", [(30, 3, 8, 10), (30, 1, 7, 5), (30, 4, 5, 6), (1, 3, 6, 4)])


def photographs(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=seeded(9))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@every_view
@every_shape
@pytest.mark.parametrize("laid_out", [channels_last, columns_first, behind_one_value, inside_a_larger_batch])
def test_the_order_of_the_values_in_memory_does_not_matter(
    view: Augment, shape: tuple[int, ...], laid_out: Callable[[Tensor], Tensor]
) -> None:
    images = photographs(shape)
    other = laid_out(images)
    seen = view(other, seeded(2))
    torch.testing.assert_close(seen, view(images, seeded(2)), atol=1e-5, rtol=0)
    assert torch.equal(other, images)


@every_view
@every_shape
def test_one_image_shown_many_times_is_seen_as_its_copies_are(view: Augment, shape: tuple[int, ...]) -> None:
    same = photographs(shape)[:1].expand(shape)
    torch.testing.assert_close(view(same, seeded(2)), view(same.clone(), seeded(2)), atol=1e-5, rtol=0)


@every_view
def test_a_batch_may_be_empty(view: Augment) -> None:
    side = 6 if view == Crop(6) else 8
    assert view(torch.zeros(0, 3, 8, 8), seeded(0)).shape == (0, 3, side, side)
