"""The wide residual network on which semi-supervised methods have been compared since 2018."""

from dataclasses import dataclass

from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models.layers import Outputs, channels_of, conv, last_layer
from meanteacher.passes import Logits


@dataclass(frozen=True, kw_only=True)
class WideResNetSpec:
    """WRN-28-2 (Zagoruyko & Komodakis 2016) with the conventions of FixMatch and its successors.

    Those are: normalise, activate, then convolve; LeakyReLU 0.1; batch normalisation with a decay of 0.999
    and an epsilon of 0.001; the very first block activates its shortcut too; a shortcut has a bare 1x1
    convolution where the number of channels changes; no dropout; the last layer starts with Xavier's normal
    weights and no bias. Convolutions have no bias, as in the PyTorch versions: 1,467,610 parameters with
    ten classes. FixMatch's own, in TensorFlow, have one.
    """

    depth: int = 28
    """6 n + 4, for n blocks in each of three stages."""
    widen: int = 2
    norm_decay: float = 0.999
    """Of the running statistics that evaluation uses; short runs need a smaller decay."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        if self.depth < 10 or self.depth % 6 != 4:
            raise InputError(f"The depth of a WideResNet is 6 n + 4: 10, 16, 22, 28, 34, 40 …; got {self.depth}.")
        if self.widen < 1:
            raise InputError(f"widen multiplies the channels of a WideResNet: 1, 2, 4, 8 …; got {self.widen}.")
        return WideResNetNetwork(channels_of(problem, "WideResNet"), problem.n_classes, self)


class WideResNetNetwork(nn.Module):
    """Three stages; each but the first halves the image's sides."""

    def __init__(self, n_channels: int, n_classes: int, spec: WideResNetSpec) -> None:
        super().__init__()
        n1, n2, n3 = (spec.widen * full for full in (16, 32, 64))
        self.stem = conv(n_channels, 16, 3)
        self.stage1 = _stage(16, n1, spec, stride=1, activate_shortcut=True)
        self.stage2 = _stage(n1, n2, spec, stride=2)
        self.stage3 = _stage(n2, n3, spec, stride=2)
        self.activate = _activation(n3, spec)
        self.head = last_layer(spec.outputs, lambda: _linear(n3, n_classes))

    def forward(self, x: Tensor) -> Logits:
        x = self.activate(self.stage3(self.stage2(self.stage1(self.stem(x)))))
        logits: Logits = self.head(x.mean((2, 3)))
        return logits


class PreActivationBlock(nn.Module):
    """x + two convolutions, each preceded by normalisation and activation."""

    def __init__(self, n_in: int, n_out: int, spec: WideResNetSpec, *, stride: int, activate_shortcut: bool) -> None:
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


def _stage(n_in: int, n_out: int, spec: WideResNetSpec, *, stride: int, activate_shortcut: bool = False) -> nn.Module:
    first = PreActivationBlock(n_in, n_out, spec, stride=stride, activate_shortcut=activate_shortcut)
    n_others = (spec.depth - 4) // 6 - 1
    others = (PreActivationBlock(n_out, n_out, spec, stride=1, activate_shortcut=False) for _ in range(n_others))
    return nn.Sequential(first, *others)


def _activation(n: int, spec: WideResNetSpec) -> nn.Module:
    # PyTorch's momentum is the share of the new batch, not of the past.
    norm = nn.BatchNorm2d(n, eps=0.001, momentum=1 - spec.norm_decay)
    return nn.Sequential(norm, nn.LeakyReLU(0.1, inplace=True))


def _linear(n_in: int, n_out: int) -> nn.Module:
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
