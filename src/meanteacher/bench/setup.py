"""A training run on made-up images, ready to be timed."""

from dataclasses import dataclass

import torch
from torch import nn

from meanteacher.core import Method, Problem
from meanteacher.data import Dataset, Fixed, ImageStream, make_split
from meanteacher.methods import MeanTeacher
from meanteacher.models import ModelSpec
from meanteacher.schedules import Constant
from meanteacher.train import AdamSpec, Declared, Evaluation, Intervals, TrainState, Vitals, start, train
from meanteacher.views import Chain, Noise, PerImage, Translate

BATCH, N_LABELLED = 100, 25
N_IMAGES, N_SHOWN = 10_000, 500
"""Images there are, and those that show their labels."""
VIEW = Chain((Translate(2), Noise(0.15)))
METHOD: Method = MeanTeacher(decay=Constant(0.99), buffers="own", weight=Constant(10.0))
OPTIM = AdamSpec(learning_rate=Constant(1e-3), beta1=Constant(0.9), beta2=Constant(0.99))
_PAST_THE_START = 1001
"""The vitals read every step's gradients at first; from here on, once in a thousand."""


def made_up(n: int) -> Dataset:
    """Random bytes as images of 32x32 in ten classes."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=draws)
    return Dataset(images, torch.arange(n) % 10, tuple("0123456789"))


@dataclass(slots=True, eq=False)
class Training:
    """What a run consists of after its first thousand steps."""

    state: TrainState
    stream: ImageStream
    vitals: Vitals

    def steps(self, n: int) -> None:
        """Train n more, through the loop that every run uses."""
        train(
            self.state,
            METHOD,
            OPTIM,
            self.stream,
            steps=self.state.step + n,
            seed=0,
            vitals=self.vitals,
            evaluate=lambda state: Evaluation(state.step, "test", 0.0, 0.0),
            every=Intervals(evaluate=1_000_000_000),
        )


def stream(data: Dataset) -> ImageStream:
    """Batches of it, up to 500 images labelled, each seen twice."""
    split = make_split(data.labels, n_classes=data.n_classes, n_labelled=min(N_SHOWN, len(data)), seed=0)
    sampler = Fixed(size=BATCH, labelled=N_LABELLED, unlabelled_pool="all").sampler(split, 0)
    views = {"student": VIEW, "teacher": VIEW}
    return ImageStream(data, sampler, views=views, normalise=PerImage().fit(data.images), seed=0)


def training(model: ModelSpec, *, n_images: int = N_IMAGES) -> Training:
    batches = stream(made_up(n_images))
    normalise = batches.normalise
    assert isinstance(normalise, nn.Module)
    problem = Problem(n_classes=10, n_examples=n_images, input_shape=(3, 32, 32))
    torch.manual_seed(0)
    state = start(model.build(problem), METHOD, OPTIM, batches, normalise=normalise, problem=problem, seed=0)
    state.step = _PAST_THE_START
    declared = Declared(n_labelled=N_SHOWN, labelled_share=N_LABELLED / BATCH, exact=True, steps=1_000_000)
    return Training(state, batches, Vitals(declared))
