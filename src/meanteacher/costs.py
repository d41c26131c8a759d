"""The costs as pure functions. The methods stop gradients; only the confident cost detaches its target itself.

Classification is averaged over the labelled rows (counted or expected), consistency over the rows it applies to. No
cost contains a weight: the methods multiply by it.

Logits are [B, C], or [B, C, ...] with a prediction for each place of an example, such as a pixel or a token. Each place
is then a row. Wrong shapes are refused; the check reads no value from the device.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import in_double


class ConsistencyCost(Protocol):
    """A distance of the student's logits from the target's. Subclass it for a cost of your own.

    >>> class Absolute(ConsistencyCost):
    ...     def __call__(self, student_logits, target_logits, rows=None):
    ...         return (student_logits.softmax(1) - target_logits.softmax(1)).abs().mean()
    >>> Absolute()(torch.zeros(4, 2), torch.zeros(4, 2))
    tensor(0.)
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
        ignore_index: a further label that counts as hidden, for instance 255
        class_axis: axis of the classes in the logits. Without it the classes are second, and logits [B, N, N] for
            labels [B, N] are refused as ambiguous: they could also be [B, N, C].

    Raises:
        InputError: the shapes do not match, the labels are not whole numbers, or there is only one class.

    >>> classification_cost(torch.zeros(3, 2), torch.tensor([0, -1, 1]))
    tensor(0.6931)
    >>> classification_cost(torch.zeros(1, 2), torch.tensor([-1]))
    tensor(0.)
    >>> classification_cost(torch.zeros(4, 2), torch.tensor([0, -1, -1, 1]), labelled_share=0.25)
    tensor(1.3863)
    """
    if class_axis not in (None, 1):
        logits = logits.movedim(class_axis, 1)
    labels = hidden_as_unlabelled(labels, ignore_index)
    _check_labels(logits, labels, either_axis=class_axis is None)
    total = F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum")
    if labelled_share is not None:
        return total / (labelled_share * labels.numel())
    return total / (labels != UNLABELLED).sum().clamp_min(1)


def hidden_as_unlabelled(labels: Tensor, ignore_index: int = UNLABELLED) -> Tensor:
    """The labels as int64, with `UNLABELLED` in place of `ignore_index`.

    An InputError is raised for labels that are not whole numbers, or are uint8, which cannot hold `UNLABELLED`.

    >>> hidden_as_unlabelled(torch.tensor([3, 255], dtype=torch.uint8), 255)
    tensor([ 3, -1])
    """
    kind = str(labels.dtype).removeprefix("torch.")
    if labels.is_floating_point() or labels.is_complex() or kind == "bool":
        raise InputError(f"Labels are whole numbers, one per row; got {kind}. For one-hot rows take their argmax(1).")
    if ignore_index == UNLABELLED:
        if kind == "uint8":
            raise InputError(
                f"Labels of type uint8 cannot hold {UNLABELLED} (unlabelled). Convert them with .long(), or give the "
                "number that means no label, for instance ignore_index=255."
            )
        return labels.long()
    labels = labels.long()
    return labels.masked_fill(labels == ignore_index, UNLABELLED)


def _check_labels(logits: Tensor, labels: Tensor, *, either_axis: bool) -> None:
    _check_logits(logits)
    if labels.shape != logits.shape[:1] + logits.shape[2:]:
        raise InputError(
            f"Logits {list(logits.shape)} do not fit labels {list(labels.shape)}. Logits are [B, C] for labels [B], "
            "and [B, C, ...] for labels [B, ...]. If the classes come last, give class_axis=-1."
        )
    if either_axis and labels.ndim > 1 and {*logits.shape[1:]} == {logits.shape[1]}:
        raise InputError(
            f"Logits {list(logits.shape)} for labels {list(labels.shape)} are ambiguous: there are as many classes as "
            "places. Give the axis of the classes, class_axis=1 or class_axis=-1."
        )


def _check_logits(logits: Tensor, other: Tensor | None = None) -> None:
    if logits.ndim < 2 or logits.shape[1] < 2:
        raise InputError(
            f"Logits {list(logits.shape)}: expected [B, C] or [B, C, ...] with at least two classes. The softmax of a "
            "single logit is always 1, so no cost trains it; for a yes-or-no network give torch.cat([0 * x, x], 1)."
        )
    if other is not None and other.shape != logits.shape:
        raise InputError(
            f"Only logits of one shape can be compared; got {list(logits.shape)} and {list(other.shape)}. Give the "
            "outputs of one network, or of two with the same classes and places."
        )


def softmax_mse(student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """Squared distance of two softmax outputs: the consistency cost J of Sec. 2.

    It is the mean over rows *and* classes: a sum over classes would make a weight of 100 act like 1000 with ten
    classes. The gradient flows to both arguments, because the Pi model trains both sides.

    >>> softmax_mse(torch.zeros(4, 10), torch.zeros(4, 10))
    tensor(0.)
    """
    _check_logits(student_logits, target_logits)
    difference = student_logits.softmax(1) - target_logits.softmax(1)
    return _mean(difference.square().mean(1), rows)


def kl_divergence(student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """D_KL(target ‖ student) of the softmax outputs, summed over classes and averaged over rows (Sec. 3.4).

    The gradient flows to both arguments.

    >>> kl_divergence(torch.zeros(1, 2), torch.tensor([[100.0, 0.0]]))
    tensor(0.6931)
    """
    _check_logits(student_logits, target_logits)
    log_student, log_target = student_logits.log_softmax(1), target_logits.log_softmax(1)
    return _mean((log_target.exp() * (log_target - log_student)).sum(1), rows)


def c_tau(student_logits: Tensor, target_logits: Tensor, tau: float, rows: Tensor | None = None) -> Tensor:
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
    _check_logits(student_logits, target_logits)
    n_classes = student_logits.shape[1]
    if tau == 0:
        return softmax_mse(student_logits, target_logits, rows)
    if tau == 1:
        return kl_divergence(student_logits, target_logits, rows) * (2 / n_classes**2)
    # Near tau = 0 the divergence is a difference of almost equal numbers, divided by tau². Float32 would leave only
    # rounding errors.
    uniform = (1 - tau) / n_classes
    p = tau * in_double(target_logits).softmax(1) + uniform
    q = tau * in_double(student_logits).softmax(1) + uniform
    divergence = (p * (p.log() - q.log())).sum(1)
    rows = None if rows is None else rows.to(divergence.device)
    return _mean(divergence * (2 / (n_classes * tau) ** 2), rows).to(student_logits)


@dataclass(frozen=True)
class Mse(ConsistencyCost):
    """`softmax_mse` as a value for recipes.

    >>> Mse()(torch.zeros(4, 10), torch.zeros(4, 10))
    tensor(0.)
    """

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return softmax_mse(student_logits, target_logits, rows)


@dataclass(frozen=True)
class Kl(ConsistencyCost):
    """`kl_divergence` as a value for recipes.

    >>> Kl()(torch.zeros(1, 2), torch.tensor([[100.0, 0.0]]))
    tensor(0.6931)
    """

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return kl_divergence(student_logits, target_logits, rows)


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
        return (aligned(target_logits, self.alignment).softmax(1).amax(1) >= self.threshold).any()

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return confident_cross_entropy(
            student_logits,
            aligned(target_logits, self.alignment),
            threshold=self.threshold,
            temperature=self.temperature,
            rows=rows,
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
        return c_tau(student_logits, target_logits, self.tau, rows)


def confident_cross_entropy(
    student_logits: Tensor,
    target_logits: Tensor,
    *,
    threshold: float,
    temperature: float = 1.0,
    rows: Tensor | None = None,
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
    _check_logits(student_logits, target_logits)
    target_logits = target_logits.detach()
    certain = target_logits.softmax(1).amax(1) >= threshold
    sharpened = (target_logits / temperature).softmax(1)
    return _mean(-(sharpened * student_logits.log_softmax(1)).sum(1) * certain, rows)


def entropy(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """Entropy of the softmax output, averaged over rows. It is low if the network is certain.

    >>> entropy(torch.zeros(3, 2))
    tensor(0.6931)
    """
    _check_logits(logits)
    log_p = logits.log_softmax(1)
    return _mean(-(log_p.exp() * log_p).sum(1), rows)


def logit_distance(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of two outputs' logits, over rows and classes (Sec. 3.4, "decoupling").

    The gradient flows to both arguments: this cost couples the two outputs of one network.

    >>> logit_distance(torch.zeros(2, 2), torch.ones(2, 2))
    tensor(1.)
    """
    _check_logits(first, second)
    return (first - second).square().mean()


def per_place(rows: Tensor, shape: torch.Size) -> Tensor:
    """A mask of places [B, ...]: a mask of rows [B] is expanded to all places, and any other is an InputError.

    >>> per_place(torch.tensor([True, False]), torch.Size([2, 3])).tolist()
    [[True, True, True], [False, False, False]]
    """
    if rows.shape == shape:
        return rows
    if rows.shape != shape[:1]:
        raise InputError(f"A mask {list(rows.shape)} does not fit {list(shape)}: give a value per row or per place.")
    return rows.view(-1, *[1] * (len(shape) - 1)).expand(shape)


def _mean(per_row: Tensor, rows: Tensor | None) -> Tensor:
    if rows is None:
        return per_row.mean()
    rows = per_place(rows, per_row.shape)
    return (per_row * rows).sum() / rows.sum().clamp_min(1)
