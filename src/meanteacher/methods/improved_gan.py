"""Improved GAN (Salimans et al. 2016): tell the real images' classes, and real from made up."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import Batch, InputError, Problem, Schedule, StepOutput
from meanteacher.methods.supervised import Supervised
from meanteacher.passes import at_least_float32, class_output, untracked
from meanteacher.teacher import Buffers, Teacher


class GeneratorSpec(Protocol):
    """Becomes a network from noise [B, n_noise] to made-up examples [B, *input_shape]."""

    @property
    def n_noise(self) -> int: ...

    def build(self, problem: Problem) -> nn.Module: ...


class GanMemory(Teacher):
    """The weight average that is evaluated, and the generator, which is trained with the student."""

    def __init__(self, student: nn.Module, generator: nn.Module, *, buffers: Buffers) -> None:
        super().__init__(student, buffers=buffers)
        self.generator = generator


@dataclass(frozen=True, kw_only=True)
class ImprovedGan(Supervised):
    """Improved GAN (Salimans et al. 2016): tell the real images' classes, and real from made up.

    The student is the discriminator, with K classes and "made up" as class K + 1, whose logit is fixed at 0.

    The generator learns by feature matching: the mean features of its images, before the student's last layer,
    must be those of the real ones. One backward pass serves both players: the discriminator sees made-up images
    as constants, the generator sees the discriminator's weights as constants.
    """

    generator: GeneratorSpec
    weight: Schedule
    roles: ClassVar[tuple[str, ...]] = ("student",)

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return GanMemory(student, self.generator.build(problem), buffers=self.buffers)

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        assert isinstance(memory, GanMemory)
        real = batch.views["student"]
        made_up = memory.generator(torch.randn(len(real), self.generator.n_noise, device=real.device))
        with _Features(student) as seen:
            logits = class_output(student(real))
            real_features = seen.last.mean(0).detach()
            fake_logits = class_output(untracked(student, made_up.detach()))
            constants = {name: p.detach() for name, p in student.named_parameters()}
            untracked(student, made_up, constants)
            made_up_features = seen.last.mean(0)
        weight = self.weight(step)
        return StepOutput(
            {
                "classification": self.classification(logits, batch.labels),
                "real": weight * 0.5 * F.softplus(-logits.logsumexp(1)).mean(),
                "made up": weight * 0.5 * F.softplus(fake_logits.logsumexp(1)).mean(),
                "feature matching": weight * (real_features - made_up_features).abs().mean(),
            },
            logits,
            {"real": weight, "made up": weight, "feature matching": weight},
        )


class _Features:
    """While open, remembers what goes into the network's last layer."""

    def __init__(self, network: nn.Module) -> None:
        layers = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
        if not layers:
            raise InputError("The network has no parameters, so it has no features to match.")
        self._layer = layers[-1]

    def __enter__(self) -> "_Features":
        def remember(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.last = at_least_float32(inputs[0]).flatten(1)

        self._hook = self._layer.register_forward_pre_hook(remember)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
