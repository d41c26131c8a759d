"""What a fit has learned: a model, its answers for all photos, and answers for photos that it did not learn from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from meanteacher.models import ModelSpec
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.fitting.estimate import OutOfFold
from meanteacher.stats import difference_on_images


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Learned:
    """A model that learned from all labels, and everything that a report says about it."""

    network: nn.Module
    normalise: nn.Module
    spec: ModelSpec
    logits: NDArray[np.float32]
    """[N, n_classes] of all photos by this model; NaN for `missing` ones."""
    out_of_fold: OutOfFold
    """Answers of the same recipe for labelled photos that it did not learn from."""
    baseline: OutOfFold | None
    """The same for the labels alone; None if that was not tested."""
    missing: dict[int, str]
    """position -> why there is no answer"""
    title: str
    """Title of the network."""
    features: NDArray[np.float32] | None = None
    """[N, D]"""
    backbones: tuple[Backbone, ...] = ()
    n_views: int = 1


def is_worse(later: OutOfFold, earlier: OutOfFold) -> bool:
    """Whether the later recipe makes clearly more errors on the same photos.

    A difference that may be chance does not count, so that the estimate of the chosen model hardly profits from the
    choice.
    """
    return len(later.wrong) > 0 and difference_on_images(later.wrong, earlier.wrong).verdict == "no"
