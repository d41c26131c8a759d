"""Several transformations, one after the other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import Augment


@dataclass(frozen=True)
class Chain:
    """Apply each in turn. An empty chain shows the images as they are."""

    augments: tuple[Augment, ...] = ()

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for augment in self.augments:
            images = augment(images, generator)
        return images
