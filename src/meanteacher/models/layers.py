"""Common parts of networks: the protocol of their descriptions, heads with one or two outputs, normalisation."""

from collections import OrderedDict
from collections.abc import Callable
from math import sqrt
from typing import Any, Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from meanteacher.core import InputError, Problem
from meanteacher.distributed import Ranks, over_ranks
from meanteacher.passes import at_least_float32


class ModelSpec(Protocol):
    """The part of a recipe that builds the network for the data.

    >>> class Linear:
    ...     def build(self, problem):
    ...         return nn.Linear(problem.input_shape[0], problem.n_classes)
    >>> Linear().build(Problem(n_classes=2, n_examples=1, input_shape=(20,)))
    Linear(in_features=20, out_features=2, bias=True)
    """

    def build(self, problem: Problem) -> nn.Module: ...


_WIDEST = 1000

Outputs = Literal[1, 2]
"""Number of last layers of a network, each of which returns logits [B, n_classes]. If there are two, the first is for
the classification cost and the second for the consistency cost, so that they can disagree a little (Sec. 3.4)."""


class TwoHeads(nn.Module):
    """Two last layers on the same features, for classification and for consistency."""

    def __init__(self, classification: nn.Module, consistency: nn.Module) -> None:
        super().__init__()
        self.classification = classification
        self.consistency = consistency

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.classification(features), self.consistency(features)


def last_layer(outputs: Outputs, make: Callable[[], nn.Module]) -> nn.Module:
    """One layer from `make`, which is not wrapped so that its parameters keep their names, or two separate ones."""
    check_outputs(outputs)
    return make() if outputs == 1 else TwoHeads(make(), make())


def check_outputs(outputs: int) -> None:
    """Raise an InputError if outputs is neither 1 nor 2."""
    if outputs not in get_args(Outputs):
        raise InputError(
            f"outputs=1 is the usual network, outputs=2 separates classification and consistency; got {outputs!r}."
        )


def channels_of(problem: Problem, network: str) -> int:
    """The number of channels of the images, or an InputError if the data are not images."""
    if len(problem.input_shape) != 3:
        raise InputError(
            f"{network} takes images (channels, height, width); got data of shape {problem.input_shape}. "
            "Use MlpSpec for points and tables."
        )
    return problem.input_shape[0]


def check_width(width: float, network: str) -> None:
    """Raise an InputError if the factor of a network's channels is not above 0 and at most 1000."""
    if not 0 < width <= _WIDEST:
        raise InputError(
            f"width multiplies the channels of {network} and is above 0 and at most {_WIDEST}; got {width:g}."
        )


def conv(n_in: int, n_out: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    """A convolution with kernel k, padding k // 2 and initial weights from N(0, 2 / (k² · n_out))."""
    layer = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=bias)
    nn.init.normal_(layer.weight, std=sqrt(2 / (kernel**2 * n_out)))
    return layer


def named_layers(**layers: nn.Module) -> nn.Sequential:
    """A network of layers in this order and under these names."""
    return nn.Sequential(OrderedDict(layers))


class MeanOfPositions(nn.Module):
    """The mean over the positions of an image, [B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class WeightNormLayer(nn.Module):
    """Weight and mean-only batch normalisation (Salimans & Kingma 2016): y = g · (v / ‖v‖) * x - mean + bias.

    The mean is the batch's in training, where it has a gradient, and the running mean in evaluation. The running mean
    is the plain mean of all batches until its decay reaches `mean_decay`, and an exponential one from then on. The
    authors start it at zero, which makes evaluation useless for thousands of steps and is the same afterwards.

    The means and all parameters are float32 even if the product is computed in bfloat16.
    """

    running_mean: Tensor
    n_batches: Tensor

    def __init__(self, direction: Tensor, mean_decay: float) -> None:
        super().__init__()
        n_out = len(direction)
        self.mean_decay = mean_decay
        self.direction = nn.Parameter(direction)
        self.scale = nn.Parameter(torch.ones(n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("running_mean", torch.zeros(n_out))
        self.register_buffer("n_batches", torch.zeros(()))
        self.initialising = False
        self.synchronised: Ranks | None = None
        """The processes whose batches have one mean."""

    def transform(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product as a new tensor, to which `forward` adds in place."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.initialising:
            self._initialise(x)
        y = self.transform(x, self._weight())
        pixel = [1] * (y.ndim - 2)
        if not self.training:
            return y.add_((self.bias - self.running_mean).view(-1, *pixel))
        mean, _ = _mean_of_channels(y, self.synchronised)
        if not self.initialising:
            self._track(mean.detach())
        # There is one shift per image, so that the gradient is summed within images first too.
        shift = (self.bias - mean).expand(len(y), -1)
        return y.add_(shift.view(len(y), -1, *pixel))

    def _weight(self) -> Tensor:
        axes = tuple(range(1, self.direction.ndim))
        norm = self.direction.square().sum(axes, keepdim=True).sqrt()
        return self.direction * (self.scale.view_as(norm) / norm)

    @torch.no_grad()
    def _initialise(self, x: Tensor) -> None:
        """Set the scale so that the outputs of this batch have unit variance."""
        self.scale.fill_(1)
        self.bias.zero_()
        y = at_least_float32(self.transform(x, self._weight()))
        self.scale.copy_(torch.rsqrt(y.var((0, *range(2, y.ndim)), correction=0) + 1e-8))

    @torch.no_grad()
    def _track(self, mean: Tensor) -> None:
        self.n_batches += 1
        self.running_mean.lerp_(mean, self.n_batches.reciprocal().clamp_min(1 - self.mean_decay))


def _mean_of_channels(y: Tensor, ranks: Ranks | None) -> tuple[Tensor, float | Tensor]:
    """The mean of each channel, over all ranks if there are any, and of how many values.

    The sum within images comes first, which takes half the time, because the gradient of a sum is not materialised. It
    is in float32 for a y in half precision, which has too few bits for a long sum.
    """
    dtype = torch.promote_types(y.dtype, torch.float32)
    within = y.sum(tuple(range(2, y.ndim)), dtype=dtype) if y.ndim > 2 else y
    total, n = within.sum(0, dtype=dtype), y.numel() // y.shape[1]
    if ranks is None:
        return total / n, n
    sums = over_ranks(torch.cat([total, total.new_tensor([n])]), ranks)
    return sums[:-1] / sums[-1], sums[-1].detach()


class SynchronisedBatchNorm(_BatchNorm):
    """Batch normalisation by the mean and variance of all ranks, in the place of a layer whose tensors it shares.

    It is for CPUs, for which `nn.SyncBatchNorm` is not.
    """

    def __init__(self, layer: _BatchNorm, ranks: Ranks) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self.training, self.ranks = layer.training, ranks

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, n = _mean_of_channels(x, self.ranks)
        centred = at_least_float32(x) - mean.view(shape)
        variance, _ = _mean_of_channels(centred.square(), self.ranks)
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / self.num_batches_tracked if self.momentum is None else torch.tensor(self.momentum)
            self.running_mean.lerp_(mean.detach(), share.to(mean))
            self.running_var.lerp_(variance.detach() * (n / (n - 1)), share.to(mean))
        scaled = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(x.dtype)

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of axes, as the layer before it may have."""


def synchronise_batch_norm(network: nn.Module, ranks: Ranks) -> None:
    """Make every batch normalisation use the statistics of all ranks; parameters and names are unchanged."""
    for layer in list(network.modules()):
        if isinstance(layer, WeightNormLayer):
            layer.synchronised = ranks
        for name, child in layer.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, nn.SyncBatchNorm):
                on_gpu = any(x.is_cuda for x in (*child.parameters(), *child.buffers()))
                convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
                setattr(layer, name, convert(child) if on_gpu else SynchronisedBatchNorm(child, ranks))
    network.train(network.training)  # a teacher notes its layers anew


class WeightNormConv2d(WeightNormLayer):
    """A convolution without stride."""

    def __init__(self, n_in: int, n_out: int, kernel: int, *, padding: int = 0, mean_decay: float = 0.999) -> None:
        super().__init__(torch.randn(n_out, n_in, kernel, kernel) * 0.05, mean_decay)
        self.padding = padding

    def transform(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=self.padding)


class WeightNormLinear(WeightNormLayer):
    """A fully connected layer."""

    def __init__(self, n_in: int, n_out: int, *, mean_decay: float = 0.999) -> None:
        super().__init__(torch.randn(n_out, n_in) * 0.05, mean_decay)

    def transform(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


@torch.no_grad()
def initialise_layers(network: nn.Module, images: Tensor) -> None:
    """Data-dependent initialisation: every layer gets outputs of unit variance on this batch."""
    layers = [layer for layer in network.modules() if isinstance(layer, WeightNormLayer)]
    was_training = network.training
    network.train()
    for layer in layers:
        layer.initialising = True
    try:
        network(images)
    finally:
        for layer in layers:
            layer.initialising = False
        network.train(was_training)


class ByteDropout(nn.Dropout):
    """Dropout whose mask takes one random byte per unit instead of one draw per unit.

    On a CPU, drawing the mask takes an eighth of a step of the ConvNet; with eight units per draw it takes almost no
    time. The probability is rounded to a multiple of 1/256, as the usual ones are. A GPU and compiled code draw while
    they multiply, so they use torch's own dropout.
    """

    def forward(self, x: Tensor) -> Tensor:
        kept = 256 - round(256 * self.p)
        if not self.training or kept == 256:
            return x
        if kept == 0:
            return x * 0
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, 1 - kept / 256)
        x = x if torch.ops.aten.is_non_overlapping_and_dense(x) else x.contiguous()
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
        words.random_(torch.iinfo(torch.int64).min, None)
        # The bytes follow the memory order of x, so that nothing is copied.
        bytes_ = words.view(torch.uint8)[: x.numel()].as_strided(x.shape, x.stride())
        return x * (bytes_ < kept).to(x.dtype).mul_(256 / kept)
