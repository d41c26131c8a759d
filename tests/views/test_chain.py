import torch
from torch import Tensor

from meanteacher.views import Chain, Noise


def doubled(images: Tensor, generator: torch.Generator) -> Tensor:
    return images * 2


def incremented(images: Tensor, generator: torch.Generator) -> Tensor:
    return images + 1


def test_a_chain_applies_its_parts_in_their_order() -> None:
    images, source = torch.full((2, 3, 4, 4), 5.0), torch.Generator()
    assert (Chain((doubled, incremented))(images, source) == 11).all()
    assert (Chain((incremented, doubled))(images, source) == 12).all()


def test_an_empty_chain_shows_the_images_as_they_are() -> None:
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(Chain()(images, torch.Generator()), images)


def test_parts_of_a_chain_draw_one_after_the_other_not_the_same_twice() -> None:
    images = torch.zeros(1, 3, 50, 50)
    both = Chain((Noise(1.0), Noise(1.0)))(images, torch.Generator().manual_seed(0))
    once = Noise(1.0)(images, torch.Generator().manual_seed(0))
    # Independent noises add up in variance; the same noise twice would have deviation 2.
    assert abs(both.std() - 2**0.5) < 0.05
    assert not torch.equal(both, 2 * once)
