"""The paper's ConvNet at a quarter of its width for a few hundred steps: minutes on a laptop, not its numbers.

They show the whole system at work on real images. Short runs have to deviate from the paper: they have more labelled
rows per batch, and shorter ramps and averages.
"""

from meanteacher.core import Augment, Method
from meanteacher.data import BatchSpec, Fixed, Mixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.experiment.recipe import DataSpec, Recipe
from meanteacher.methods import MeanTeacher, PiModel, Supervised
from meanteacher.models import Conv13Spec
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Flip, Noise, Normaliser, PerImage, Translate, Zca

_STEPS = 400
_DECAY = Constant(0.97)
_WEIGHT = SigmoidRampUp(value=50.0, steps=200)
_METHODS: dict[str, Method] = {
    "supervised": Supervised(decay=_DECAY, buffers="average"),
    "pi-model": PiModel(decay=_DECAY, buffers="average", weight=_WEIGHT),
    "mean-teacher": MeanTeacher(decay=_DECAY, buffers="own", weight=_WEIGHT),
}
_ADAM = AdamSpec(
    learning_rate=Product(
        (
            SigmoidRampUp(value=0.003, steps=100),
            SigmoidRampDown(value=1.0, steps=100, total=_STEPS),
        )
    ),
    beta1=Constant(0.9),
    beta2=Constant(0.99),
)


def _recipes(
    task: str, source: Source, n_labelled: int, normalise: Normaliser, view: Augment, batch: BatchSpec
) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(
            name=f"small/{task}-{n_labelled}/{name}",
            data=DataSpec(source=source, n_labelled=n_labelled, validation=0.1),
            model=Conv13Spec(width=0.25, mean_decay=0.9),
            method=method,
            normalise=normalise,
            views={"student": view, "teacher": view},
            batch=Fixed(size=50, labelled=50, unlabelled_pool="all") if name == "supervised" else batch,
            optim=_ADAM,
            steps=_STEPS,
            evaluate_every=100,
            seeds=(0, 1, 2),
        )
        for name, method in _METHODS.items()
    )


RECIPES = (
    *_recipes(
        "svhn",
        Svhn(),
        500,
        PerImage(),
        Chain((Translate(2), Noise(0.15))),
        Fixed(size=100, labelled=25, unlabelled_pool="all"),
    ),
    *_recipes(
        "cifar10",
        Cifar10(),
        4000,
        Zca(contrast=True, epsilon=0.1),
        Chain((Flip(), Translate(2), Noise(0.15))),
        Mixed(size=100),
    ),
)
