"""The batch of step t: rows drawn, labels hidden, images normalised, each role's view drawn for itself."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, Augment, Batch
from meanteacher.data.dataset import Dataset
from meanteacher.data.sampling import Sampler
from meanteacher.passes import in_fast_layout
from meanteacher.seeding import generator


class ImageStream:
    """Batches of a data set in memory, each a pure function of (seed, step)."""

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler,
        *,
        views: Mapping[str, Augment],
        normalise: Callable[[Tensor], Tensor],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.views = dict(views)
        self.normalise = normalise
        self.seed = seed
        self.device = torch.device(device)

    def __getitem__(self, step: int) -> Batch:
        index, shows_label = self.sampler.draw(step)
        labels = torch.where(shows_label, self.dataset.labels[index], UNLABELLED)
        images = self.normalise(self.dataset.images[index].to(self.device))
        return Batch(
            views={
                role: in_fast_layout(view(images, generator(self.seed, f"view/{role}", step, self.device)))
                for role, view in self.views.items()
            },
            labels=labels.to(self.device),
            index=index,
        )
