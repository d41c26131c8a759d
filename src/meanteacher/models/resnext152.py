"""ResNeXt-152 32x4d, the residual network of the ImageNet experiments (Appendix B.2.2)."""

from dataclasses import dataclass

from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.models.layers import Outputs, channels_of, conv, last_layer
from meanteacher.passes import Logits

_GROUPS = 32
_BLOCKS = (3, 8, 36, 3)


@dataclass(frozen=True, kw_only=True)
class ResNeXt152Spec:
    """50 bottleneck blocks of three layers, 32 groups of 4 channels in the first (Xie et al. 2016).

    Made for 224x224 pixels. Smaller images work, but the last stage has 1/32 of their size.
    """

    width: float = 1.0
    """Multiplies the channels of the stem and of each group; a group has at least one."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        return ResNeXt152Network(channels_of(problem, "ResNeXt152"), problem.n_classes, self)


class ResNeXt152Network(nn.Module):
    """Four stages; each but the first halves the image's sides, as the stem does twice."""

    def __init__(self, n_channels: int, n_classes: int, spec: ResNeXt152Spec) -> None:
        super().__init__()
        n_stem = max(1, round(64 * spec.width))
        # Whole groups, so that every channel count can be divided by their number.
        n1, n2, n3, n4 = (_GROUPS * max(1, round(full * spec.width)) for full in (4, 8, 16, 32))
        self.stem = nn.Sequential(
            conv(n_channels, n_stem, 7, stride=2),
            nn.BatchNorm2d(n_stem),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stage1 = _stage(_BLOCKS[0], n_stem, n1, stride=1)
        self.stage2 = _stage(_BLOCKS[1], 2 * n1, n2, stride=2)
        self.stage3 = _stage(_BLOCKS[2], 2 * n2, n3, stride=2)
        self.stage4 = _stage(_BLOCKS[3], 2 * n3, n4, stride=2)
        self.head = last_layer(spec.outputs, lambda: nn.Linear(2 * n4, n_classes))

    def forward(self, x: Tensor) -> Logits:
        x = self.stage4(self.stage3(self.stage2(self.stage1(self.stem(x)))))
        logits: Logits = self.head(x.mean((2, 3)))
        return logits


class Bottleneck(nn.Module):
    """Down to `n_inner` channels, across the image group by group, and up to twice as many."""

    def __init__(self, n_in: int, n_inner: int, *, stride: int) -> None:
        super().__init__()
        n_out = 2 * n_inner
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


def _stage(n_blocks: int, n_in: int, n_inner: int, *, stride: int) -> nn.Module:
    others = (Bottleneck(2 * n_inner, n_inner, stride=1) for _ in range(n_blocks - 1))
    return nn.Sequential(Bottleneck(n_in, n_inner, stride=stride), *others)
