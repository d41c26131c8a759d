"""Every hyperparameter of tables 1 to 5, with the place it was read from: what the recipes are held to.

Read from the paper's text, and where it is silent from the authors' published code; nothing is taken from a recipe.
What stands in quotation marks is the paper's own words. "Code" is the authors' TensorFlow code, "ours" a choice that
neither of them makes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from meanteacher.core import Schedule
from meanteacher.experiment import Recipe

ERRORS: dict[tuple[int, str, str], dict[int | None, tuple[float, float]]] = {
    # Table 1, the three last rows, and Table 2, the same: error in per cent, standard deviation over the runs.
    (1, "svhn", "supervised"): {250: (27.77, 3.18), 500: (16.88, 1.30), 1000: (12.32, 0.95), None: (2.75, 0.10)},
    (1, "svhn", "pi-model"): {250: (9.69, 0.92), 500: (6.83, 0.66), 1000: (4.95, 0.26), None: (2.50, 0.07)},
    (1, "svhn", "mean-teacher"): {250: (4.35, 0.50), 500: (4.18, 0.27), 1000: (3.95, 0.19), None: (2.50, 0.05)},
    (2, "cifar10", "supervised"): {1000: (46.43, 1.21), 2000: (33.94, 0.73), 4000: (20.66, 0.57), None: (5.82, 0.15)},
    (2, "cifar10", "pi-model"): {1000: (27.36, 1.20), 2000: (18.02, 0.60), 4000: (13.20, 0.27), None: (6.06, 0.11)},
    (2, "cifar10", "mean-teacher"): {1000: (21.55, 1.48), 2000: (15.73, 0.31), 4000: (12.31, 0.28), None: (5.94, 0.15)},
    # Table 5, the rows below "Without augmentation" of either part.
    (5, "svhn", "supervised"): {250: (36.26, 3.83), 500: (19.68, 1.03), 1000: (14.15, 0.87), None: (3.04, 0.04)},
    (5, "svhn", "pi-model"): {250: (10.36, 0.94), 500: (7.01, 0.29), 1000: (5.73, 0.16), None: (2.75, 0.08)},
    (5, "svhn", "mean-teacher"): {250: (5.85, 0.62), 500: (5.45, 0.14), 1000: (5.21, 0.21), None: (2.77, 0.09)},
    (5, "cifar10", "supervised"): {1000: (48.38, 1.07), 2000: (36.07, 0.90), 4000: (24.47, 0.50), None: (7.43, 0.06)},
    (5, "cifar10", "pi-model"): {1000: (32.18, 1.33), 2000: (23.92, 1.07), 4000: (17.08, 0.32), None: (7.00, 0.20)},
    (5, "cifar10", "mean-teacher"): {1000: (30.62, 1.13), 2000: (23.14, 0.46), 4000: (17.74, 0.30), None: (7.21, 0.24)},
}
ERRORS_WITH_EXTRA = {
    # Table 3, by the number of extra images.
    "pi-model": {100_000: (4.49, 0.27), 500_000: (3.26, 0.14)},
    "mean-teacher": {100_000: (3.02, 0.16), 500_000: (2.46, 0.06)},
}
N_IMAGES = {"svhn": 73_257, "cifar10": 50_000}  # the heads of the tables' columns


@dataclass(frozen=True)
class Cell:
    """One number of a ConvNet, and whether by the paper's text or by the authors' script."""

    table: int
    task: str
    method: str
    n_labelled: int | None
    as_coded: bool = False
    extra: int = 0

    @property
    def name(self) -> str:
        extra = f"-extra-{self.extra // 1000}k" if self.extra else ""
        task = f"table{self.table}/{self.task}-{self.n_labelled or 'all'}{extra}"
        return f"{task}/{self.method}{'/as-coded' if self.as_coded else ''}"

    @property
    def error(self) -> tuple[float, float]:
        if self.extra:
            return ERRORS_WITH_EXTRA[self.method][self.extra]
        return ERRORS[self.table, self.task, self.method][self.n_labelled]

    @property
    def svhn(self) -> bool:
        return self.task == "svhn"

    @property
    def augmented(self) -> bool:
        return self.table != 5

    @property
    def supervised(self) -> bool:
        return self.method == "supervised"

    @property
    def all_labels(self) -> bool:
        return self.n_labelled is None

    @property
    def semi_supervised(self) -> bool:
        return not self.supervised and not self.all_labels

    @property
    def mixed(self) -> bool:
        """The number of labelled examples varies from batch to batch."""
        return self.semi_supervised and not self.svhn

    def numbers(self) -> "Iterator[Number]":
        return _numbers(self)


CELLS = {
    cell.name: cell
    for (table, task, method), row in ERRORS.items()
    for n_labelled in row
    # Text and script differ on the whole of SVHN (ramp-down), and on CIFAR-10 in the Pi model's training steps.
    for as_coded in ((False, True) if task == "svhn" or method == "pi-model" else (False,))
    for cell in (Cell(table, task, method, n_labelled, as_coded),)
} | {
    cell.name: cell
    for method, row in ERRORS_WITH_EXTRA.items()
    for extra in row
    for as_coded in (False, True)
    for cell in (Cell(3, "svhn", method, 500, as_coded, extra),)
}


@dataclass(frozen=True)
class Number:
    """One hyperparameter: how it is read off a recipe, what it is, and where that stands."""

    what: str
    read: Callable[[Recipe], object]
    expected: object
    place: str

    def given(self, recipe: Recipe) -> object:
        try:
            return self.read(recipe)
        except (AttributeError, KeyError, TypeError) as error:  # it is something else altogether
            return f"nothing ({error})"

    def holds(self, recipe: Recipe) -> bool:
        return _same(self.given(recipe), self.expected)


class AnyCell(Protocol):
    """A number of the paper that a recipe should attain."""

    @property
    def name(self) -> str: ...

    def numbers(self) -> Iterator[Number]: ...


def problems(recipe: Recipe, cell: AnyCell) -> list[str]:
    """What in the recipe is not as it should be in that cell, one sentence each."""
    return [
        f"{cell.name}: {number.what} is {number.given(recipe)}, expected {number.expected} ({number.place})."
        for number in cell.numbers()
        if not number.holds(recipe)
    ]


def _numbers(cell: Cell) -> Iterator[Number]:
    yield Number("the name", lambda r: r.name, cell.name, "ours")
    yield from _data(cell)
    yield from _network()
    yield from _method(cell)
    yield from _batch(cell)
    yield from _optimiser(cell)
    yield from _run(cell)
    yield from _said(cell)


# --- images and batches -----------------------------------------------------------------------------------------------


def _data(cell: Cell) -> Iterator[Number]:
    source = ("Svhn", {"extra": cell.extra}) if cell.svhn else ("Cifar10", {})
    n_images = N_IMAGES[cell.task] + cell.extra
    yield Number("the source", lambda r: kind(r.data.source), source, f'Table {cell.table}: "{n_images} images"')
    yield Number("the number of labels", lambda r: r.data.n_labelled, cell.n_labelled, f"Table {cell.table}, columns")
    yield Number(
        "the validation share",
        lambda r: r.data.validation,
        0.0,
        'App. B.3: "In the final evaluation phase we used the entire training set, including the validation set but '
        'with labels removed"',
    )
    if cell.svhn:
        normalise = ("PerImage", {})
        place = 'App. B.1.2: "We normalized the input images to have zero mean and unit variance"; each image: code'
    else:
        normalise = ("Zca", {"contrast": True, "epsilon": 0.1})
        place = (
            'App. B.1.1: "We normalized the input images with ZCA based on training set statistics"; contrast '
            "normalised first, 0.1 on the covariance's diagonal: code"
        )
    yield Number("the normalisation", lambda r: kind(r.training.normalise), normalise, place)
    translation, noise = ("Translate", {"pixels": 2}), ("Noise", {"deviation": 0.15})
    view = [translation, noise] if cell.svhn else [("Flip", {}), translation, noise]
    if not cell.augmented:
        view = [noise]  # Table 5: "Without augmentation"; that the noise stays: code
    for role in ("student", "teacher"):
        yield Number(
            f"the {role}'s view",
            lambda r, role=role: [kind(augment) for augment in r.training.views[role].augments],
            view,
            'table of the ConvNet architecture: translation in [-2, 2], horizontal flip with its footnote "Not applied '
            'on SVHN experiments", Gaussian noise of 0.15; their order: code',
        )
    yield Number(
        "the roles that have a view",
        lambda r: sorted(r.training.views),
        ["student", "teacher"],
        'Figure 2: "Both the student and the teacher model evaluate the input applying noise"',
    )
    yield Number(
        "the student's view of the labelled rows",
        lambda r: r.training.labelled_view,
        None,
        "Figure 2 shows one view of the student for all rows",
    )


def _batch(cell: Cell) -> Iterator[Number]:
    size = 100  # App. B.1: "We trained the network with minibatches of size 100"
    if cell.mixed:
        expected: object = ("Mixed", {"size": size})
        place = 'App. B.1.1: "the number of labeled examples varied from minibatch to minibatch"'
    elif cell.semi_supervised:
        expected = ("Fixed", {"size": size, "labelled": 1, "unlabelled_pool": "all"})
        place = 'App. B.1.2: "we used 1 labeled example and 99 unlabeled examples in each mini-batch"; from all: code'
    else:
        expected = ("Fixed", {"size": size, "labelled": size, "unlabelled_pool": "all"})
        place = (
            'App. B.1.3: "For supervised-only runs we did not include any unlabeled examples"; table of the '
            "differences in training settings, supervised SVHN: 100 labelled examples per minibatch"
        )
    yield Number("the batch", lambda r: kind(r.training.batch), expected, f"batches of 100: App. B.1; {place}")


# --- network and method -----------------------------------------------------------------------------------------------


def _network() -> Iterator[Number]:
    yield Number(
        "the network",
        lambda r: kind(r.training.model),
        ("Conv13Spec", {"width": 1.0, "dropout": 0.5, "mean_decay": 0.999, "outputs": 1}),
        "table of the ConvNet architecture, as wide as there, dropout p=0.5; memory of the running means: code; "
        'Sec. 3.4: "using the same output for both"',
    )


def _method(cell: Cell) -> Iterator[Number]:
    expected = {"supervised": "Supervised", "pi-model": "PiModel", "mean-teacher": "MeanTeacher"}[cell.method]
    yield Number("the method", lambda r: type(r.training.method).__name__, expected, f"Table {cell.table}, rows")
    yield from _two_values(
        "the decay of the average", lambda r: r.training.method.decay, 0.99 if cell.svhn else 0.999, "EMA decay rate"
    )
    yield Number(
        "the statistics of the average",
        lambda r: r.training.method.buffers,
        "own" if cell.method == "mean-teacher" else "average",
        "its own, from its own passes: code; averaged where the average makes no pass in training: ours",
    )
    yield Number("the labels that count as hidden", lambda r: r.training.method.ignore_index, -1, "UNLABELLED alone")
    yield Number(
        "the labelled share that classification is divided by",
        lambda r: r.training.method.labelled_share,
        cell.n_labelled / N_IMAGES["cifar10"] if cell.mixed else None,
        'App. B.1: "the weight of classification cost was the expected number of labeled examples per minibatch"; '
        "where that number is fixed, the mean over the labelled examples is the same",
    )
    if cell.supervised:
        return
    yield Number(
        "the consistency weight",
        lambda r: at(r.training.method.weight, 0, 1, 10_000, 20_000, 30_000, 39_999, 40_000, 40_001, 149_999, 179_999),
        [
            _consistency_weight(cell) * _ramp_up(step)
            for step in (0, 1, 10_000, 20_000, 30_000, 39_999, 40_000, 40_001, 149_999, 179_999)
        ],
        'App. B.1: "a ramp-up period of 40000 training steps ... using a sigmoid-shaped function"; its maximum: code, '
        "converted to means",
    )
    yield Number(
        "the consistency cost",
        lambda r: kind(r.training.method.cost),
        ("Mse", {}),
        'App. B.1: "the mean square error between the student and teacher softmax outputs as the consistency cost"',
    )
    yield Number(
        "the rows of the consistency cost",
        lambda r: r.training.method.consistency_on,
        "unlabelled" if cell.svhn and cell.semi_supervised else "all",
        "code: labelled examples are left out on semi-supervised SVHN and nowhere else",
    )
    yield Number(
        "the cost between two outputs",
        lambda r: r.training.method.logit_distance,
        None,
        'Sec. 3.4: "So far our model has strongly coupled these two tasks by using the same output for both"',
    )
    if cell.method == "mean-teacher":
        yield Number(
            "the teacher's dropout",
            lambda r: r.training.method.teacher_dropout,
            None,
            'Figure 2: "Both the student and the teacher model evaluate the input applying noise"',
        )
    else:
        yield Number(
            "whether one side is trained only",
            lambda r: r.training.method.one_sided,
            False,
            'App. B.1: "the Pi models (both the original and ours) backpropagate gradients to both sides of the model"',
        )


def _consistency_weight(cell: Cell) -> float:
    """The code divides the sum of either cost by all 100 rows; ours are means over the rows each applies to."""
    if cell.all_labels:
        nominal, n_labelled, n_rows = 100.0, 100.0, 100
    elif cell.svhn:
        nominal, n_labelled, n_rows = 1.0, 1.0, 99
    else:
        assert cell.n_labelled is not None
        n_labelled = 100 * cell.n_labelled / N_IMAGES["cifar10"]
        nominal, n_rows = 100 * cell.n_labelled / N_IMAGES["cifar10"], 100
    return nominal * n_rows / n_labelled


# --- optimiser and duration -------------------------------------------------------------------------------------------


def _optimiser(cell: Cell) -> Iterator[Number]:
    yield Number(
        "the optimiser", lambda r: type(r.training.optim).__name__, "AdamSpec", 'App. B.1: "We used Adam Optimizer"'
    )
    yield Number("epsilon", lambda r: r.training.optim.epsilon, 1e-8, 'App. B.1: "and epsilon = 10^-8"')
    yield from _two_values("beta2", lambda r: r.training.optim.beta2, 0.99 if cell.svhn else 0.999, "Adam beta2")
    down, end = ramp_down(cell)
    steps = sorted({0, 1, 5_000, 10_000, 20_000, 39_999, 40_000, 40_001, 100_000, *_around_the_end(down, end)})
    shape = f"code, exp(-12.5 x²), over {down} steps up to {end}" if down else "no ramp-down"
    place = f"App. B.1: learning rate 0.003 ramped up over 40000 steps; {shape}: {_where_ramp_down(cell)}"
    yield Number(
        "the learning rate",
        lambda r: at(r.training.optim.learning_rate, *steps),
        [0.003 * _ramp_up(step) * _ramp_down(step, down, end) for step in steps],
        place,
    )
    yield Number(
        "beta1",
        lambda r: at(r.training.optim.beta1, *steps),
        [0.5 + 0.4 * _ramp_down(step, down, end) for step in steps],
        f'App. B.1: beta1 = 0.9; App. B.1.1: "was ramped down to 0.5 from its maximum value"; {shape}',
    )


def _two_values(what: str, read: Callable[[Recipe], Schedule], first: float, row: str) -> Iterator[Number]:
    yield Number(
        what,
        lambda r: at(read(r), 0, 1, 20_000, 39_999, 40_000, 40_001, 149_999, 179_999),
        [first] * 4 + [0.999] * 4,
        f'table of the differences in training settings, row "{row} ... during and after ramp-up"; App. B.1.2: "Both '
        'of the values were 0.99 during the first 40000 steps, and 0.999 afterwards"',
    )


def ramp_down(cell: Cell) -> tuple[int, int]:
    """How many steps it takes, and the step at which it ends."""
    if cell.svhn and not cell.as_coded:
        return 0, 0
    if cell.extra:
        return 25_000, STEPS_WITH_EXTRA[cell.extra]
    if cell.svhn:
        return (10_000, 40_000) if cell.supervised and not cell.all_labels else (25_000, 180_000)
    if cell.supervised and not cell.all_labels:
        # 100 passes over the labelled images, 100 of them a batch; the run is 750 passes long.
        assert cell.n_labelled is not None
        return cell.n_labelled, 15 * cell.n_labelled // 2
    # The Pi model of the text with 4000 and all labels ends at 180000; its shorter runs are readings of the script's.
    long = cell.method == "pi-model" and not cell.as_coded and cell.n_labelled in (4000, None)
    return 25_000, 180_000 if long else 150_000


def _where_ramp_down(cell: Cell) -> str:
    if cell.svhn:
        return "code" if cell.as_coded else 'table of the differences in training settings: "Ramp-downs", SVHN: "No"'
    if cell.supervised and not cell.all_labels:
        return "code: the last 100 of 750 epochs"
    return 'App. B.1.1: "We applied a ramp-down for the last 25000 training steps"'


# App. B.1.2: "for 400000 steps when using 100k extra unlabeled examples, and for 600000 steps when using 500k extra
# unlabeled examples"
STEPS_WITH_EXTRA = {100_000: 400_000, 500_000: 600_000}
STEPS = {
    # App. B.1.3: "We trained it on SVHN for 40000 steps when using 250, 500 or 1000 labels, and for 180000 steps when
    # using all labels"
    ("svhn", "supervised"): {250: 40_000, 500: 40_000, 1000: 40_000, None: 180_000},
    # App. B.1.3: "We trained it on SVHN for 100000 steps when using 250 labels, and for 180000 steps when using 500,
    # 1000, or all labels"
    ("svhn", "pi-model"): {250: 100_000, 500: 180_000, 1000: 180_000, None: 180_000},
    # App. B.1.2: "We trained the network for 180000 steps when not using extra unlabeled examples"
    ("svhn", "mean-teacher"): {250: 180_000, 500: 180_000, 1000: 180_000, None: 180_000},
    # App. B.1.3: "We trained the supervised-only model on CIFAR-10 for 7500 steps when using 1000 images, for 15000
    # steps when using 2000 images, for 30000 steps when using 4000 images and for 150000 steps when using all images"
    ("cifar10", "supervised"): {1000: 7_500, 2000: 15_000, 4000: 30_000, None: 150_000},
    # App. B.1.3: "We trained the Pi model on CIFAR-10 for 60000 steps when using 1000 labels, for 100000 steps when
    # using 2000 labels, and for 180000 steps when using 4000 labels or all labels"
    ("cifar10", "pi-model"): {1000: 60_000, 2000: 100_000, 4000: 180_000, None: 180_000},
    # table of the differences in training settings: "training steps", semi-supervised CIFAR-10: 150000
    ("cifar10", "mean-teacher"): {1000: 150_000, 2000: 150_000, 4000: 150_000, None: 150_000},
}


def _run(cell: Cell) -> Iterator[Number]:
    if cell.extra:
        steps, place = STEPS_WITH_EXTRA[cell.extra], "App. B.1.2, see STEPS_WITH_EXTRA"
    elif cell.as_coded:
        short = cell.supervised and not cell.all_labels
        steps, place = ((180_000 if cell.svhn else 150_000) if not short else 40_000), "code"
    else:
        steps, place = STEPS[cell.task, cell.method][cell.n_labelled], "App. B.1.2 and B.1.3, see STEPS"
    yield Number("the number of steps", lambda r: r.training.steps, steps, place)
    every = 5000 if cell.svhn else 2500
    yield Number("the steps between evaluations", lambda r: r.training.evaluate_every, every, "ours")
    n_runs = 4 if cell.all_labels else 10
    yield Number(
        "the seeds",
        lambda r: list(r.seeds),
        list(range(n_runs)),
        f'Table {cell.table}: "over 10 runs (4 runs when using all labels)"; counted from zero: ours',
    )
    error, spread = cell.error
    table = f"Table {cell.table}"
    claim = {"error": error, "spread": spread, "where": table, "metric": "error"}
    yield Number("the claim", lambda r: asdict(r.claim), claim, table)


# --- what is admitted -------------------------------------------------------------------------------------------------


def admitted(cell: Cell) -> list[str]:
    """Words by which each deviation is known: no more and no fewer are named."""
    words = ["divided by their expected number" if cell.mixed else "is the mean over a batch's labelled rows"]
    words += ["one step late", "instead of at zero", "Adam adds epsilon after the correction"]
    words += ["standardised each by itself"] if cell.svhn else ["0.1 added to the covariance's diagonal"]
    if cell.method != "mean-teacher":
        words += ["averaged running means"]
    if cell.svhn and cell.semi_supervised:
        words += ["the consistency cost leaves the labelled row out"]
    if cell.extra:
        words += ["draws another part in every run"]
    if not cell.augmented:
        words += ["Gaussian noise and dropout stay"]
    if cell.svhn:
        down = "10000 of its 40000" if cell.supervised and not cell.all_labels else "25000 of its 180000"
        down = f"25000 of its {STEPS_WITH_EXTRA[cell.extra]}" if cell.extra else down
        words += [f"ramp down over the last {down.replace('its ', '')}" if cell.as_coded else f"over the last {down}"]
    if not cell.svhn or cell.as_coded:
        words += ["the paper prints one minus that"]
    if not cell.svhn and cell.supervised and not cell.all_labels:
        words += ["never reaches its maximum"]
    if cell.method == "pi-model":
        reading = {
            ("svhn", 250): "100000 of the 180000",
            ("cifar10", 1000): "60000 of the 150000",
            ("cifar10", 2000): "100000 of the 150000",
        }
        if (cell.task, cell.n_labelled) in reading:
            words += [f"the reading after {reading[cell.task, cell.n_labelled]} steps"]
        elif not cell.svhn:
            words += ["its text says 180000" if cell.as_coded else "180000 steps as the paper's text says"]
    return words


def at_full_size() -> Iterator[Number]:
    yield Number("costs in the curve", lambda r: r.training.evaluate_costs, False, "ours: only figure 3 has them")


def said(expected: Sequence[str]) -> Number:
    return Number(
        "what is admitted",
        lambda r: sorted(
            next((word for word in expected if word in line), f"unknown: {line}") for line in r.deviations
        ),
        sorted(expected),
        "the two sources, where they differ",
    )


def _said(cell: Cell) -> Iterator[Number]:
    yield said(admitted(cell))
    yield from at_full_size()
    if cell.mixed:
        yield Number(
            "the effect of batches without a label",
            lambda r: all(number in " ".join(r.deviations) for number in ("13.2 %", "1.153", "1.017", "1.0002")),
            True,
            "calculated: tests/recipes/test_paper.py",
        )


# --- reading ----------------------------------------------------------------------------------------------------------


def kind(value: Any) -> tuple[str, dict[str, object]]:
    """The class and the fields of a frozen value whose fields are plain."""
    return type(value).__name__, asdict(value)


def at(schedule: Schedule, *steps: int) -> list[float]:
    return [schedule(step) for step in steps]


def _ramp_up(step: int) -> float:
    """App. B.1: "a sigmoid-shaped function e^(-5(1-x)^2), where x in [0,1]", over 40000 steps."""
    x = min(step / 40_000, 1.0)
    return math.exp(-5 * (1 - x) ** 2)


def _ramp_down(step: int, n_steps: int, end: int) -> float:
    """What remains: the code's e^(-12.5x²). The paper prints one minus that, which rises."""
    x = min(max(step - (end - n_steps), 0) / n_steps, 1.0) if n_steps else 0.0
    return math.exp(-12.5 * x**2)


def _around_the_end(n_steps: int, end: int) -> Sequence[int]:
    if not n_steps:
        return (150_000, 155_001, 165_000, 179_999, 399_999, 599_999)
    begin = end - n_steps
    return (begin - 1, begin, begin + 1, begin + n_steps // 4, begin + n_steps // 2, end - 1, end)


def _same(given: object, expected: object) -> bool:
    if isinstance(expected, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(expected)
            and all(_same(one, other) for one, other in zip(given, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(given, dict)
            and set(given) == set(expected)
            and all(_same(given[key], expected[key]) for key in expected)
        )
    if isinstance(expected, float) and isinstance(given, float | int):
        return math.isclose(given, expected, rel_tol=1e-9)
    return given == expected
