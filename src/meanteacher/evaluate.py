"""Errors of a network on a data set: the same code for student, teacher and shipped model."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.dataset import Dataset
from meanteacher.passes import class_output, to_channels_last

_BATCH = 100
"""On a CPU larger batches fall out of its caches: 500 is a third slower than 100."""


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Without noise, on running statistics, without gradients; every module's own mode restored after."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with _not_compiled(), torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def _not_compiled() -> AbstractContextManager[object]:
    """Compiling anew for another mode and another size of batch would take longer than it saves.

    Where torch's compiler was never imported nothing is compiled, and importing it takes seconds.
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
        # All of them brought back at once: a GPU is waited for once.
        return torch.cat([class_output(network(x)) for x in inputs]).cpu()


def error_rate(
    network: nn.Module,
    dataset: Dataset,
    index: Tensor | None = None,
    *,
    normalise: Callable[[Tensor], Tensor],
) -> float:
    """The share of images whose most probable class is not their label.

    Args:
        network: of logits
        dataset: images and their true labels
        index: the positions to judge by; all of them without.
        normalise: what the network was trained behind.
    """
    images = dataset.images if index is None else dataset.images[index]
    labels = dataset.labels if index is None else dataset.labels[index]
    if bool((labels == UNLABELLED).any()):
        raise InputError("An error rate needs a label for every image, but some are unlabelled.")
    predicted = predict_logits(network, images, normalise=normalise).argmax(1)
    return float((predicted != labels).double().mean())
