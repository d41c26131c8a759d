"""The views made with PIL, which the views of a batch are compared with."""

from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import images


def picture(width: int = 9, height: int = 7) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_a_tensor_holds_the_bytes_as_shares_of_white_channels_first() -> None:
    expected = np.asarray(picture(), dtype=np.float32).transpose(2, 0, 1) / 255
    assert torch.equal(images.as_tensor(picture()), torch.from_numpy(expected))
    assert images.as_tensor(picture()).is_contiguous()


def test_a_translated_picture_is_a_window_of_the_reflected_one() -> None:
    padded = np.pad(np.asarray(picture()), ((2, 2), (2, 2), (0, 0)), mode="reflect")
    windows = {padded[top : top + 7, left : left + 9].tobytes() for top in range(5) for left in range(5)}
    draws = Random(0)
    assert {images.translated(picture(), draws).tobytes() for _ in range(300)} == windows


def test_a_flipped_picture_is_itself_or_its_mirror_image() -> None:
    draws = Random(0)
    expected = {picture().tobytes(), np.asarray(picture())[:, ::-1].tobytes()}
    assert {images.flipped(picture(), draws).tobytes() for _ in range(20)} == expected


@pytest.mark.parametrize("change", [images.rotated, images.cropped, images.recoloured])
def test_every_draw_changes_a_picture_and_keeps_its_size(change: images.Change) -> None:
    draws = Random(0)
    changed = [change(picture(), draws) for _ in range(20)]
    assert {(c.size, c.mode) for c in changed} == {((9, 7), "RGB")}
    assert len({c.tobytes() for c in changed}) > 15


def test_a_square_of_eight_is_cut_out_and_may_extend_past_the_border() -> None:
    draws = Random(0)
    n_hidden = [int((images.cut_out(torch.ones(3, 32, 32), draws) == 0).sum()) for _ in range(200)]
    assert max(n_hidden) == 3 * 64
    assert 3 * 16 <= min(n_hidden) < 3 * 64


def test_noise_has_the_deviation_of_the_paper() -> None:
    assert images.noisy(torch.zeros(3, 50, 50)).std().item() == pytest.approx(0.15, abs=0.01)
