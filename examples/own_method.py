"""A method of your own in one file: consistency between the points, too (Verma et al. 2019)."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from meanteacher import Batch, MeanTeacher, StepOutput, Teacher, run
from meanteacher.recipes import find
from meanteacher.schedules import Constant, SigmoidRampUp


@dataclass(frozen=True, kw_only=True)
class Interpolation(MeanTeacher):
    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        x, target = batch.views["student"], memory(batch.views["teacher"]).softmax(1)
        other, share = torch.randperm(len(x)), torch.rand(len(x), 1)
        mixed, mixed_target = (share * v + (1 - share) * v[other] for v in (x, target))
        return self.step_output(student(x), student(mixed), mixed_target.log(), batch, step)


if __name__ == "__main__":
    method = Interpolation(decay=Constant(0.97), buffers="own", weight=SigmoidRampUp(value=50.0, steps=500))
    recipe = replace(find("moons/mean-teacher"), name="moons/interpolation", method=method)
    with TemporaryDirectory() as folder:
        record = run(recipe, seed=0, out=Path(folder) / "run")
        print(record["errors"]["last"], record["alarms"])
