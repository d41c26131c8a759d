"""Small networks for CPUs, with a fixed whitening layer and three cheap stages."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, InputError, Problem
from meanteacher.models.layers import (
    ByteDropout,
    ModelSpec,
    Outputs,
    channels_of,
    check_width,
    last_layer,
    named_layers,
)
from meanteacher.passes import Logits

_KEPT = 12
"""Number of principal directions of a patch that are kept, each with both signs."""
_LAPTOP_KEPT = 16
"""The same for patches of twice the side."""
_SMALLEST = 16
"""Sides of the smallest images, in pixels."""
_LOGIT_SCALE = 1 / 3
"""Factor of the logits. Maxima of normalised features are large and would saturate the softmax in the first steps."""


@dataclass(frozen=True, kw_only=True)
class FastNetSpec:
    """A network with a low error per second of training on a CPU (docs/experiments/fast-network.md).

    The first layer decorrelates small patches of the training images and is not trained, so only one convolution has
    a backward pass at full resolution. Each of the three stages convolves, halves the sides, normalises, and
    convolves again. The fixed whitening layer comes from fast training on CIFAR-10 (Page 2019; Jordan 2024).

    >>> network = FastNetSpec(width=0.25).build(Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32)))
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    width: float = 1.0
    """Factor of the 32, 128 and 128 channels of the stages."""
    norm_decay: float = 0.9
    """Decay of the running statistics that evaluation uses."""

    def build(self, problem: Problem) -> nn.Module:
        n_channels, reduction = _checked(problem, "FastNet")
        check_width(self.width, "FastNet")
        return FastNetwork(n_channels, problem.n_classes, self, stride=reduction)


class _WhitenedNetwork(nn.Module):
    """A network whose first layer is fixed: it decorrelates patches of the training images."""

    def __init__(self, n_channels: int, *, stride: int, kept: int) -> None:
        super().__init__()
        kernel = 2 * stride
        self.n_whitened = 2 * min(kept, n_channels * kernel**2)
        self.whitening = nn.Conv2d(n_channels, self.n_whitened, kernel, stride=stride, bias=False)
        self.whitening.weight.requires_grad = False
        nn.init.zeros_(self.whitening.weight)

    @torch.no_grad()
    def initialise_from(self, images: Tensor) -> None:
        """Fit the first layer, unless it is fitted already."""
        if not bool(self.whitening.weight.any()):
            # The CPU computes the eigenvectors, so that they are the same for every device.
            kernel, stride = self.whitening.kernel_size[0], self.whitening.stride[0]
            self.whitening.weight.copy_(_whitening(images.cpu(), kernel, stride, n_kept=self.n_whitened // 2))


class FastNetwork(_WhitenedNetwork):
    """The network. The stride of its first layer reduces images larger than 32 pixels to about 32."""

    def __init__(self, n_channels: int, n_classes: int, spec: FastNetSpec, *, stride: int) -> None:
        super().__init__(n_channels, stride=stride, kept=_KEPT)
        n1, n2, n3 = (max(4, round(full * spec.width)) for full in (32, 128, 128))
        self.stage1 = _stage(self.n_whitened, n1, spec.norm_decay)
        self.stage2 = _stage(n1, n2, spec.norm_decay)
        self.stage3 = _stage(n2, n3, spec.norm_decay)
        self.head = nn.Linear(n3, n_classes, bias=False)

    def forward(self, x: Tensor) -> Logits:
        x = F.silu(self.whitening(x), inplace=True)
        x = self.stage3(self.stage2(self.stage1(x)))
        logits: Tensor = self.head(x.amax((2, 3)))
        return logits * _LOGIT_SCALE


@dataclass(frozen=True, kw_only=True)
class LaptopNetSpec:
    """The network of the paper's laptop versions (docs/experiments/laptop.md), with 149,000 trained weights.

    A step of Mean Teacher on 128 images takes a core 0.04 s, and a few hundred labels limit the error, so that minutes
    suffice to compare methods. It is FastNet with a whitening layer of 4x4 patches and stride 2, narrower stages, of
    which the second does not halve the sides, and dropout. The last map has 3x3 places, so that the network tolerates
    translations.

    >>> network = LaptopNetSpec().build(Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32)))
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    dropout: float = 0.25
    """Share of the values that are dropped after each of the first two stages."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        n_channels, reduction = _checked(problem, "LaptopNet")
        return LaptopNetwork(n_channels, problem.n_classes, self, stride=2 * reduction)


class LaptopNetwork(_WhitenedNetwork):
    """The network of `LaptopNetSpec`."""

    def __init__(self, n_channels: int, n_classes: int, spec: LaptopNetSpec, *, stride: int) -> None:
        super().__init__(n_channels, stride=stride, kept=_LAPTOP_KEPT)
        norm_decay = 0.9
        self.stage1 = _stage(self.n_whitened, 32, norm_decay)
        self.dropout1 = ByteDropout(spec.dropout)
        self.stage2 = _stage(32, 64, norm_decay, halves=False)
        self.dropout2 = ByteDropout(spec.dropout)
        self.stage3 = _stage(64, 64, norm_decay)
        self.head = last_layer(spec.outputs, lambda: nn.Linear(64, n_classes, bias=False))

    def forward(self, x: Tensor) -> Logits:
        x = F.silu(self.whitening(x), inplace=True)
        x = self.dropout1(self.stage1(x))
        x = self.dropout2(self.stage2(x))
        logits: Logits = self.head(self.stage3(x).amax((2, 3)) * _LOGIT_SCALE)
        return logits


def _checked(problem: Problem, network: str) -> tuple[int, int]:
    """The number of channels, and the factor that reduces larger images to about 32 pixels."""
    n_channels = channels_of(problem, network)
    side = min(problem.input_shape[1:])
    if side < _SMALLEST:
        raise InputError(
            f"{network} takes images of at least {_SMALLEST}x{_SMALLEST} pixels; got {problem.input_shape} (channels, "
            "height, width). Use a smaller network, for instance MlpSpec."
        )
    return n_channels, max(1, side // 32)


def _stage(n_in: int, n_out: int, norm_decay: float, *, halves: bool = True) -> nn.Sequential:
    """Two convolutions with normalisation and SiLU; the first also halves the sides."""
    # PyTorch's momentum is the share of the new batch, not of the past.
    momentum = 1 - norm_decay
    pool = {"pool": nn.MaxPool2d(2)} if halves else {}
    return named_layers(
        convolve1=nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        **pool,
        normalise1=nn.BatchNorm2d(n_out, momentum=momentum),
        activate1=nn.SiLU(inplace=True),
        convolve2=nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
        normalise2=nn.BatchNorm2d(n_out, momentum=momentum),
        activate2=nn.SiLU(inplace=True),
    )


def _whitening(images: Tensor, kernel: int, stride: int, *, n_kept: int) -> Tensor:
    """Filters [2 · kept, channels, kernel, kernel]: the principal directions of patches, scaled to unit variance."""
    patches = F.unfold(images, kernel, stride=stride).transpose(1, 2).flatten(0, 1).double()
    variance, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    # eigh sorts in ascending order. The constant limits the scale of directions with almost no variance.
    scaled = (directions / (variance + 5e-4).sqrt())[:, -n_kept:].T
    filters = scaled.reshape(n_kept, images.shape[1], kernel, kernel)
    return torch.cat([filters, -filters]).float()


@dataclass(frozen=True)
class MirroredSpec:
    """A network that averages the logits of an image and its mirror image in evaluation, in twice the time.

    Training is unchanged. It is meant for images whose mirror image has the same class.

    >>> problem = Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32))
    >>> MirroredSpec(FastNetSpec(width=0.25)).build(problem).eval()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    model: ModelSpec

    def build(self, problem: Problem) -> nn.Module:
        return MirroredNetwork(self.model.build(problem))


class MirroredNetwork(nn.Module):
    """The network of `MirroredSpec`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def initialise_from(self, images: Tensor) -> None:
        if isinstance(self.network, InitialisesFromData):
            self.network.initialise_from(images)

    def forward(self, x: Tensor) -> Logits:
        if self.training:
            output: Logits = self.network(x)
            return output
        both: Logits = self.network(torch.cat([x, x.flip(-1)]))
        if isinstance(both, tuple):
            return _mean_of_halves(both[0]), _mean_of_halves(both[1])
        return _mean_of_halves(both)


def _mean_of_halves(logits: Tensor) -> Tensor:
    one, other = logits.chunk(2)
    return (one + other) / 2
