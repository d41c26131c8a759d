"""EfficientNet-Lite (Tan & Le, 2019; the Lite variants of 2020): small networks that are fast on a CPU."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models.layers import MeanOfPositions, channels_of

_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Number of blocks, kernel, stride of the first block, expansion and channels of each stage."""
_STEM = 32
_MOST = 10
"""The largest factor of width and depth: a description of a model may come from anyone."""
N_FEATURES = 1280


@dataclass(frozen=True, kw_only=True)
class LiteSpec:
    """EfficientNet-Lite, which has ReLU6 and no squeeze-and-excitation. Lite0 is the default; Lite2 is (1.1, 1.2).

    The network is a sequence of layers, so that it can be cut between any two of them: the stem, the blocks, the last
    convolution, the mean over the positions, and the linear classifier. A cut network keeps its parameter names.

    >>> LiteSpec().n_blocks(), LiteSpec(width=1.1, depth=1.2).n_blocks()
    ((1, 2, 2, 3, 3, 4, 1), (1, 3, 3, 4, 4, 5, 1))
    """

    width: float = 1.0
    """Factor of the channels of the blocks."""
    depth: float = 1.0
    """Factor of the number of blocks in all stages but the first and the last."""

    def __post_init__(self) -> None:
        if not (0 < self.width <= _MOST and 0 < self.depth <= _MOST):
            raise InputError(
                f"EfficientNet-Lite needs width and depth above 0 and at most {_MOST}; got {self.width} and "
                f"{self.depth}."
            )

    def build(self, problem: Problem) -> nn.Sequential:
        n_channels = channels_of(problem, "EfficientNet-Lite")
        return nn.Sequential(
            _conv(n_channels, _STEM, kernel=3, stride=2),
            *self._blocks(),
            _conv(_channels(_STAGES[-1][-1], self.width), N_FEATURES, kernel=1),
            MeanOfPositions(),
            nn.Linear(N_FEATURES, problem.n_classes),
        )

    def n_blocks(self) -> tuple[int, ...]:
        """The number of blocks in each stage."""
        inner = [math.ceil(n * self.depth) for n, *_ in _STAGES[1:-1]]
        return (_STAGES[0][0], *inner, _STAGES[-1][0])

    def _blocks(self) -> list[nn.Module]:
        widths = [_STEM, *(_channels(channels, self.width) for *_, channels in _STAGES)]
        blocks: list[nn.Module] = []
        stages = zip(_STAGES, self.n_blocks(), pairwise(widths), strict=True)
        for (_, kernel, stride, expansion, _), n, (n_in, n_out) in stages:
            blocks.append(_Block(n_in, n_out, kernel=kernel, stride=stride, expansion=expansion))
            blocks += [_Block(n_out, n_out, kernel=kernel, stride=1, expansion=expansion) for _ in range(n - 1)]
        return blocks


@dataclass(frozen=True, kw_only=True)
class LitePairSpec:
    """Two EfficientNet-Lites side by side: one linear classifier takes the features of both. Lite0 and Lite2.

    >>> LitePairSpec().build(Problem(n_classes=5, n_examples=1, input_shape=(3, 64, 64))).head
    Linear(in_features=2560, out_features=5, bias=True)
    """

    width: float = 1.0
    depth: float = 1.0
    second_width: float = 1.1
    second_depth: float = 1.2

    @classmethod
    def of(cls, first: LiteSpec, second: LiteSpec) -> "LitePairSpec":
        return cls(width=first.width, depth=first.depth, second_width=second.width, second_depth=second.depth)

    def build(self, problem: Problem) -> nn.Module:
        first = LiteSpec(width=self.width, depth=self.depth).build(problem)[:-1]
        second = LiteSpec(width=self.second_width, depth=self.second_depth).build(problem)[:-1]
        return _Pair(first, second, nn.Linear(2 * N_FEATURES, problem.n_classes))


class _Pair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.first, self.second, self.head = first, second, head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.first(x), self.second(x)], 1))
        return logits


def _channels(n: int, width: float) -> int:
    """A multiple of 8 near n · width, at most a tenth below it.

    >>> _channels(112, 1.0), _channels(112, 1.1)
    (112, 120)
    """
    wanted = n * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


class _Block(nn.Module):
    """An inverted residual block: expand, convolve each channel separately, project; a shortcut if shapes agree."""

    def __init__(self, n_in: int, n_out: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        n = n_in * expansion
        self.expand = _conv(n_in, n, kernel=1) if expansion > 1 else nn.Identity()
        self.depthwise = _conv(n, n, kernel=kernel, stride=stride, groups=n)
        self.project = _conv(n, n_out, kernel=1, active=False)
        self.has_shortcut = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_shortcut else y


def _conv(n_in: int, n_out: int, *, kernel: int, stride: int = 1, groups: int = 1, active: bool = True) -> nn.Module:
    padding = kernel // 2 if stride == 1 else 0
    convolve = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    layers = [convolve, nn.BatchNorm2d(n_out, eps=1e-3, momentum=0.01)]
    if stride == 2:
        layers.insert(0, PadToHalf(kernel))
    return nn.Sequential(*layers, *([nn.ReLU6(inplace=True)] if active else []))


class PadToHalf(nn.Module):
    """Pads an image with zeros so that a convolution with stride 2 returns half of each side, rounded up.

    This is TensorFlow's padding SAME, which adds one more zero at the end of an even side than at its beginning. The
    published weights were trained with it; equal padding on both sides would shift the input of every later layer.
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (self.kernel - 2 + side % 2 for side in (x.shape[2], x.shape[3]))
        return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
