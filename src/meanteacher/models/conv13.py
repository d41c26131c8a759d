"""The 13-layer ConvNet of Table 6, which all methods in the paper's comparison use."""

from dataclasses import dataclass

from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models.layers import (
    ByteDropout,
    Outputs,
    WeightNormConv2d,
    WeightNormLinear,
    check_width,
    initialise_layers,
    last_layer,
)


@dataclass(frozen=True, kw_only=True)
class Conv13Spec:
    """The 13-layer ConvNet of Table 6 and of Laine & Aila (2017).

    Every layer has weight normalisation and mean-only batch normalisation (Salimans & Kingma 2016); all but the last
    have LeakyReLU 0.1.

    >>> network = Conv13Spec(width=0.1).build(Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32)))
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    width: float = 1.0
    """Factor of every channel count. A width of 1/4 takes about a tenth of the time."""
    dropout: float = 0.5
    mean_decay: float = 0.999
    """Decay of the running means that evaluation uses; short runs need a smaller one."""
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        check_width(self.width, "Conv13")
        n_channels, *size = problem.input_shape
        if len(size) != 2 or min(size) < 12:
            raise InputError(
                f"The 13-layer ConvNet takes images of at least 12x12 pixels, got {problem.input_shape} "
                "(channels, height, width). Use a smaller network, for instance MlpSpec."
            )
        return Conv13Network(n_channels, problem.n_classes, self)


class Conv13Network(nn.Sequential):
    """The network. Its children are the rows of Table 6, in order and under their names."""

    def __init__(self, n_channels: int, n_classes: int, spec: Conv13Spec) -> None:
        super().__init__()

        def channels(full: int) -> int:
            return max(1, round(full * spec.width))

        def conv(n_in: int, n_out: int, kernel: int, padding: int) -> nn.Module:
            return nn.Sequential(
                WeightNormConv2d(n_in, n_out, kernel, padding=padding, mean_decay=spec.mean_decay),
                nn.LeakyReLU(0.1, inplace=True),
            )

        n128, n256, n512 = channels(128), channels(256), channels(512)
        self.conv1a = conv(n_channels, n128, 3, padding=1)
        self.conv1b = conv(n128, n128, 3, padding=1)
        self.conv1c = conv(n128, n128, 3, padding=1)
        self.pool1 = nn.MaxPool2d(2)
        self.dropout1 = ByteDropout(spec.dropout)
        self.conv2a = conv(n128, n256, 3, padding=1)
        self.conv2b = conv(n256, n256, 3, padding=1)
        self.conv2c = conv(n256, n256, 3, padding=1)
        self.pool2 = nn.MaxPool2d(2)
        self.dropout2 = ByteDropout(spec.dropout)
        self.conv3a = conv(n256, n512, 3, padding=0)
        self.conv3b = conv(n512, n256, 1, padding=0)
        self.conv3c = conv(n256, n128, 1, padding=0)
        self.pool3 = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.softmax = last_layer(spec.outputs, lambda: WeightNormLinear(n128, n_classes, mean_decay=spec.mean_decay))

    def initialise_from(self, images: Tensor) -> None:
        initialise_layers(self, images)
