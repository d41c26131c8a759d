"""Predictions and errors of a network: the same code for student, teacher and shipped model."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Images, InputError, parts
from meanteacher.data import Dataset, EncodedDataset
from meanteacher.passes import class_output, to_channels_last

_BATCH, _GPU_BATCH = 100, 500
"""Images per pass. Larger batches do not fit a CPU's caches: 500 is a third slower than 100. They fill a GPU."""


class _Eager:
    """Switches torch's compiler off from the first of several overlapping evaluations to the last.

    Its stance is one of the whole process: threads that each restored what they had found would leave it switched off.
    """

    def __init__(self) -> None:
        self._lock, self._n, self._stance = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._n:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._n += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n -= 1
            if not self._n:
                self._stance.close()


_EAGER = _Eager()


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the mode of every module is restored afterwards."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        # Compiling again for another mode and batch size takes longer than it saves. If torch's compiler was never
        # imported, nothing is compiled, and an import would take seconds.
        is_compiled = "torch._dynamo" in sys.modules
        with _EAGER if is_compiled else nullcontext(), torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def predict_logits(
    network: nn.Module,
    images: Images,
    *,
    normalise: Callable[[Tensor], Tensor],
    index: Tensor | None = None,
) -> Tensor:
    """Logits [N, n_classes] of N images, in their order, computed on the network's device and returned on the CPU.

    `index` has the positions of the images, None for all.
    """
    with evaluation_mode(network):
        inputs = (_input(chunk, network, normalise) for chunk in parts(images, index, _batch_for(network)))
        # They are copied back all at once, to wait for a GPU only once.
        return torch.cat([class_output(network(x)) for x in inputs]).cpu()


def classification_costs(
    networks: Mapping[str, nn.Module],
    dataset: Dataset | EncodedDataset,
    index: Tensor,
    *,
    normalise: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """The mean cross-entropy of each network on the labelled images at `index`, in evaluation mode."""
    outputs = {
        name: predict_logits(network, dataset.images, normalise=normalise, index=index)
        for name, network in networks.items()
    }
    readable = _readable(dataset, index)
    labels = dataset.labels[index][readable]
    return {name: float(F.cross_entropy(logits[readable].float(), labels)) for name, logits in outputs.items()}


def error_rates(
    networks: Mapping[str, nn.Module],
    dataset: Dataset | EncodedDataset,
    index: Tensor | None = None,
    *,
    normalise: Callable[[Tensor], Tensor],
    top: int = 1,
) -> dict[str, float]:
    """For each network the share of images whose label is not among its `top` most probable classes.

    See `top_error_rates`, which computes it for several numbers of classes in one pass over the images.
    """
    return top_error_rates(networks, dataset, index, normalise=normalise, tops=(top,))[0]


def top_error_rates(
    networks: Mapping[str, nn.Module],
    dataset: Dataset | EncodedDataset,
    index: Tensor | None = None,
    *,
    normalise: Callable[[Tensor], Tensor],
    tops: Sequence[int],
    add_up: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> list[dict[str, float]]:
    """For each number in `tops`, and each network, the share of images whose label is not among so many classes.

    Every image is read once for all networks, which are on one device, because some data sets decode an image each time
    it is read. `index` has the positions of the images, None for all. Several processes have different positions, and
    `add_up` gives the sum of their counts. An InputError is raised if an image has no label.
    """
    labels = dataset.labels if index is None else dataset.labels[index]
    if n_unlabelled := int((labels == UNLABELLED).sum()):
        raise InputError(
            "An error rate needs a label for every image, but some are unlabelled: "
            f"{n_unlabelled} of {len(labels)}. Give the positions of labelled images as index."
        )
    first = next(iter(networks.values()))
    guesses: dict[str, list[Tensor]] = {name: [] for name in networks}
    with ExitStack() as modes:
        for network in networks.values():
            modes.enter_context(evaluation_mode(network))
        for chunk in parts(dataset.images, index, _batch_for(first)):
            x = _input(chunk, first, normalise)
            for name, network in networks.items():
                logits = class_output(network(x))
                guesses[name].append(torch.cat([_most_probable(logits, top) for top in tops], 1))
        # They are copied back all at once, to wait for a GPU only once.
        guessed = [torch.cat(of_chunks).cpu() for of_chunks in guesses.values()]
    readable = _readable(dataset, index)
    widths = [min(top, dataset.n_classes) for top in tops]
    wrong = [(guess != labels[:, None])[readable].all(1) for both in guessed for guess in both.split(widths, 1)]
    *missed, n = add_up(torch.stack([each.sum() for each in (*wrong, readable)]).double())
    by_top = (torch.stack(missed) / n).view(len(networks), len(tops)).T.tolist()
    return [dict(zip(networks, of_networks, strict=True)) for of_networks in by_top]


def _readable(dataset: Dataset | EncodedDataset, index: Tensor | None) -> Tensor:
    """Mask [N] of the images that could be decoded; call it after a pass over them, which replaces broken images."""
    positions = torch.arange(len(dataset)) if index is None else index
    return torch.isin(positions, torch.tensor(sorted(dataset.broken.positions), dtype=torch.int64), invert=True)


def _input(chunk: Tensor, network: nn.Module, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    return to_channels_last(normalise(chunk.to(_device_of(network))))


def _device_of(network: nn.Module) -> torch.device:
    return next(chain(network.parameters(), network.buffers()), torch.empty(0)).device


def _batch_for(network: nn.Module) -> int:
    return _BATCH if _device_of(network).type == "cpu" else _GPU_BATCH


def _most_probable(logits: Tensor, n: int) -> Tensor:
    """The n most probable classes [B, n]. If all logits are equal they are n classes too, so that not all count."""
    return logits.argmax(1, keepdim=True) if n == 1 else logits.topk(min(n, logits.shape[1]), 1).indices
