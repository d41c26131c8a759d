"""What the networks for images share: which data they take, and how their convolutions start."""

from math import sqrt

from torch import nn

from meanteacher.core import InputError, Problem


def channels_of(problem: Problem, network: str) -> int:
    """How many channels the images have.

    Raises:
        InputError: the data are no images.
    """
    if len(problem.input_shape) != 3:
        raise InputError(
            f"{network} takes images (channels, height, width), got data of shape {problem.input_shape}. "
            "Use Mlp for points and tables."
        )
    return problem.input_shape[0]


def conv(n_in: int, n_out: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    """A convolution that keeps the size but for its stride, its weights drawn from N(0, sqrt(2 / (k² · out)))."""
    layer = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=bias)
    nn.init.normal_(layer.weight, std=sqrt(2 / (kernel**2 * n_out)))
    return layer
