"""Improved GAN (Salimans et al. 2016): classify real images, and tell them from generated ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import Batch, Cost, InputError, Problem, Scheduled, StepOutput
from meanteacher.distributed import all_rows, normal_rows
from meanteacher.methods.supervised import TeacherMethod
from meanteacher.passes import at_least_float32, class_output, untracked
from meanteacher.schedules import as_schedule
from meanteacher.teacher import Memory


class GeneratorSpec(Protocol):
    """Describes a network from noise [B, n_noise] to generated examples [B, *input_shape]."""

    @property
    def n_noise(self) -> int: ...

    def build(self, problem: Problem) -> nn.Module: ...


@dataclass(frozen=True, kw_only=True)
class ImprovedGan(TeacherMethod[Memory[nn.Module]]):
    """Improved GAN (Salimans et al. 2016): classify real images, and tell them from generated ones.

    The student is the discriminator, with K classes and "made up" as class K + 1, whose logit is fixed at 0.

    The generator learns by feature matching: the mean features of its images, before the student's last layer,
    must match those of the real images. One backward pass serves both networks: generated images are detached for the
    discriminator, and the discriminator's weights are detached for the generator.

    >>> from meanteacher.models import PointGeneratorSpec
    >>> from meanteacher.schedules import Constant
    >>> generator = PointGeneratorSpec(n_noise=8)
    >>> ImprovedGan(decay=Constant(0.99), buffers="average", weight=Constant(1.0), generator=generator).roles
    ('student',)
    """

    generator: GeneratorSpec
    weight: Scheduled

    def init(self, student: nn.Module, problem: Problem) -> Memory[nn.Module]:
        return Memory(self.new_teacher(student, problem), self.generator.build(problem))

    def forward(self, student: nn.Module, memory: Memory[nn.Module], batch: Batch, step: int) -> StepOutput:
        real = batch.views["student"]
        noise = normal_rows(torch.empty(len(real), self.generator.n_noise, device=real.device))
        made_up = memory.own(noise).to(real.dtype)
        with _features(student) as parts:
            logits = class_output(student(real))
        real_features = all_rows(torch.cat(parts)).mean(0).detach()
        made_up_logits = class_output(untracked(student, made_up.detach()))
        constants = {name: p.detach() for name, p in student.named_parameters()}
        with _features(student) as parts:
            untracked(student, made_up, parameters=constants)
        made_up_features = all_rows(torch.cat(parts)).mean(0)
        weight = as_schedule(self.weight)(step)
        return StepOutput(
            {
                "classification": self.classification(logits, batch.labels),
                "real": Cost(weight * 0.5 * F.softplus(-logits.logsumexp(1)).mean(), weight),
                "made up": Cost(weight * 0.5 * F.softplus(made_up_logits.logsumexp(1)).mean(), weight),
                "feature matching": Cost(weight * (real_features - made_up_features).abs().mean(), weight),
            },
            logits,
        )


@contextmanager
def _features(network: nn.Module) -> Iterator[list[Tensor]]:
    """The inputs [B, ...] of the network's last layer in a `with` block. A pass may be computed in parts."""
    layers = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
    if not layers:
        raise InputError(
            f"{type(network).__name__} has no parameters, so it has no features to match. Improved GAN needs a student "
            "with at least one layer that has weights."
        )
    parts: list[Tensor] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        parts.append(at_least_float32(inputs[0]).flatten(1))

    hook = layers[-1].register_forward_pre_hook(record)
    try:
        yield parts
    finally:
        hook.remove()
