"""The rows of tables 1 and 2 that the paper quotes, each with the settings of its own authors.

Each evaluates the network that its authors evaluate: the last one, as an average with a decay of 0, or the average in
the case of the GAN. The networks are the paper's, see the deviations.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from meanteacher.core import Augment, Schedule
from meanteacher.data import Fixed, Mixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.experiment.recipe import Recipe
from meanteacher.methods import ImprovedGan, PiModel, TemporalEnsembling, VatEntMin
from meanteacher.models.mlp import ImageGeneratorSpec
from meanteacher.paper.recipes import shared
from meanteacher.schedules import Constant, LinearRampDown, Product, SigmoidRampDown, SigmoidRampUp, Stairs, StepChange
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Flip, Noise, PerImage, Scaled, Translate, Zca

_COLUMNS: dict[str, tuple[str, Source]] = {"svhn": ("table1/svhn", Svhn()), "cifar10": ("table2/cifar10", Cifar10())}
_N_IMAGES = {"svhn": 73_257, "cifar10": 50_000}
_LAST_NETWORK: Any = {"decay": Constant(0.0), "buffers": "copy"}


def _augmented(task: str, *more: Augment) -> Augment:
    """Translation, and a flip on CIFAR-10: the common views of all systems with augmentation."""
    return Chain((*(Flip(),) * (task == "cifar10"), Translate(2), *more))


# --- Laine & Aila 2017 ------------------------------------------------------------------------------------------------

_LAINE_CLAIMS: dict[str, dict[str, dict[int | None, tuple[float, float] | None]]] = {
    "pi-model-laine": {
        "svhn": {500: (6.65, 0.53), 1000: (4.82, 0.17), None: (2.54, 0.04)},
        "cifar10": {4000: (12.36, 0.31), None: (5.56, 0.10)},
    },
    "temporal-ensembling": {
        # A claim is None if neither paper has that number of labels; the recipe completes the column.
        "svhn": {250: None, 500: (5.12, 0.13), 1000: (4.42, 0.16), None: (2.74, 0.06)},
        "cifar10": {1000: None, 2000: None, 4000: (12.16, 0.31), None: (5.60, 0.10)},
    },
}
_LAINE_NOTES = (
    "The settings are Laine & Aila's; the number is theirs, quoted by the paper.",
    "Batches are drawn in one endless shuffled order; theirs begin anew in every epoch, and its last rows are dropped.",
    "Running means for evaluation start as a plain mean instead of at zero.",
)
_LAINE_NORMALISED = (
    "The classification cost is divided by the expected number of labelled rows, theirs by all rows with a weight that "
    "is scaled down by the same share: a constant factor, which Adam does not see.",
)
_LAINE_PI = (
    "Both passes draw their own flip and both update the running means; theirs share the flip, and one updates them.",
)
_LAINE_TE = ("Images that an epoch did not visit keep their target; in their code it shrinks.",)


def _laine(name: str, task: str, n_labelled: int | None, claim: tuple[float, float] | None) -> Recipe:
    n_images, is_pi = _N_IMAGES[task], name == "pi-model-laine"
    epoch = n_images // shared.BATCH
    steps, ramp_up = 300 * epoch, 80 * epoch
    ramp_down: Any = {"steps": 50 * epoch, "total": steps}

    def by_epoch(schedule: Schedule) -> Stairs:
        return Stairs(schedule=schedule, every=epoch)

    # Their weight is 0 in the first epoch.
    weight = by_epoch(SigmoidRampUp(value=100.0 if is_pi else 30.0, steps=ramp_up))
    share = None if n_labelled is None else n_labelled / n_images
    fields: Any = {
        **_LAST_NETWORK,
        "weight": Product((StepChange(first=0.0, then=1.0, at=epoch), weight)),
        "labelled_share": share,
    }
    rate = SigmoidRampUp(value=0.001 if task == "svhn" and not is_pi else 0.003, steps=ramp_up)
    notes = _LAINE_NOTES + (_LAINE_NORMALISED if share else ()) + (_LAINE_PI if is_pi else _LAINE_TE)
    return shared.convnet(
        *_COLUMNS[task],
        name,
        n_labelled,
        claim,
        method=PiModel(**fields) if is_pi else TemporalEnsembling(**fields, momentum=0.6, epoch_steps=epoch),
        normalise=PerImage() if task == "svhn" else Zca(contrast=False, epsilon=1e-5),
        view=_augmented(task, Noise(0.15)),
        batch=Mixed(size=shared.BATCH),
        optim=AdamSpec(
            learning_rate=by_epoch(Product((rate, SigmoidRampDown(value=1.0, **ramp_down)))),
            beta1=by_epoch(SigmoidRampDown(value=0.9, final=0.5, **ramp_down)),
            beta2=Constant(0.999),
        ),
        steps=steps,
        evaluate_every=5 * epoch,
        deviations=notes,
    )


# --- Miyato et al. 2017 -----------------------------------------------------------------------------------------------

_VAT_CLAIMS: dict[str, dict[int, tuple[float, None] | None]] = {
    "svhn": {250: None, 500: None, 1000: (3.86, None)},
    "cifar10": {1000: None, 2000: None, 4000: (10.55, None)},
}
_VAT_LENGTH = {"svhn": 120 * 400, "cifar10": 500 * 400}
_VAT_EPSILON = {"svhn": 3.5, "cifar10": 8.0}
_VAT_NOTES = (
    "The settings are Miyato et al.'s with augmentation; the number is theirs, quoted by the paper without its spread.",
    "The network has weight normalisation and mean-only batch normalisation; theirs has full batch normalisation, "
    "whose statistics only the labelled rows enter.",
    "Labelled and unlabelled rows are one batch of 160, and all 160 enter smoothness and entropy; theirs are two "
    "batches, and the 32 labelled rows enter the classification cost alone.",
    "The finite difference is 0.01 instead of 0.000001, which float32 does not resolve.",
    "Translated images repeat their border in a mirror; theirs are padded with zeros.",
)
_VAT_SVHN = (
    "The same number of labels in every class; theirs are drawn from all images alike. Their network for SVHN also "
    "normalises the logits.",
)


def _vat(task: str, n_labelled: int, claim: tuple[float, None] | None) -> Recipe:
    steps, down = _VAT_LENGTH[task], 40 * 400
    return shared.convnet(
        *_COLUMNS[task],
        "vat-entmin",
        n_labelled,
        claim,
        method=VatEntMin(**_LAST_NETWORK, weight=Constant(1.0), epsilon=_VAT_EPSILON[task], entropy_weight=1.0),
        normalise=Scaled(limit=0.5) if task == "svhn" else Zca(contrast=False, epsilon=0.0),
        view=_augmented(task),
        batch=Fixed(size=32 + 128, labelled=32, unlabelled_pool="all"),
        optim=AdamSpec(
            learning_rate=Stairs(schedule=LinearRampDown(value=0.001, steps=down, total=steps), every=400),
            beta1=StepChange(first=0.9, then=0.5, at=steps - down),
            beta2=Constant(0.999),
        ),
        steps=steps,
        evaluate_every=2000,
        deviations=_VAT_NOTES + (_VAT_SVHN if task == "svhn" else ()),
    )


# --- Salimans et al. 2016 ---------------------------------------------------------------------------------------------

_GAN_CLAIMS = {"svhn": {500: (18.44, 4.8), 1000: (8.11, 1.3)}, "cifar10": {4000: (18.63, 2.32)}}
_GAN_EPOCHS = {"svhn": 900, "cifar10": 1200}
_GAN_NOTES = (
    "The settings are of Salimans et al.'s code, without augmentation; the number is theirs, quoted by the paper.",
    "The discriminator is the paper's 13-layer network; theirs has nine layers with weight normalisation, 20 % dropout "
    "on the pixels, strides instead of pooling, and a scale of the last layer that is learned.",
    "The generator has 4x4 kernels and no tanh, its noise is normal; theirs has 5x5 kernels, tanh and uniform noise.",
    "Labelled and unlabelled rows are one batch of 200, and all 200 are real images to the discriminator and the "
    "generator; theirs are separate batches of 100, and the generator gets one of its own after the discriminator's "
    "step.",
    "The evaluated average starts as the plain mean of the networks so far and runs on averaged running means; theirs "
    "starts at zero.",
)


def _gan(task: str, n_labelled: int, claim: tuple[float, float]) -> Recipe:
    epoch = _N_IMAGES[task] // 100
    steps = _GAN_EPOCHS[task] * epoch
    return shared.convnet(
        *_COLUMNS[task],
        "gan",
        n_labelled,
        claim,
        method=ImprovedGan(
            decay=Constant(0.9999), buffers="average", weight=Constant(1.0), generator=ImageGeneratorSpec()
        ),
        normalise=Scaled(limit=1.0),
        view=Chain(),
        batch=Fixed(size=200, labelled=100, unlabelled_pool="all"),
        optim=AdamSpec(
            # The rate is constant for two thirds of the run.
            learning_rate=Stairs(schedule=LinearRampDown(value=0.0003, steps=steps // 3, total=steps), every=epoch),
            beta1=Constant(0.5),
            beta2=Constant(0.999),
        ),
        steps=steps,
        evaluate_every=10 * epoch,
        deviations=_GAN_NOTES,
    )


def recipes() -> Iterator[Recipe]:
    laine = [(partial(_laine, name), claims) for name, claims in _LAINE_CLAIMS.items()]
    kinds: list[tuple[Callable[..., Recipe], Mapping[str, Any]]] = [(_gan, _GAN_CLAIMS), *laine, (_vat, _VAT_CLAIMS)]
    for recipe, claims in kinds:
        for task, cells in claims.items():
            for n_labelled, claim in cells.items():
                yield recipe(task, n_labelled, claim)
