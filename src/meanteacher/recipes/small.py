"""Small recipes: scikit-learn's digits in seconds, and the paper's ConvNet at a quarter of its width in minutes.

Digits with 40 labels need no download. A few hundred steps of the ConvNet show the whole system at
work on real images; their errors are not the paper's. Short runs have to deviate from it: they have more labelled rows
per batch, and shorter ramps and averages.
"""

from meanteacher.core import Augment, Method, Schedule
from meanteacher.data import BatchSpec, Fixed, Mixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.data.toy import Digits
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import MeanTeacher, PiModel, Supervised
from meanteacher.models import Conv13Spec, MlpSpec
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Flip, Noise, Normaliser, PerChannel, PerImage, Translate, Zca


def _methods(weight: Schedule) -> dict[str, Method]:
    decay = Constant(0.97)
    return {
        "supervised": Supervised(decay=decay, buffers="average"),
        "pi-model": PiModel(decay=decay, buffers="average", weight=weight),
        "mean-teacher": MeanTeacher(decay=decay, buffers="own", weight=weight),
    }


def adam(value: float, *, up: int, down: int, total: int) -> AdamSpec:
    """Adam whose learning rate rises over the first `up` steps and falls over the last `down`."""
    return AdamSpec(
        learning_rate=Product(
            (SigmoidRampUp(value=value, steps=up), SigmoidRampDown(value=1.0, steps=down, total=total))
        ),
        beta1=Constant(0.9),
        beta2=Constant(0.99),
    )


def _digits(steps: int = 600) -> tuple[Recipe, ...]:
    view = Chain((Translate(1), Noise(0.5)))
    return tuple(
        Recipe(
            name=f"digits/{name}",
            data=DataSpec(source=Digits(), n_labelled=40),
            training=TrainingSpec(
                model=MlpSpec(hidden=(256, 256)),
                method=method,
                normalise=PerChannel(),
                views={"student": view, "teacher": view},
                batch=Fixed(size=40 if name == "supervised" else 140, labelled=40, unlabelled_pool="all"),
                optim=adam(0.01, up=60, down=150, total=steps),
                steps=steps,
                evaluate_every=50,
            ),
            seeds=tuple(range(6)),
        )
        for name, method in _methods(SigmoidRampUp(value=20.0, steps=240)).items()
    )


def _convnet(
    task: str, source: Source, n_labelled: int, normalise: Normaliser, view: Augment, batch: BatchSpec
) -> tuple[Recipe, ...]:
    steps = 400
    return tuple(
        Recipe(
            name=f"small/{task}-{n_labelled}/{name}",
            data=DataSpec(source=source, n_labelled=n_labelled, validation=0.1),
            training=TrainingSpec(
                model=Conv13Spec(width=0.25, mean_decay=0.9),
                method=method,
                normalise=normalise,
                views={"student": view, "teacher": view},
                batch=Fixed(size=50, labelled=50, unlabelled_pool="all") if name == "supervised" else batch,
                optim=adam(0.003, up=100, down=100, total=steps),
                steps=steps,
                evaluate_every=100,
            ),
            seeds=(0, 1, 2),
        )
        for name, method in _methods(SigmoidRampUp(value=50.0, steps=200)).items()
    )


RECIPES = (
    *_digits(),
    *_convnet(
        "svhn",
        Svhn(),
        500,
        PerImage(),
        Chain((Translate(2), Noise(0.15))),
        Fixed(size=100, labelled=25, unlabelled_pool="all"),
    ),
    *_convnet(
        "cifar10",
        Cifar10(),
        4000,
        Zca(contrast=True, epsilon=0.1),
        Chain((Flip(), Translate(2), Noise(0.15))),
        Mixed(size=100),
    ),
)
