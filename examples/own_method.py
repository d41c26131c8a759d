"""A method of your own: consistency between the points, too (Verma et al. 2019). It trains the same with --nproc 2:
meanteacher run examples/own_method.py:recipe"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher import Batch, MeanTeacher, StepOutput, Teacher, schedules
from meanteacher.distributed import all_rows, own_rows, shared_generator
from meanteacher.passes import untracked
from meanteacher.recipes import find


@dataclass(frozen=True, kw_only=True)
class Interpolation(MeanTeacher):
    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        x, target = all_rows(batch.views["student"]), memory(batch.views["teacher"]).softmax(1)
        other = torch.randperm(len(x), generator=shared_generator(), device=x.device)
        share = torch.rand(len(x), generator=shared_generator(), device=x.device)

        def mixed(v: Tensor) -> Tensor:  # each row with one other, by a share of its own
            return torch.lerp(v[other], v, share.to(v).view(-1, *[1] * (v.ndim - 1)))

        logits = student(own_rows(x))  # a network is given the rows of this process, and returns the outputs of all
        return self.step_output(logits, untracked(student, own_rows(mixed(x))), mixed(target).log(), batch, step)


method = Interpolation(decay=0.97, buffers="own", weight=schedules.SigmoidRampUp(value=50.0, steps=500))
recipe = find("moons/mean-teacher").varied(name="moons/interpolation", method=method)
