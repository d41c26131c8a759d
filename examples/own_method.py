"""A method of your own in one file: consistency between the points, too (Verma et al. 2019). For points and images."""

from dataclasses import dataclass
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

from meanteacher import Batch, MeanTeacher, StepOutput, Teacher, run, schedules
from meanteacher.passes import untracked
from meanteacher.recipes import find


@dataclass(frozen=True, kw_only=True)
class Interpolation(MeanTeacher):
    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        x, target = batch.views["student"], memory(batch.views["teacher"]).softmax(1)
        other, share = torch.randperm(len(x)), torch.rand(len(x), device=x.device)

        def mixed(v: Tensor) -> Tensor:  # each row with one other, by a share of its own
            return torch.lerp(v[other], v, share.view(-1, *[1] * (v.ndim - 1)))

        return self.step_output(student(x), untracked(student, mixed(x)), mixed(target).log(), batch, step)


if __name__ == "__main__":
    method = Interpolation(decay=0.97, buffers="own", weight=schedules.SigmoidRampUp(value=50.0, steps=500))
    recipe = find("moons/mean-teacher").varied(name="moons/interpolation", method=method)
    record = run(recipe, seed=0, out=f"{mkdtemp()}/run")
    print(record.errors.last, record.alarms)
