"""Table 4: Shake-Shake on CIFAR-10 with 4000 labels, ResNeXt-152 on ImageNet with 10 % of them (Sec. 3.5, App. B.2).

The authors' PyTorch code divides the sum of every cost by all rows of a batch; ours divides the classification cost by
the labelled rows alone. Their weights are multiplied by rows over labelled rows, to keep the ratio of the costs. The
total cost is then larger by the same factor, which changes SGD's steps, unlike Adam's. So the learning rate is divided
by the factor and the weight decay multiplied, and every step is the same as theirs.
"""

from collections.abc import Iterator

from meanteacher.core import Augment, Schedule
from meanteacher.costs import Kl
from meanteacher.data import Fixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.imagenet import ImageNet
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import MeanTeacher
from meanteacher.models import ResNeXt152Spec, Shake26Spec
from meanteacher.paper.recipes import shared
from meanteacher.records import Claim
from meanteacher.schedules import Constant, Cosine, LinearWarmUp, Product, SigmoidRampUp, Stairs
from meanteacher.train import SgdSpec
from meanteacher.views import Chain, Flip, Jitter, PerChannel, Rotate, Translate

_CONVERTED = (
    "The classification cost is the mean over a batch's labelled rows; the authors' code divides by the whole batch. "
    "Weights and weight decay are multiplied by rows over labelled rows and the learning rate is divided by it, so "
    "that every step is the same.",
)
_TEACHER = (
    "The teacher's average starts as the plain mean of the students so far; in the authors' PyTorch code the teacher "
    "has random first weights of its own, which are one more member of that mean.",
    "The rows without label are drawn from the images outside the labelled set, as in the authors' PyTorch code, but "
    "the order goes on from epoch to epoch; their code drops an epoch's incomplete last batch.",
)
_AS_CODED = ("The consistency weight ramps up by whole epochs, as in the authors' code; the paper does not say so.",)
_BY_STEP = (
    f"The consistency weight ramps up step by step; in the authors' code by epochs: the preset {shared.AS_CODED}.",
)
_NORMALISED_FIRST = "Images are normalised before the augmentation instead of after it."
_FOUR_GPUS = (
    "A batch is normalised as a whole; the authors' four GPUs normalise 128 rows each, and the labelled rows are all "
    "on one of them.",
    f"{_NORMALISED_FIRST} Translation and flip only move pixels, so nothing changes.",
)
_TEN_GPUS = (
    "A batch is normalised as a whole; the authors' ten GPUs normalise 40 rows each, with the labelled and the "
    "unlabelled rows on different ones.",
    "Images are rotated after the random crop, with bilinear interpolation; in the authors' code before it, by the "
    "nearest pixel.",
    "The mean and variance of the normalisation are those of 4096 training images.",
    f"{_NORMALISED_FIRST} What a rotation brings in is the mean colour instead of black, and the colour jitter is that "
    "of normalised values.",
    "Every run draws another labelled set, as the paper says; the authors' script always takes the same.",
    "The error is of the five most probable classes, as the authors' README says; the paper does not say.",
)


def _weight(value: float, *, epoch: int, as_coded: bool) -> Schedule:
    """The consistency weight, which ramps up over the first 5 epochs."""
    ramp = SigmoidRampUp(value=value, steps=5 * epoch)
    return Stairs(schedule=ramp, every=epoch) if as_coded else ramp


_CIFAR10_VIEW: Augment = Chain((Translate(4), Flip()))
_CIFAR10 = {
    1000: ((50_000 - 1000) // 388, 180, 210, 0.97),
    4000: ((50_000 - 4000) // 388, 300, 350, 0.99),
}
"""labels -> (steps of an epoch, epochs, epochs after which the learning rate would be zero, decay)"""


def cifar10(n_labelled: int, *, as_coded: bool = False) -> Recipe:
    """Shake-Shake 26 2x96d (App. B.2.1). Its row with 1000 labels is in table 5."""
    epoch, epochs, end, decay = _CIFAR10[n_labelled]
    rows, labelled = 512, 124
    factor = rows / labelled
    return Recipe(
        name=f"table4/cifar10-{n_labelled}/mean-teacher-resnet" + (f"/{shared.AS_CODED}" if as_coded else ""),
        data=DataSpec(source=Cifar10(), n_labelled=n_labelled),
        training=TrainingSpec(
            model=Shake26Spec(outputs=2),
            method=MeanTeacher(
                decay=Constant(decay),
                buffers="own",
                weight=_weight(100.0 * factor, epoch=epoch, as_coded=as_coded),
                logit_distance=0.01 * factor,
            ),
            normalise=PerChannel(),
            views={"student": _CIFAR10_VIEW, "teacher": _CIFAR10_VIEW},
            batch=Fixed(size=rows, labelled=labelled, unlabelled_pool="unlabelled"),
            optim=SgdSpec(
                learning_rate=Cosine(value=0.2 / factor, steps=end * epoch), momentum=0.9, weight_decay=2e-4 * factor
            ),
            steps=epochs * epoch,
            evaluate_every=10 * epoch,
        ),
        seeds=shared.SEEDS,
        claim=Claim(error=6.28, spread=0.15, where="Table 4"),
        deviations=_CONVERTED + _TEACHER + (_AS_CODED if as_coded else _BY_STEP) + _FOUR_GPUS,
    )


_IMAGENET_VIEW: Augment = Chain((Rotate(10), Flip(), Jitter()))
"""View after the random crop, which the source makes while it decodes."""
_N_IMAGENET = 1_281_167
_N_IMAGENET_LABELLED = 128_000
"""Number of labelled images: 128 in each of 1000 classes, as in the authors' lists."""


def imagenet(source: Source, *, as_coded: bool = False) -> Recipe:
    """ResNeXt-152 with 10 % of the labels of ImageNet 2012, whose validation set is the test set (App. B.2.2)."""
    rows, labelled = 400, 200
    factor = rows / labelled
    epoch = (_N_IMAGENET - _N_IMAGENET_LABELLED) // (rows - labelled)
    warm_up = LinearWarmUp(first=0.1 / factor, value=0.25 / factor, steps=2 * epoch)
    return Recipe(
        name="table4/imagenet-10/mean-teacher-resnet" + (f"/{shared.AS_CODED}" if as_coded else ""),
        data=DataSpec(source=source, n_labelled=_N_IMAGENET_LABELLED),
        training=TrainingSpec(
            model=ResNeXt152Spec(outputs=2),
            normalise=PerChannel(),
            method=MeanTeacher(
                decay=Constant(0.9997),
                buffers="own",
                weight=_weight(10.0 * factor, epoch=epoch, as_coded=as_coded),
                cost=Kl(),
                logit_distance=0.01 * factor,
            ),
            views={"student": _IMAGENET_VIEW, "teacher": _IMAGENET_VIEW},
            batch=Fixed(size=rows, labelled=labelled, unlabelled_pool="unlabelled"),
            optim=SgdSpec(
                learning_rate=Product((warm_up, Cosine(value=1.0, steps=75 * epoch))),
                momentum=0.9,
                weight_decay=5e-5 * factor,
            ),
            steps=60 * epoch,
            evaluate_every=epoch,
        ),
        seeds=(0, 1),
        claim=Claim(error=9.11, spread=0.12, where="Table 4", metric="top-5 error"),
        deviations=_CONVERTED + _TEACHER + (_AS_CODED if as_coded else _BY_STEP) + _TEN_GPUS,
    )


def recipes() -> Iterator[Recipe]:
    for as_coded in (False, True):
        yield cifar10(4000, as_coded=as_coded)
    for as_coded in (False, True):
        yield imagenet(ImageNet(), as_coded=as_coded)
