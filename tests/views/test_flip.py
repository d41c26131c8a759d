import pytest
import torch

from meanteacher.views import Flip


def images(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(n * 3 * 4 * 6).view(n, 3, 4, 6).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_every_image_is_itself_or_its_mirror_image_left_to_right(dtype: torch.dtype) -> None:
    original = images(64, dtype)
    flipped = Flip()(original, torch.Generator().manual_seed(0))
    mirrored = torch.from_numpy(original.numpy()[:, :, :, ::-1].copy())
    kept = (flipped == original).all((1, 2, 3))
    turned = (flipped == mirrored).all((1, 2, 3))
    assert torch.equal(kept, ~turned)
    assert kept.any()
    assert turned.any()
    assert flipped.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.uint8])
@pytest.mark.parametrize("width", [1, 5, 6, 8])
def test_not_a_bit_of_a_value_changes(width: int, dtype: torch.dtype) -> None:
    # Any bytes at all: among them are minus zero, infinity and every kind of "not a number".
    size = torch.empty(0, dtype=dtype).element_size()
    written = torch.randint(0, 256, (40, 3, 4, width * size), generator=torch.Generator().manual_seed(1))
    values = written.to(torch.uint8).numpy().view(f"V{size}")
    flipped = Flip()(written.to(torch.uint8).view(dtype), torch.Generator().manual_seed(0)).numpy().view(f"V{size}")
    heads = (torch.rand(40, generator=torch.Generator().manual_seed(0)) < 0.5).tolist()
    for seen, value, head in zip(flipped, values, heads, strict=True):
        assert seen.tobytes() == (value[:, :, ::-1] if head else value).tobytes()


def test_half_of_all_images_are_flipped() -> None:
    original = images(10_000)
    turned = (Flip()(original, torch.Generator().manual_seed(0)) != original).any(dim=3).any(dim=2).any(dim=1)
    assert turned.double().mean() == pytest.approx(0.5, abs=0.02)


def test_neighbouring_images_flip_independently() -> None:
    original = images(10_000)
    turned = (Flip()(original, torch.Generator().manual_seed(0)) != original)[:, 0, 0, 0].double()
    assert torch.corrcoef(torch.stack([turned[1:], turned[:-1]]))[0, 1].abs() < 0.04


def test_the_only_channel_may_lie_last_in_memory() -> None:
    laid_out = images(8)[:, :1].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert laid_out.stride(1) == 1
    seen = Flip()(laid_out, torch.Generator().manual_seed(0))
    assert torch.equal(seen, Flip()(images(8)[:, :1], torch.Generator().manual_seed(0)))
