"""Random horizontal flip: every image its own coin."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flip:
    """Mirror each image left to right with probability one half. Not for digits or text."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        heads = torch.rand(len(images), generator=generator, device=images.device) < 0.5
        mirrored = images.flip(-1)
        # A CPU chooses one value after the other, so it is shown several as one, and writes where it just read.
        wide = _widest(images)
        chosen = mirrored.view(wide)
        torch.where(heads[:, None, None, None], chosen, images.view(wide), out=chosen)
        return mirrored


def _widest(images: Tensor) -> torch.dtype:
    """int64 where the rows of the images are whole numbers of them, otherwise what they are."""
    starts = (images.storage_offset(), images.shape[-1])
    whole = images.is_contiguous() and all(start * images.element_size() % 8 == 0 for start in starts)
    return torch.int64 if whole else images.dtype
