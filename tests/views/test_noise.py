import pytest
import torch

from meanteacher.views import Noise


def noise(deviation: float, *shape: int, seed: int = 0) -> torch.Tensor:
    return Noise(deviation)(torch.zeros(shape), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("deviation", [0.15, 1.0, 3.0])
def test_noise_has_zero_mean_and_the_given_deviation(deviation: float) -> None:
    drawn = noise(deviation, 50, 3, 32, 32)
    assert drawn.mean().abs() < 0.01 * deviation
    assert drawn.std() == pytest.approx(deviation, rel=0.01)


def test_noise_is_gaussian() -> None:
    drawn = noise(1.0, 50, 3, 32, 32).abs()
    for bound, share in [(0.5, 0.3829), (1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)]:
        assert (drawn < bound).double().mean() == pytest.approx(share, abs=0.005)


def test_noise_is_independent_across_images_channels_and_pixels() -> None:
    drawn = noise(1.0, 40, 3, 32, 32)
    halves = [
        (drawn[:20], drawn[20:]),
        (drawn[:, 0], drawn[:, 1]),
        (drawn[..., :16], drawn[..., 16:]),
        (drawn[..., :16, :], drawn[..., 16:, :]),
    ]
    for one, other in halves:
        assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].abs() < 0.02


def test_noise_is_added_to_the_image_whatever_the_image_is() -> None:
    images = torch.rand(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(9)) * 100
    source, again = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    shifted = Noise(0.15)(images, source)
    alone = Noise(0.15)(torch.zeros_like(images), again)
    torch.testing.assert_close(shifted - images, alone, atol=1e-12, rtol=0)
