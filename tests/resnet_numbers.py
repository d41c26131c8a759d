"""Every hyperparameter of the residual networks of tables 4 and 5, with the place it was read from.

"Code" is the authors' PyTorch code. It divides the sum of every cost by all rows of a batch; weights, rates and
weight decays are converted to a classification cost that is a mean over the labelled rows.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from paper_numbers import Number, at, at_full_size, kind, said


@dataclass(frozen=True)
class ResNetCell:
    """One number of a residual network."""

    name: str
    table: int
    as_coded: bool
    error: tuple[float, float]
    n_runs: int
    source: str
    n_labelled: int
    network: str
    rows: int
    labelled: int
    decay: float
    cost: str
    weight: float
    """As the paper has it: against a classification cost that is divided by all rows."""
    rate: tuple[float, float, int]
    """At first, at most, and the epochs between the two."""
    weight_decay: float
    steps_of_epoch: int
    epochs: int
    end: int
    """The epoch at which the learning rate would be zero."""
    evaluate_every: int
    view: list[Any]
    words: tuple[str, ...]
    """Of the deviations that only this one has."""

    def numbers(self) -> Iterator[Number]:
        return _numbers(self)


def _cifar10(table: int, n_labelled: int, *, as_coded: bool) -> ResNetCell:
    # App. B.2.1: "We trained for 180 epochs (when training with 1000 labels) or 300 epochs (when training with 4000
    # labels), ... so that it would have reached zero after 210 epochs (when 1000 labels) or 350 epochs (when 4000
    # labels)"; "We used EMA decay value 0.97 (when 1000 labels) or 0.99 (when 4000 labels)". Steps of an epoch: "one
    # pass through all the unlabeled examples", 388 in a batch; the remainder is dropped: code.
    few = n_labelled == 1000
    return ResNetCell(
        name=f"table{table}/cifar10-{n_labelled}/mean-teacher-resnet{'/as-coded' if as_coded else ''}",
        table=table,
        as_coded=as_coded,
        error=(10.08, 0.41) if few else (6.28, 0.15),
        n_runs=10,
        source="Cifar10",
        n_labelled=n_labelled,
        network="Shake26Spec",
        rows=512,
        labelled=124,
        decay=0.97 if few else 0.99,
        cost="Mse",
        weight=100.0,
        rate=(0.2, 0.2, 0),
        weight_decay=2e-4,
        steps_of_epoch=126 if few else 118,
        epochs=180 if few else 300,
        end=210 if few else 350,
        evaluate_every=1260 if few else 1180,
        view=[("Translate", {"pixels": 4}), ("Flip", {})],
        words=("four GPUs", "only move pixels"),
    )


def _imagenet(*, as_coded: bool) -> ResNetCell:
    jitter = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
    return ResNetCell(
        name=f"table4/imagenet-10/mean-teacher-resnet{'/as-coded' if as_coded else ''}",
        table=4,
        as_coded=as_coded,
        error=(9.11, 0.12),
        n_runs=2,
        source="ImageNet",
        n_labelled=128_000,
        network="ResNeXt152Spec",
        rows=400,
        labelled=200,
        decay=0.9997,
        cost="Kl",
        weight=10.0,
        rate=(0.1, 0.25, 2),
        weight_decay=5e-5,
        steps_of_epoch=5765,
        epochs=60,
        end=75,
        evaluate_every=5765,
        # The source takes the random crop of 224 pixels.
        view=[("Rotate", {"degrees": 10.0}), ("Flip", {}), ("Jitter", jitter)],
        words=(
            "ten GPUs",
            "after the random crop",
            "4096",
            "colour jitter",
            "another labelled set",
            "five most probable",
        ),
    )


RESNETS = {
    cell.name: cell
    for table, n_labelled in ((4, 4000), (5, 1000))
    for as_coded in (False, True)
    for cell in (_cifar10(table, n_labelled, as_coded=as_coded),)
} | {cell.name: cell for as_coded in (False, True) for cell in (_imagenet(as_coded=as_coded),)}


def _numbers(cell: ResNetCell) -> Iterator[Number]:
    factor = cell.rows / cell.labelled
    epoch = cell.steps_of_epoch
    yield Number("the name", lambda r: r.name, cell.name, "ours")
    yield Number("the source", lambda r: type(r.data.source).__name__, cell.source, f"Table {cell.table}, columns")
    if cell.source == "ImageNet":
        # Sec. 3.5: "Imagenet 2012"; App. B.2.2: "resized to 224x224 pixels"; evaluation: code.
        sizes = {"n_classes": 1000, "n_train": 1_281_167, "n_test": 50_000, "resize": 256, "size": 224}
        expected = {**sizes, "label_list": None}
        yield Number("the images", lambda r: asdict(r.data.source), expected, "App. B.2.2; code")
    yield Number("the number of labels", lambda r: r.data.n_labelled, cell.n_labelled, f"Table {cell.table}; code")
    yield Number("the validation share", lambda r: r.data.validation, 0.0, "App. B.3")
    yield Number(
        "the normalisation",
        lambda r: kind(r.training.normalise),
        ("PerChannel", {}),
        'App. B.2: "channel-wise zero mean and unit variance over training data"',
    )
    for role in ("student", "teacher"):
        yield Number(
            f"the {role}'s view",
            lambda r, role=role: [kind(augment) for augment in r.training.views[role].augments],
            cell.view,
            'App. B.2.1: "4x4 random translations ... and random horizontal flips"; App. B.2.2: "a 10 degree rotation, '
            "a crop with aspect ratio between 3/4 and 4/3 resized to 224x224 pixels, a random horizontal flip and a "
            'color jitter"; order, area of the crop and strength of the jitter: code',
        )
    yield Number("the roles that have a view", lambda r: sorted(r.training.views), ["student", "teacher"], "Figure 2")
    yield Number("the student's view of the labelled rows", lambda r: r.training.labelled_view, None, "Figure 2")
    yield Number(
        "the network",
        lambda r: kind(r.training.model),
        (cell.network, {"width": 1.0, "outputs": 2}),
        'App. B.2: "26-2x96d Shake-Shake", "a 152-layer ResNeXt architecture"; "We used the dual output trick"',
    )
    yield Number(
        "the batch",
        lambda r: kind(r.training.batch),
        ("Fixed", {"size": cell.rows, "labelled": cell.labelled, "unlabelled_pool": "unlabelled"}),
        'App. B.2.1: "minibatches of 512 images, 124 of which were labeled"; App. B.2.2: "minibatches of 400 images, '
        '200 of which were labeled"; the others outside the labelled set: code',
    )
    yield Number("the method", lambda r: type(r.training.method).__name__, "MeanTeacher", f"Table {cell.table}, rows")
    yield Number(
        "the decay", lambda r: at(r.training.method.decay, 0, 1, 10**6), [cell.decay] * 3, "App. B.2, last sentences"
    )
    yield Number("the statistics of the average", lambda r: r.training.method.buffers, "own", "code")
    yield Number("the labels that count as hidden", lambda r: r.training.method.ignore_index, -1, "UNLABELLED alone")
    yield Number(
        "the labelled share", lambda r: r.training.method.labelled_share, None, "the number of labelled rows is fixed"
    )
    steps = [0, 1, epoch - 1, epoch, 2 * epoch + 1, 3 * epoch - 1, 5 * epoch - 1, 5 * epoch, 7 * epoch + 3]
    yield Number(
        "the consistency weight",
        lambda r: at(r.training.method.weight, *steps),
        [cell.weight * factor * _ramp_up(step, epoch, stairs=cell.as_coded) for step in steps],
        'App. B.2.1: "ramping up from 0 to 100.0 during the first 5 epochs"; App. B.2.2: "from 0 to 10.0"; times rows '
        "over labelled rows; by whole epochs: code",
    )
    yield Number("the consistency cost", lambda r: kind(r.training.method.cost), (cell.cost, {}), "App. B.2")
    yield Number("the rows of the consistency cost", lambda r: r.training.method.consistency_on, "all", "code")
    yield Number(
        "the cost between two outputs",
        lambda r: r.training.method.logit_distance,
        0.01 * factor,
        'App. B.2: "MSE cost between logits with coefficient 0.01"; times rows over labelled rows',
    )
    yield Number("the teacher's dropout", lambda r: r.training.method.teacher_dropout, None, "code: as the student")
    yield Number(
        "the optimiser", lambda r: type(r.training.optim).__name__, "SgdSpec", 'App. B.2: "stochastic gradient descent"'
    )
    yield Number("the momentum", lambda r: r.training.optim.momentum, 0.9, 'App. B.2: "Nesterov momentum 0.9"')
    yield Number(
        "the weight decay",
        lambda r: r.training.optim.weight_decay,
        cell.weight_decay * factor,
        'App. B.2.1: "an L2 weight decay with coefficient 2e-4"; App. B.2.2: "5e-5"; times rows over labelled rows',
    )
    last = cell.epochs * epoch
    moments = [0, 1, epoch, 2 * epoch - 1, 2 * epoch, last // 3, last - 1, last, cell.end * epoch]
    yield Number(
        "the learning rate",
        lambda r: at(r.training.optim.learning_rate, *moments),
        [_rate(cell, step) / factor for step in moments],
        'App. B.2.1: "initial learning rate 0.2", cosine annealing; App. B.2.2: "linearly during the first two epochs '
        'from 0.1 to 0.25"; divided by rows over labelled rows',
    )
    yield Number("the number of steps", lambda r: r.training.steps, last, "App. B.2; steps of an epoch: code")
    yield Number("the steps between evaluations", lambda r: r.training.evaluate_every, cell.evaluate_every, "ours")
    yield Number(
        "the seeds",
        lambda r: list(r.seeds),
        list(range(cell.n_runs)),
        'Table 4: "10 runs on CIFAR-10 and ... 2 runs on ImageNet"; Table 5: "over 10 runs"',
    )
    error, spread = cell.error
    where = f"Table {cell.table}"
    # 9.11 is of the five most probable classes: the authors' README.
    metric = "top-5 error" if cell.source == "ImageNet" else "error"
    claim = {"error": error, "spread": spread, "where": where, "metric": metric}
    yield Number("the claim", lambda r: asdict(r.claim), claim, where)
    ramp = "the paper does not say so" if cell.as_coded else "step by step"
    yield from at_full_size()
    yield said(
        ["so that every step is the same", "random first weights", "outside the labelled set", ramp, *cell.words]
    )


def _ramp_up(step: int, epoch: int, *, stairs: bool) -> float:
    passed = step // epoch if stairs else step / epoch
    return math.exp(-5 * (1 - min(passed / 5, 1.0)) ** 2)


def _rate(cell: ResNetCell, step: int) -> float:
    """The authors', before the conversion."""
    first, most, epochs = cell.rate
    passed = step / cell.steps_of_epoch
    rising = most if passed >= epochs else first + (most - first) * passed / epochs
    return rising * 0.5 * (1 + math.cos(math.pi * passed / cell.end))
