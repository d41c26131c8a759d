"""Predictions and errors of a network: the same code for student, teacher and shipped model."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.dataset import Dataset
from meanteacher.passes import class_output, to_channels_last

_BATCH = 100
"""On a CPU larger batches do not fit its caches: 500 is a third slower than 100."""


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module has its own mode again."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with _not_compiled(), torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def _not_compiled() -> AbstractContextManager[object]:
    """Run compiled networks eagerly: compiling again for another mode and batch size takes longer than it saves.

    If torch's compiler was never imported nothing is compiled, and importing it takes seconds.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def predict_logits(
    network: nn.Module,
    images: Tensor,
    *,
    normalise: Callable[[Tensor], Tensor],
) -> Tensor:
    """[N, n_classes] for N images, in their order, computed where the network is and returned on the CPU."""
    device = next(chain(network.parameters(), network.buffers()), torch.empty(0)).device
    with evaluation_mode(network):
        inputs = (to_channels_last(normalise(chunk.to(device))) for chunk in images.split(_BATCH))
        # Copied back all at once, to wait for a GPU only once.
        return torch.cat([class_output(network(x)) for x in inputs]).cpu()


def classification_costs(
    networks: Mapping[str, nn.Module], dataset: Dataset, index: Tensor, *, normalise: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """The mean cross-entropy of each network on the labelled images at `index`, in evaluation mode."""
    images, labels = dataset.images[index], dataset.labels[index]
    return {
        name: float(F.cross_entropy(predict_logits(network, images, normalise=normalise).float(), labels))
        for name, network in networks.items()
    }


def error_rate(
    network: nn.Module,
    dataset: Dataset,
    index: Tensor | None = None,
    *,
    normalise: Callable[[Tensor], Tensor],
) -> float:
    """The share of images whose most probable class is not their label.

    Args:
        network: returns logits
        dataset: images and their true labels
        index: positions to evaluate on; None for all
        normalise: the normalisation that the network was trained with
    """
    images = dataset.images if index is None else dataset.images[index]
    labels = dataset.labels if index is None else dataset.labels[index]
    if bool((labels == UNLABELLED).any()):
        raise InputError("An error rate needs a label for every image, but some are unlabelled.")
    predicted = predict_logits(network, images, normalise=normalise).argmax(1)
    return float((predicted != labels).double().mean())
