"""Random horizontal flip: every image its own coin."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flip:
    """Mirror each image left to right with probability one half. Not for digits or text."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        heads = torch.rand(len(images), generator=generator, device=images.device) < 0.5
        return torch.where(heads[:, None, None, None], images.flip(-1), images)
