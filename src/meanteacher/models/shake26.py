"""Shake-Shake 26 2x96d, the residual network of the CIFAR-10 experiments (Appendix B.2.1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.models.layers import Outputs, channels_of, conv, last_layer
from meanteacher.passes import Logits


@dataclass(frozen=True, kw_only=True)
class Shake26Spec:
    """26 layers, two residual branches of 96 channels, mixed at random (Gastaldi 2017).

    This is the Mean Teacher authors' version. Gastaldi's own normalises after the first convolution,
    rectifies before the pooling, and takes every other pixel in the first stage's shortcut too.
    """

    width: float = 1.0
    """Multiplies every channel count but the stem's: a quarter costs about a fifteenth."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        return Shake26Network(channels_of(problem, "Shake26"), problem.n_classes, self)


class Shake26Network(nn.Module):
    """Three stages of four blocks; each stage but the first halves the image's sides."""

    def __init__(self, n_channels: int, n_classes: int, spec: Shake26Spec) -> None:
        super().__init__()
        # An even number, because the shortcuts are convolutions in two groups.
        n96, n192, n384 = (2 * max(1, round(full * spec.width / 2)) for full in (96, 192, 384))
        self.stem = conv(n_channels, 16, 3)
        self.stage1 = _stage(16, n96, stride=1)
        self.stage2 = _stage(n96, n192, stride=2)
        self.stage3 = _stage(n192, n384, stride=2)
        self.head = last_layer(spec.outputs, lambda: nn.Linear(n384, n_classes))

    def forward(self, x: Tensor) -> Logits:
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        logits: Logits = self.head(x.mean((2, 3)))
        return logits


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
    # Both gates are drawn in the forward pass: what else draws before the backward pass may differ, and a step must
    # be reproducible from its seed.
    gates = torch.rand(2, len(left), 1, 1, 1, dtype=left.dtype, device=left.device)
    return _mixture(left, right, *gates.unbind())


class _EveryOtherPixel(nn.Module):
    """Two images of half the size as one of twice the channels: the even rows and columns, then the odd ones."""

    def forward(self, x: Tensor) -> Tensor:
        # In an image of odd size the last even pixel has no odd partner: pad with zero.
        x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
        return torch.cat((x[:, :, 0::2, 0::2], x[:, :, 1::2, 1::2]), dim=1)


def _stage(n_in: int, n_out: int, *, stride: int) -> nn.Module:
    others = (ShakeBlock(n_out, n_out, stride=1) for _ in range(3))
    return nn.Sequential(ShakeBlock(n_in, n_out, stride=stride), *others)


def _branch(n_in: int, n_out: int, stride: int) -> nn.Module:
    """What follows the first ReLU, which both branches share."""
    return nn.Sequential(
        conv(n_in, n_out, 3, stride=stride),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
        conv(n_out, n_out, 3),
        nn.BatchNorm2d(n_out),
    )


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    if stride == 2:
        # The bias has no effect, since the batch mean is subtracted next. The authors' network has it; the number of
        # its parameters shows that only these convolutions do.
        pointwise = conv(2 * n_in, n_out, 1, groups=2, bias=True)
        return nn.Sequential(_EveryOtherPixel(), nn.ReLU(), pointwise, nn.BatchNorm2d(n_out))
    if n_in != n_out:
        return nn.Sequential(conv(n_in, n_out, 1), nn.BatchNorm2d(n_out))
    return nn.Identity()
