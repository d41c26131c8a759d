"""Residual networks: Shake-Shake 26 and ResNeXt-152 of the paper, and wide residual networks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models.layers import MeanOfPositions, Outputs, channels_of, check_width, conv, last_layer, named_layers


@dataclass(frozen=True, kw_only=True)
class Shake26Spec:
    """Shake-Shake: 26 layers, two residual branches of 96 channels, mixed at random (Gastaldi 2017).

    This is the version of the Mean Teacher authors. Gastaldi's version normalises after the first convolution,
    rectifies before the pooling, and takes every other pixel in the first stage's shortcut too.

    >>> network = Shake26Spec(width=0.1).build(Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32)))
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    width: float = 1.0
    """Factor of every channel count but the stem's. A width of 1/4 takes about a fifteenth of the time."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        check_width(self.width, "Shake26")
        # The numbers are even, because the shortcuts are convolutions in two groups.
        n96, n192, n384 = (2 * max(1, round(full * self.width / 2)) for full in (96, 192, 384))
        return named_layers(
            stem=conv(channels_of(problem, "Shake26"), 16, 3),
            stage1=_stage(4, ShakeBlock, 16, n96, stride=1),
            stage2=_stage(4, ShakeBlock, n96, n192, stride=2),
            stage3=_stage(4, ShakeBlock, n192, n384, stride=2),
            pool=MeanOfPositions(),
            head=last_layer(self.outputs, lambda: nn.Linear(n384, problem.n_classes)),
        )


def _stage(
    n: int, block: Callable[..., nn.Module], n_in: int, n_out: int, *, stride: int, **of_first: bool
) -> nn.Module:
    """A stage of n blocks; the first one has the stride, and further arguments of its own."""
    others = (block(n_out, n_out, stride=1) for _ in range(n - 1))
    return nn.Sequential(block(n_in, n_out, stride=stride, **of_first), *others)


class ShakeBlock(nn.Module):
    """x + a random mixture of two branches, drawn for each image and again for the backward pass."""

    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        self.left = _branch(n_in, n_out, stride)
        self.right = _branch(n_in, n_out, stride)
        self.shortcut = _shortcut(n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        rectified = F.relu(x)
        left, right = self.left(rectified), self.right(rectified)
        mixture = _shaken(left, right) if self.training else (left + right) / 2
        output: Tensor = self.shortcut(x) + mixture
        return output


class Mixture(torch.autograd.Function):
    """gate · left + (1 - gate) · right; the gradient is split by another gate."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, gate: Tensor, gradient_gate: Tensor) -> Tensor:
        ctx.save_for_backward(gradient_gate)
        return torch.lerp(right, left, gate)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,) = gradients
        (gate,) = ctx.saved_tensors
        return gate * gradient, (1 - gate) * gradient, None, None


_mixture: Callable[..., Tensor] = Mixture.apply


def _shaken(left: Tensor, right: Tensor) -> Tensor:
    # Both gates are drawn in the forward pass, because other draws may come before the backward pass, and a step must
    # be reproducible from its seed.
    gates = torch.rand(2, len(left), 1, 1, 1, dtype=left.dtype, device=left.device)
    return _mixture(left, right, *gates.unbind())


class _EveryOtherPixel(nn.Module):
    """Two images of half the size, stacked as channels: the even rows and columns, then the odd ones."""

    def forward(self, x: Tensor) -> Tensor:
        # The last even pixel of an image of odd size has no odd partner, so the image is padded with zeros.
        x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
        return torch.cat((x[:, :, 0::2, 0::2], x[:, :, 1::2, 1::2]), dim=1)


def _branch(n_in: int, n_out: int, stride: int) -> nn.Module:
    """A branch after the first ReLU, which both branches share."""
    return nn.Sequential(
        conv(n_in, n_out, 3, stride=stride),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
        conv(n_out, n_out, 3),
        nn.BatchNorm2d(n_out),
    )


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    if stride == 2:
        # The bias has no effect, since the batch mean is subtracted next. The authors' network has it in these
        # convolutions only, as its number of parameters shows.
        pointwise = conv(2 * n_in, n_out, 1, groups=2, bias=True)
        return nn.Sequential(_EveryOtherPixel(), nn.ReLU(), pointwise, nn.BatchNorm2d(n_out))
    if n_in != n_out:
        return nn.Sequential(conv(n_in, n_out, 1), nn.BatchNorm2d(n_out))
    return nn.Identity()


_GROUPS = 32
_BLOCKS = (3, 8, 36, 3)


@dataclass(frozen=True, kw_only=True)
class ResNeXt152Spec:
    """ResNeXt: 50 bottleneck blocks of three layers, with 32 groups of 4 channels in the first (Xie et al. 2016).

    It is designed for 224x224 pixels. It takes smaller images too, but its last stage has 1/32 of their size.

    >>> with torch.device("meta"):
    ...     network = ResNeXt152Spec().build(Problem(n_classes=1000, n_examples=1, input_shape=(3, 224, 224)))
    >>> f"{sum(p.numel() for p in network.parameters()):,}"
    '59,951,400'
    """

    width: float = 1.0
    """Factor of the channels of the stem and of each group; a group has at least one channel."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        check_width(self.width, "ResNeXt152")
        n_stem = max(1, round(64 * self.width))
        # Every channel count is a multiple of the number of groups.
        n1, n2, n3, n4 = (2 * _GROUPS * max(1, round(full * self.width)) for full in (4, 8, 16, 32))
        stem = nn.Sequential(
            conv(channels_of(problem, "ResNeXt152"), n_stem, 7, stride=2),
            nn.BatchNorm2d(n_stem),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        return named_layers(
            stem=stem,
            stage1=_stage(_BLOCKS[0], Bottleneck, n_stem, n1, stride=1),
            stage2=_stage(_BLOCKS[1], Bottleneck, n1, n2, stride=2),
            stage3=_stage(_BLOCKS[2], Bottleneck, n2, n3, stride=2),
            stage4=_stage(_BLOCKS[3], Bottleneck, n3, n4, stride=2),
            pool=MeanOfPositions(),
            head=last_layer(self.outputs, lambda: nn.Linear(n4, problem.n_classes)),
        )


class Bottleneck(nn.Module):
    """Convolutions to half the final number of channels, then in groups with stride, then to the final number."""

    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        n_inner = n_out // 2
        self.residual = nn.Sequential(
            conv(n_in, n_inner, 1),
            nn.BatchNorm2d(n_inner),
            nn.ReLU(inplace=True),
            conv(n_inner, n_inner, 3, stride=stride, groups=_GROUPS),
            nn.BatchNorm2d(n_inner),
            nn.ReLU(inplace=True),
            conv(n_inner, n_out, 1),
            nn.BatchNorm2d(n_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(conv(n_in, n_out, 1, stride=stride), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.shortcut(x) + self.residual(x)
        return output.relu_()


@dataclass(frozen=True, kw_only=True)
class WideResNetSpec:
    """WRN-28-2 (Zagoruyko & Komodakis 2016) with the conventions of FixMatch and its successors.

    They are: normalise, activate, then convolve; LeakyReLU 0.1; batch normalisation with a decay of 0.999 and an
    epsilon of 0.001; the very first block activates its shortcut too; a shortcut is a 1x1 convolution if the number of
    channels changes; no dropout; the last layer starts with Xavier's normal weights and a bias of zero. Convolutions
    have no bias, as in the PyTorch versions, unlike FixMatch's own in TensorFlow. With ten classes there are 1,467,610
    parameters.

    >>> network = WideResNetSpec(depth=10, widen=1).build(Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32)))
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    depth: int = 28
    """Number of layers: 6 n + 4 for n blocks in each of three stages."""
    widen: int = 2
    """Factor of the channels of the stages."""
    norm_decay: float = 0.999
    """Decay of the running statistics that evaluation uses; short runs need a smaller one."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        if not 10 <= self.depth <= 100 or self.depth % 6 != 4:
            raise InputError(
                f"The depth of a WideResNet is 6 n + 4, at most 100: 10, 16, 22, 28, 34, 40 …; got {self.depth}."
            )
        if not 1 <= self.widen <= 100:
            raise InputError(f"widen multiplies the channels of a WideResNet: 1, 2, 4, 8 …; got {self.widen}.")
        n1, n2, n3 = (self.widen * full for full in (16, 32, 64))
        n, block = (self.depth - 4) // 6, partial(PreActivationBlock, spec=self)
        return named_layers(
            stem=conv(channels_of(problem, "WideResNet"), 16, 3),
            stage1=_stage(n, block, 16, n1, stride=1, activate_shortcut=True),
            stage2=_stage(n, block, n1, n2, stride=2),
            stage3=_stage(n, block, n2, n3, stride=2),
            activate=_activation(n3, self),
            pool=MeanOfPositions(),
            head=last_layer(self.outputs, lambda: _linear(n3, problem.n_classes)),
        )


class PreActivationBlock(nn.Module):
    """x + two convolutions, each preceded by normalisation and activation."""

    def __init__(
        self, n_in: int, n_out: int, spec: WideResNetSpec, *, stride: int, activate_shortcut: bool = False
    ) -> None:
        super().__init__()
        self.activate_shortcut = activate_shortcut
        self.activate = _activation(n_in, spec)
        self.residual = nn.Sequential(
            conv(n_in, n_out, 3, stride=stride),
            _activation(n_out, spec),
            conv(n_out, n_out, 3),
        )
        self.shortcut = nn.Identity() if n_in == n_out else conv(n_in, n_out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activate(x)
        output: Tensor = self.shortcut(activated if self.activate_shortcut else x) + self.residual(activated)
        return output


def _activation(n: int, spec: WideResNetSpec) -> nn.Module:
    # PyTorch's momentum is the share of the new batch, not of the past.
    norm = nn.BatchNorm2d(n, eps=0.001, momentum=1 - spec.norm_decay)
    return nn.Sequential(norm, nn.LeakyReLU(0.1, inplace=True))


def _linear(n_in: int, n_out: int) -> nn.Module:
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
