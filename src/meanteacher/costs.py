"""The costs as pure functions. The methods stop gradients; only the confident cost detaches its target itself.

Classification is averaged over the labelled rows (counted or expected), consistency over the rows it applies to. No
cost contains a weight: the methods multiply by it. A cost of no rows, or of none that count, is zero.

Logits are [B, C], or [B, C, ...] with a prediction for each place of an example, such as a pixel or a token. Each place
is then a row. `class_axis` names another axis of the classes; for three axes it is required, because [B, C, T] and
[B, T, C] look alike. Costs are computed in float32, and in float64 for logits in float64: in half precision most of
their gradients would be zero.

`rows` says which rows count: bool, or weights from 0 in floating point, [B] or [B, ...] per place. The logits of a row
that does not count may be NaN. Wrong shapes and types are refused, and so are probabilities in place of logits. No
check waits for a device.
"""

from dataclasses import dataclass
from itertools import count
from typing import NoReturn, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import in_double, is_readable
from meanteacher.passes import at_least_float32, per_place

__all__ = [
    "CTau",
    "Confident",
    "ConsistencyCost",
    "Kl",
    "Mse",
    "aligned",
    "c_tau",
    "classification_cost",
    "confident_cross_entropy",
    "dice_cost",
    "entropy",
    "kl_divergence",
    "logit_distance",
    "softmax_mse",
]


class ConsistencyCost(Protocol):
    """A distance of the student's logits from the target's. Subclass it for a cost of your own.

    >>> class Absolute(ConsistencyCost):
    ...     def __call__(self, student_logits, target_logits, rows=None):
    ...         return (student_logits.softmax(1) - target_logits.softmax(1)).abs().mean()
    >>> Absolute()(torch.zeros(4, 2), torch.zeros(4, 2))
    tensor(0.)
    >>> Absolute().is_active(torch.zeros(4, 2))
    True
    """

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mean over `rows`, a scalar. `rows` is bool [B], for dense logits also [B, ...]; None for all rows."""
        ...

    def is_active(self, target_logits: Tensor) -> Tensor | bool:
        """Whether these targets can train anything. Otherwise the cost is inactive and raises no alarm."""
        return True


def classification_cost(
    logits: Tensor,
    labels: Tensor,
    labelled_share: float | None = None,
    *,
    ignore_index: int = UNLABELLED,
    class_weights: Tensor | None = None,
    class_axis: int | None = None,
) -> Tensor:
    """Cross-entropy, averaged over the labelled rows (App. B.1).

    The authors divide by the size of the whole batch instead, which hides a factor of 100 on SVHN; their
    weights are converted. Without labelled rows the cost and its gradient are zero.

    If the number of labelled rows varies between batches, their mean gives a row more weight in a batch with few
    labels than in one with many. `labelled_share` divides by the expected number instead, which is the same for every
    batch, so that all labelled rows have the same weight, as in the authors' code. The cost of a batch is then the mean
    of the costs of its parts, which can be computed independently.

    Args:
        logits: [B, C], or [B, C, ...] for a class per place
        labels: [B], or [B, ...]; whole numbers, with `UNLABELLED` for hidden labels
        labelled_share: expected share of labelled rows; None counts the labelled rows of this batch
        ignore_index: a further label that counts as hidden, for instance 255 or -100
        class_weights: [C], the weight of each class's rows in the mean, for classes of different sizes
        class_axis: axis of the classes in the logits. Without it the classes are second, and logits [B, N, N] for
            labels [B, N] are refused as ambiguous: they could also be [B, N, C].

    Raises:
        InputError: the shapes do not match, the labels are not whole numbers or none of the classes, or there is only
            one class.

    >>> classification_cost(torch.zeros(3, 2), torch.tensor([0, -1, 1]))
    tensor(0.6931)
    >>> classification_cost(torch.zeros(1, 2), torch.tensor([-1]))
    tensor(0.)
    >>> classification_cost(torch.zeros(4, 2), torch.tensor([0, -1, -1, 1]), labelled_share=0.25)
    tensor(1.3863)
    """
    logits, labels = _classified(logits, labels, ignore_index, class_axis)
    if class_weights is not None:
        class_weights = _class_weights(class_weights, logits)
    try:
        total = F.cross_entropy(logits, labels, class_weights, ignore_index=UNLABELLED, reduction="sum")
    except IndexError as error:  # a GPU ends the process instead
        raise InputError(
            f"The labels range from {int(labels.min())} to {int(labels.max())}, but the logits "
            f"{list(logits.shape)} have the classes 0 to {logits.shape[1] - 1}. {UNLABELLED} means no label; give a "
            "further number that means it, such as 255 or -100, as ignore_index."
        ) from error
    if labelled_share is not None:
        return total / max(labelled_share * labels.numel(), labelled_share)
    if class_weights is None:
        return total / (labels != UNLABELLED).sum().clamp_min(1)
    n = class_weights[labels.clamp_min(0)].where(labels != UNLABELLED, 0).sum()
    return total / (n + (n == 0))


def dice_cost(
    logits: Tensor, labels: Tensor, *, ignore_index: int = UNLABELLED, class_axis: int | None = None
) -> Tensor:
    """One minus the soft Dice coefficient of each class, averaged over the classes that occur among the labels.

    The coefficient is 2 Σ p y / (Σ p + Σ y), over all labelled places of the batch, with the softmax p and the one-hot
    label y (Milletari et al. 2016). A class has the same weight whatever its size, so small objects in masks count;
    usual is the sum with `classification_cost`. Without labelled places the cost and its gradient are zero. The
    arguments are those of `classification_cost`.

    >>> certain = torch.tensor([[50.0, 0.0], [0.0, 50.0], [0.0, 50.0]])
    >>> dice_cost(certain, torch.tensor([0, 1, -1]))
    tensor(0.)
    >>> dice_cost(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64))
    tensor(0.3333)
    """
    logits, labels = _classified(logits, labels, ignore_index, class_axis)
    hidden = labels == UNLABELLED
    one_hot = F.one_hot(labels.clamp_min(0), logits.shape[1]).movedim(-1, 1) * ~hidden.unsqueeze(1)
    p = logits.masked_fill(hidden.unsqueeze(1), 0).softmax(1) * ~hidden.unsqueeze(1)
    places = [axis for axis in range(logits.ndim) if axis != 1]
    size = one_hot.sum(places)
    overlap = 2 * (p * one_hot).sum(places) / (p.sum(places) + size).clamp_min(torch.finfo(p.dtype).tiny)
    occurs = size > 0
    return ((1 - overlap) * occurs).sum() / occurs.sum().clamp_min(1)


def hidden_as_unlabelled(labels: Tensor, ignore_index: int = UNLABELLED) -> Tensor:
    """The labels as int64, with `UNLABELLED` in place of `ignore_index`.

    An InputError is raised for labels that are not whole numbers, or are uint8, which cannot hold `UNLABELLED`.

    >>> hidden_as_unlabelled(torch.tensor([3, 255], dtype=torch.uint8), 255)
    tensor([ 3, -1])
    """
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        kind = str(labels.dtype).removeprefix("torch.")
        raise InputError(f"Labels are whole numbers, one per row; got {kind}. For one-hot rows take their argmax(1).")
    if ignore_index == UNLABELLED:
        if labels.dtype == torch.uint8:
            raise InputError(
                f"Labels of type uint8 have no value for a missing label, because {UNLABELLED} is below their range. "
                "Convert them with .long(), or name the value that means it, for instance ignore_index=255."
            )
        return labels.long()
    labels = labels.long()
    return labels.masked_fill(labels == ignore_index, UNLABELLED)


def _classified(logits: Tensor, labels: Tensor, ignore_index: int, class_axis: int | None) -> tuple[Tensor, Tensor]:
    """Logits [B, C, ...] and labels [B, ...] that fit each other."""
    # Labels tell the axis of the classes, unless there are as many classes as places.
    (logits,) = _logits(1 if class_axis is None else class_axis, logits)
    labels = hidden_as_unlabelled(labels, ignore_index)
    if labels.shape != logits.shape[:1] + logits.shape[2:]:
        raise InputError(
            f"Logits {list(logits.shape)} do not fit labels {list(labels.shape)}. Logits are [B, C] for labels [B], "
            "and [B, C, ...] for labels [B, ...]. If the classes come last, give class_axis=-1."
        )
    if class_axis is None and labels.ndim > 1 and {*logits.shape[1:]} == {logits.shape[1]}:
        raise InputError(
            f"Logits {list(logits.shape)} for labels {list(labels.shape)} are ambiguous: there are as many classes as "
            "places. Give the axis of the classes, class_axis=1 or class_axis=-1."
        )
    return logits, labels


def _class_weights(weights: Tensor, logits: Tensor) -> Tensor:
    if weights.shape != logits.shape[1:2]:
        raise InputError(
            f"class_weights {list(weights.shape)} do not fit logits {list(logits.shape)}. Give one weight for each of "
            f"the {logits.shape[1]} classes."
        )
    return weights.to(logits)


def _logits(class_axis: int | None, *given: Tensor) -> tuple[Tensor, ...]:
    """Logits of one shape, with the classes on the second axis, in float32 or float64."""
    if class_axis is None and given[0].ndim == 3:
        raise InputError(
            f"Logits {list(given[0].shape)} with three axes are ambiguous. Give class_axis=1 if they are [B, C, T], or "
            "class_axis=-1 if they are [B, T, C], with the classes last."
        )
    if class_axis is not None and class_axis != 1:
        given = tuple(logits.movedim(class_axis, 1) for logits in given)
    shape = given[0].shape
    if len(shape) < 2 or shape[1] < 2:
        raise InputError(
            f"Logits {list(shape)}: expected [B, C] or [B, C, ...] with at least two classes. The softmax of a "
            "single logit is always 1, so no cost trains it; for a yes-or-no network give torch.cat([0 * x, x], 1)."
        )
    for logits in given:
        if logits.shape != shape:
            raise InputError(
                f"Only logits of one shape can be compared; got {list(shape)} and {list(logits.shape)}. Give the "
                "outputs of one network, or of two with the same classes and places."
            )
        if logits.dtype not in _PRECISE:
            given = tuple(map(_precise, given))
        function = logits.grad_fn
        if function is not None and function.name() == "SoftmaxBackward0":
            _refuse_probabilities(logits)
    if next(_calls) % _SAMPLED == 0:
        for logits in given:
            if is_readable(logits) and len(logits) >= _ENOUGH_ROWS and _are_probabilities(logits.detach()):
                _refuse_probabilities(logits)
    return given


_PRECISE = (torch.float32, torch.float64)
_calls = count()
_SAMPLED = 17
"""Values are looked at in one of so many calls, because looking takes a tenth of the time of a small cost. The number
is prime, so that every cost of a loop has its turn."""
_ENOUGH_ROWS = 8
"""So many rows of logits do not look like probabilities by chance."""


def _precise(logits: Tensor) -> Tensor:
    if not logits.is_floating_point():
        raise InputError(f"Logits are numbers in floating point; got {logits.dtype}. Are these the labels?")
    return at_least_float32(logits)


def _are_probabilities(logits: Tensor) -> bool:
    # A softmax in half precision is off by up to a hundredth.
    return bool((logits >= 0).all() & ((logits.sum(1) - 1).abs() < 0.01).all())


def _refuse_probabilities(logits: Tensor) -> NoReturn:
    raise InputError(
        f"The logits {list(logits.shape)} are probabilities: no value is below 0, and every row has the sum 1. "
        "Costs take the softmax themselves. Give the output before the softmax, or the log of the probabilities."
    )


Pair = tuple[Tensor, Tensor, Tensor | None]


def _compared(first: Tensor, second: Tensor, rows: Tensor | None, class_axis: int | None) -> Pair:
    """Two logits [B, C, ...] of one shape and the weights of their rows. Rows that do not count have zeros."""
    first, second = _logits(class_axis, first, second)
    if rows is None:
        return first, second, None
    rows = _weights(rows, first)
    left_out = (rows == 0).unsqueeze(1)
    return first.masked_fill(left_out, 0), second.masked_fill(left_out, 0), rows


def softmax_mse(
    student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None, *, class_axis: int | None = None
) -> Tensor:
    """Squared distance of two softmax outputs: the consistency cost J of Sec. 2.

    It is the mean over rows *and* classes: a sum over classes would make a weight of 100 act like 1000 with ten
    classes. The gradient flows to both arguments, because the Pi model trains both sides.

    >>> softmax_mse(torch.zeros(4, 10), torch.zeros(4, 10))
    tensor(0.)
    """
    student, target, rows = _compared(student_logits, target_logits, rows, class_axis)
    return _mean(_squared_difference(student.softmax(1), target.softmax(1)).mean(1), rows)


def kl_divergence(
    student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None, *, class_axis: int | None = None
) -> Tensor:
    """D_KL(target ‖ student) of the softmax outputs, summed over classes and averaged over rows (Sec. 3.4).

    The gradient flows to both arguments.

    >>> kl_divergence(torch.zeros(1, 2), torch.tensor([[100.0, 0.0]]))
    tensor(0.6931)
    """
    student, target, rows = _compared(student_logits, target_logits, rows, class_axis)
    log_student, log_target = student.log_softmax(1), target.log_softmax(1)
    return _mean((log_target.exp() * (log_target - log_student)).sum(1), rows)


def c_tau(
    student_logits: Tensor,
    target_logits: Tensor,
    tau: float,
    rows: Tensor | None = None,
    *,
    class_axis: int | None = None,
) -> Tensor:
    """The family between squared error (tau = 0) and KL divergence (tau = 1) of App. C.

    C_tau(p, q) = 2 / (N² tau²) · D_KL(p_tau ‖ q_tau) with p_tau = tau p + (1 - tau) / N, the target's softmax p and the
    student's softmax q. This is the paper's formula; the authors' code has a further factor 1 - 1/N. At tau = 0 it is
    the limit, `softmax_mse`. It is averaged over rows, and the gradient flows to both arguments. A tau outside 0 to 1
    raises a ValueError.

    >>> c_tau(torch.zeros(4, 10), torch.zeros(4, 10), tau=0.5)
    tensor(0.)
    """
    if not 0 <= tau <= 1:
        raise ValueError(f"tau ranges from 0 (squared error) to 1 (KL divergence); got {tau}.")
    student, target, weights = _compared(student_logits, target_logits, rows, class_axis)
    n_classes = student.shape[1]
    if tau == 0:
        return softmax_mse(student, target, rows, class_axis=1)
    if tau == 1:
        return kl_divergence(student, target, rows, class_axis=1) * (2 / n_classes**2)
    # Near tau = 0 the divergence is a difference of almost equal numbers, divided by tau². Float32 would leave only
    # rounding errors.
    uniform = (1 - tau) / n_classes
    p = tau * in_double(target).softmax(1) + uniform
    q = tau * in_double(student).softmax(1) + uniform
    divergence = (p * (p.log() - q.log())).sum(1)
    weights = None if weights is None else weights.to(divergence.device)
    return _mean(divergence * (2 / (n_classes * tau) ** 2), weights).to(student)


@dataclass(frozen=True)
class Mse(ConsistencyCost):
    """`softmax_mse` as a value for recipes.

    >>> Mse()(torch.zeros(4, 10), torch.zeros(4, 10))
    tensor(0.)
    """

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return softmax_mse(student_logits, target_logits, rows, class_axis=1)


@dataclass(frozen=True)
class Kl(ConsistencyCost):
    """`kl_divergence` as a value for recipes.

    >>> Kl()(torch.zeros(1, 2), torch.tensor([[100.0, 0.0]]))
    tensor(0.6931)
    """

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return kl_divergence(student_logits, target_logits, rows, class_axis=1)


@dataclass(frozen=True, kw_only=True)
class Confident(ConsistencyCost):
    """`confident_cross_entropy` with its threshold and temperature, as a value for recipes.

    >>> Confident(threshold=0.9)(torch.zeros(1, 2), torch.tensor([[9.0, 0.0]]))
    tensor(0.6931)
    """

    threshold: float
    temperature: float = 1.0
    alignment: float = 0.0
    """Strength of the alignment of the targets, see `aligned`; 0 for none."""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1 or self.temperature <= 0:
            raise InputError(
                "A confident cost needs a threshold from 0 to below 1, because no softmax output exceeds 1, and a "
                f"temperature above 0; got {self.threshold} and {self.temperature}."
            )
        if not 0 <= self.alignment <= 1:
            raise InputError(f"alignment ranges from 0 (none) to 1 (all classes equal); got {self.alignment}.")

    def is_active(self, target_logits: Tensor) -> Tensor:
        """Whether any row is certain. Without a certain row there is nothing to learn from."""
        return (aligned(at_least_float32(target_logits), self.alignment).softmax(1).amax(1) >= self.threshold).any()

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return confident_cross_entropy(
            student_logits,
            aligned(target_logits, self.alignment),
            threshold=self.threshold,
            temperature=self.temperature,
            rows=rows,
            class_axis=1,
        )


def aligned(logits: Tensor, strength: float) -> Tensor:
    """Logits after distribution alignment (Berthelot et al. 2020): the batch's class frequencies become more equal.

    The probabilities of a class are divided by their mean over the batch to the power `strength`. This keeps a class
    that the few labels favour from collecting the unlabelled images of other classes.

    >>> aligned(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), 1.0).softmax(1)[0]
    tensor([0.5000, 0.5000])
    """
    if strength == 0:
        return logits
    logits = at_least_float32(logits)
    probabilities = logits.softmax(1)
    per_class = probabilities.mean([axis for axis in range(logits.ndim) if axis != 1], keepdim=True)
    return logits - strength * per_class.clamp_min(1e-6).log()


@dataclass(frozen=True)
class CTau(ConsistencyCost):
    """`c_tau` with its tau, as a value for recipes.

    >>> CTau(0.5)(torch.zeros(4, 10), torch.zeros(4, 10))
    tensor(0.)
    """

    tau: float

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return c_tau(student_logits, target_logits, self.tau, rows, class_axis=1)


def confident_cross_entropy(
    student_logits: Tensor,
    target_logits: Tensor,
    *,
    threshold: float,
    temperature: float = 1.0,
    rows: Tensor | None = None,
    class_axis: int | None = None,
) -> Tensor:
    """Cross-entropy with the target's sharpened softmax output, on the rows whose target is certain.

    It is FixMatch's cost (Sohn et al. 2020) for targets that are not rounded to one class: softmax(target /
    temperature) approaches the rounded target as the temperature goes to zero. The mean is over all rows in `rows`,
    certain or not, so the cost is small while few rows are certain and needs no ramp. The target is a label, so no
    gradient flows to it: through a sharpened target it would be 1 / temperature times as large.

    >>> certain, unsure = torch.tensor([[9.0, 0.0]]), torch.zeros(1, 2)
    >>> confident_cross_entropy(torch.zeros(1, 2), certain, threshold=0.9)
    tensor(0.6931)
    >>> confident_cross_entropy(torch.zeros(1, 2), unsure, threshold=0.9)
    tensor(0.)
    """
    student, target, rows = _compared(student_logits, target_logits.detach(), rows, class_axis)
    certain = target.softmax(1).amax(1) >= threshold
    sharpened = (target / temperature).softmax(1)
    return _mean(-(sharpened * student.log_softmax(1)).sum(1) * certain, rows)


def entropy(logits: Tensor, rows: Tensor | None = None, *, class_axis: int | None = None) -> Tensor:
    """Entropy of the softmax output, averaged over rows. It is low if the network is certain.

    >>> entropy(torch.zeros(3, 2))
    tensor(0.6931)
    """
    (logits,) = _logits(class_axis, logits)
    if rows is not None:
        rows = _weights(rows, logits)
        logits = logits.masked_fill((rows == 0).unsqueeze(1), 0)
    log_p = logits.log_softmax(1)
    return _mean(-(log_p.exp() * log_p).sum(1), rows)


def logit_distance(first: Tensor, second: Tensor, *, class_axis: int | None = None) -> Tensor:
    """Mean squared difference of two outputs' logits, over rows and classes (Sec. 3.4, "decoupling").

    The gradient flows to both arguments: this cost couples the two outputs of one network.

    >>> logit_distance(torch.zeros(2, 2), torch.ones(2, 2))
    tensor(1.)
    """
    first, second, _ = _compared(first, second, None, class_axis)
    squared = _squared_difference(first, second)
    return squared.mean() if squared.numel() else squared.sum()


def _weights(rows: Tensor, logits: Tensor) -> Tensor:
    """A weight for each place of logits [B, C, ...]."""
    if rows.dtype != torch.bool:
        if not rows.is_floating_point():
            raise InputError(
                f"rows is a mask of bool, or weights in floating point; got {str(rows.dtype).removeprefix('torch.')}. "
                "For a mask of zeros and ones give rows.bool(), for indices a mask with mask[indices] = True."
            )
        rows = at_least_float32(rows)
    return per_place(rows, logits.shape[:1] + logits.shape[2:])


def _squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """The numbers of (first - second).square() in one operation, without the wrapper that F.mse_loss has around it."""
    return torch._C._nn.mse_loss(first, second, 0)  # type: ignore[arg-type]  # 0: no reduction


def _mean(per_row: Tensor, rows: Tensor | None) -> Tensor:
    if rows is None:
        return per_row.mean() if per_row.numel() else per_row.sum()
    n = rows.sum()
    return (per_row * rows).sum() / (n.clamp_min(1) if rows.dtype == torch.bool else n + (n == 0))
