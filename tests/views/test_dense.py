"""Images, labels and predictions move together."""

import pytest
import torch
from torch import Tensor

from meanteacher.core import UNLABELLED
from meanteacher.views import Warp
from meanteacher.views.basic import Move

WARPS = {
    "flip": Warp(),
    "translate": Warp(flip=False, translate=5.0),
    "rotate": Warp(flip=False, degrees=180.0),
    "crop": Warp(flip=False, scale=(0.2, 0.8)),
    "all": Warp(translate=3.0, degrees=30.0, scale=(0.4, 1.0)),
}
every_warp = pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(n: int = 12, height: int = 20, width: int = 28) -> Tensor:
    """Images that change little from pixel to pixel, so that values between pixels are known well."""
    coarse = torch.randn(n, 2, 4, 5, generator=seeded(1))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")


@every_warp
def test_labels_move_as_the_images_do(warp: Warp):
    """Images that show their own labels show the moved labels after the movement, but for pixels at a boundary."""
    labels = smooth().argmax(1)
    onehot = torch.nn.functional.one_hot(labels, 2).movedim(-1, 1).float()
    move = warp.draw(onehot, seeded())
    shown, moved, seen = move(onehot), move.labels(labels), move.seen()
    clear = seen & (shown.amax(1) > 0.75)
    assert clear.float().mean() > 0.3
    assert torch.equal(shown.argmax(1)[clear], moved[clear])
    assert not torch.equal(moved, labels)


@every_warp
def test_predicting_and_moving_can_be_exchanged_for_a_prediction_per_pixel(warp: Warp):
    """What makes the teacher's moved prediction the target of the student, who sees the moved image."""
    images, weights = smooth(), torch.randn(3, 2, 1, 1, generator=seeded(2))
    move = warp.draw(images, seeded())
    of_moved = torch.nn.functional.conv2d(move(images), weights)
    moved = move(torch.nn.functional.conv2d(images, weights))
    torch.testing.assert_close(of_moved, moved, atol=1e-4, rtol=1e-4)


@every_warp
def test_what_comes_from_outside_is_unlabelled_zero_and_not_seen(warp: Warp):
    images = 5 + torch.zeros(12, 1, 20, 28)
    move = warp.draw(images, seeded())
    shown, labels, seen = move(images)[:, 0], move.labels(torch.full((12, 20, 28), 7)), move.seen()
    assert (shown[seen] > 4.9).all()
    assert (labels[seen] == 7).all()
    outside = shown == 0
    assert (labels[outside] == UNLABELLED).all()
    assert not seen[outside].any()
    assert bool(outside.any()) == (warp in (WARPS["translate"], WARPS["rotate"], WARPS["all"]))


def test_a_mirrored_image_is_the_mirror_image():
    images, labels = smooth(), smooth().argmax(1)
    move = Warp().draw(images, seeded())
    mirrored = [not torch.allclose(shown, image, atol=1e-4) for shown, image in zip(move(images), images, strict=True)]
    assert 0 < sum(mirrored) < len(mirrored)
    for k, is_mirrored in enumerate(mirrored):
        wanted, wanted_labels = (x[k].flip(-1) if is_mirrored else x[k] for x in (images, labels))
        torch.testing.assert_close(move(images)[k], wanted, atol=1e-4, rtol=1e-4)
        assert torch.equal(move.labels(labels)[k], wanted_labels)
    assert move.seen().all()


def test_a_shift_by_whole_pixels_moves_every_value_by_as_many():
    source = torch.tensor([[[1.0, 0.0, -2.0], [0.0, 1.0, 1.0]]])
    images, labels = smooth(1), smooth(1).argmax(1)
    move = Move(source, (20, 28))
    torch.testing.assert_close(move(images)[:, :, :-1, 2:], images[:, :, 1:, :-2], atol=1e-4, rtol=1e-4)
    assert torch.equal(move.labels(labels)[:, :-1, 2:], labels[:, 1:, :-2])
    assert (move.labels(labels)[:, -1] == UNLABELLED).all()
    assert (move.labels(labels)[:, :, :2] == UNLABELLED).all()


def test_logits_at_half_the_resolution_move_by_half_as_many_pixels():
    images = smooth(8, 24, 32)
    move = Warp(translate=4.0, degrees=20.0, scale=(0.5, 1.0)).draw(images, seeded())
    half = torch.nn.functional.avg_pool2d(images, 2)
    inside = move.seen((12, 16))[:, None].expand_as(half)
    apart = (move(half) - torch.nn.functional.avg_pool2d(move(images), 2))[inside].abs().mean()
    still = (half - torch.nn.functional.avg_pool2d(move(images), 2))[inside].abs().mean()
    assert apart < 0.1 * still


def test_bytes_with_255_for_no_label_keep_it():
    labels = torch.full((3, 8, 8), 255, dtype=torch.uint8)
    moved = Warp(flip=False, translate=2.0).draw(torch.zeros(3, 1, 8, 8), seeded()).labels(labels)
    assert moved.dtype == torch.int64
    assert moved.unique().tolist() == [UNLABELLED, 255]
