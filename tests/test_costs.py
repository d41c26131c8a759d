from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.costs import (
    Confident,
    CTau,
    Kl,
    Mse,
    aligned,
    c_tau,
    classification_cost,
    confident_cross_entropy,
    dice_cost,
    entropy,
    kl_divergence,
    logit_distance,
    softmax_mse,
)

Cost = Callable[[Tensor, Tensor], Tensor]

CONSISTENCY: dict[str, Cost] = {
    "softmax-mse": softmax_mse,
    "kl": kl_divergence,
    "c-tau-0": partial(c_tau, tau=0.0),
    "c-tau-0.01": partial(c_tau, tau=0.01),
    "c-tau-0.5": CTau(0.5),
    "c-tau-1": partial(c_tau, tau=1.0),
}
TWO_ARGUMENTS: dict[str, Cost] = {**CONSISTENCY, "logit-distance": logit_distance}
every_consistency_cost = pytest.mark.parametrize("cost", CONSISTENCY.values(), ids=CONSISTENCY)
every_cost_of_two = pytest.mark.parametrize("cost", TWO_ARGUMENTS.values(), ids=TWO_ARGUMENTS)


def pair(rows: int = 6, classes: int = 4, *, scale: float = 2.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [
        (scale * torch.randn(rows, classes, generator=source, dtype=torch.float64)).to(dtype).requires_grad_()
        for _ in range(2)
    ]


def probabilities(*logits: Tensor) -> list[np.ndarray]:
    return [softmax(x.detach().double().numpy(), axis=1) for x in logits]


# --- classification -------------------------------------------------------------------------------------


def test_classification_is_the_mean_cross_entropy_of_the_labelled_rows() -> None:
    logits, _ = pair()
    labels = torch.tensor([2, UNLABELLED, 0, UNLABELLED, UNLABELLED, 3])
    (q,) = probabilities(logits)
    expected = -(np.log(q[0, 2]) + np.log(q[2, 0]) + np.log(q[5, 3])) / 3
    assert classification_cost(logits, labels).item() == pytest.approx(expected, rel=1e-12)


def test_unlabelled_rows_neither_dilute_the_classification_cost_nor_get_a_gradient() -> None:
    logits, _ = pair()
    labels = torch.tensor([2, UNLABELLED, 0, UNLABELLED, UNLABELLED, 3])
    shown = labels != UNLABELLED
    cost = classification_cost(logits, labels)
    assert cost.item() == pytest.approx(classification_cost(logits[shown], labels[shown]).item())
    cost.backward()
    assert torch.equal(logits.grad.abs().sum(1) > 0, shown)


@pytest.mark.parametrize("share", [None, 0.02])
def test_without_a_labelled_row_the_classification_cost_and_its_gradient_are_zero(share: float | None) -> None:
    logits, _ = pair()
    cost = classification_cost(logits, torch.full((6,), UNLABELLED), share)
    cost.backward()
    assert cost.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_with_a_labelled_share_the_sum_is_divided_by_the_expected_number_of_labelled_rows() -> None:
    logits, _ = pair()
    labels = torch.tensor([2, UNLABELLED, 0, UNLABELLED, UNLABELLED, 3])
    (q,) = probabilities(logits)
    total = -(np.log(q[0, 2]) + np.log(q[2, 0]) + np.log(q[5, 3]))
    assert classification_cost(logits, labels, 0.25).item() == pytest.approx(total / 1.5, rel=1e-12)  # 0.25 of 6 rows
    assert classification_cost(logits, labels, 0.5).item() == pytest.approx(total / 3, rel=1e-12)


def test_with_a_labelled_share_a_labelled_row_weighs_the_same_in_every_batch() -> None:
    """Its gradient does not depend on how many other rows show their label; with the plain mean it does."""
    few, many = torch.tensor([2, -1, -1, -1, -1, -1]), torch.tensor([2, 1, 0, 3, -1, -1])

    def gradient_of_row_0(labels: Tensor, share: float | None) -> Tensor:
        logits, _ = pair()
        classification_cost(logits, labels, share).backward()
        assert logits.grad is not None
        return logits.grad[0]

    torch.testing.assert_close(gradient_of_row_0(few, 0.25), gradient_of_row_0(many, 0.25))
    torch.testing.assert_close(gradient_of_row_0(few, None), 4 * gradient_of_row_0(many, None))


def test_with_a_labelled_share_the_cost_of_a_batch_is_the_mean_of_its_parts() -> None:
    """So processes that each hold a part of the batch need not tell each other how many labels they have."""
    logits, _ = pair()
    labels = torch.tensor([2, UNLABELLED, 0, UNLABELLED, UNLABELLED, UNLABELLED])
    parts = [classification_cost(x, y, 0.25).item() for x, y in zip(logits.split(3), labels.split(3), strict=True)]
    assert classification_cost(logits, labels, 0.25).item() == pytest.approx(np.mean(parts), rel=1e-12)


# --- consistency, by hand -------------------------------------------------------------------------------


def test_softmax_mse_is_the_squared_difference_averaged_over_rows_and_classes() -> None:
    student, target = pair(3, 4)
    q, p = probabilities(student, target)
    expected = sum((q[i, c] - p[i, c]) ** 2 for i in range(3) for c in range(4)) / 12
    assert softmax_mse(student, target).item() == pytest.approx(expected, rel=1e-12)


def test_twice_the_classes_halve_softmax_mse_when_the_new_ones_are_never_predicted() -> None:
    student, target = pair(5, 4)
    never = torch.full((5, 4), -1e4, dtype=torch.float64)
    wide = softmax_mse(torch.cat([student, never], 1), torch.cat([target, never], 1))
    assert wide.item() == pytest.approx(softmax_mse(student, target).item() / 2, rel=1e-12)


def test_kl_divergence_is_that_from_the_target_to_the_student_summed_over_classes() -> None:
    student, target = pair(3, 4)
    q, p = probabilities(student, target)
    expected = (p * np.log(p / q)).sum() / 3
    reverse = (q * np.log(q / p)).sum() / 3
    assert kl_divergence(student, target).item() == pytest.approx(expected, rel=1e-12)
    assert abs(expected - reverse) > 0.01


def test_a_student_that_excludes_what_the_target_believes_is_punished_without_bound() -> None:
    torn, sure = torch.zeros(1, 2), torch.tensor([[50.0, -50.0]])
    assert kl_divergence(sure, torn).item() == pytest.approx(50 - np.log(2), rel=1e-5)
    assert kl_divergence(torn, sure).item() == pytest.approx(np.log(2), rel=1e-5)


@pytest.mark.parametrize("tau", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
def test_c_tau_is_the_formula_of_appendix_c(tau: float) -> None:
    student, target = pair(3, 4)
    q, p = (tau * x + (1 - tau) / 4 for x in probabilities(student, target))
    expected = 2 / (4**2 * tau**2) * (p * np.log(p / q)).sum(1).mean()
    assert c_tau(student, target, tau).item() == pytest.approx(expected, rel=1e-8)


# --- the limits of C_tau --------------------------------------------------------------------------------


def test_c_tau_at_its_ends_is_squared_error_and_scaled_kl_divergence() -> None:
    student, target = pair(6, 10)
    assert c_tau(student, target, 0).item() == softmax_mse(student, target).item()
    assert c_tau(student, target, 1).item() == pytest.approx(2 / 100 * kl_divergence(student, target).item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_c_tau_converges_to_squared_error_as_tau_shrinks(dtype: torch.dtype) -> None:
    student, target = pair(32, 10, dtype=dtype)
    limit = softmax_mse(student, target).item()
    errors = [abs(c_tau(student, target, tau).item() / limit - 1) for tau in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)]
    assert errors[2] < 1e-2
    for larger, smaller in pairwise(errors):
        assert smaller < larger / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_c_tau_converges_to_that_of_squared_error(dtype: torch.dtype) -> None:
    student, target = pair(32, 10, dtype=dtype)
    wanted = torch.autograd.grad(softmax_mse(student, target), [student, target])
    for tau, tolerance in [(1e-2, 0.1), (1e-3, 0.01), (1e-4, 0.001)]:
        ours = torch.autograd.grad(c_tau(student, target, tau), [student, target])
        for one, other in zip(ours, wanted, strict=True):
            assert (one - other).norm() < tolerance * other.norm()


def test_c_tau_converges_to_scaled_kl_divergence_as_tau_nears_one() -> None:
    student, target = pair(32, 10)
    limit = c_tau(student, target, 1).item()
    errors = [abs(c_tau(student, target, 1 - gap).item() / limit - 1) for gap in (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan")])
def test_c_tau_has_no_value_outside_zero_to_one(tau: float) -> None:
    with pytest.raises(ValueError, match=rf"tau ranges from 0 \(squared error\) to 1 \(KL divergence\); got {tau}"):
        c_tau(*pair(), tau)


# --- what all consistency costs share -------------------------------------------------------------------


@every_consistency_cost
def test_consistency_is_zero_and_flat_where_both_agree(cost: Cost) -> None:
    student, _ = pair()
    shifted = student.detach() + 3.0  # a constant added to all logits changes no probability
    value = cost(student, shifted)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(student.grad, torch.zeros_like(student), atol=1e-9, rtol=0)


@every_consistency_cost
def test_consistency_is_positive_where_they_differ(cost: Cost) -> None:
    student, target = pair()
    for i in range(6):
        assert cost(student[i : i + 1], target[i : i + 1]).item() > 1e-4


@every_consistency_cost
def test_a_mask_of_rows_gives_the_cost_of_those_rows_alone(cost: Cost) -> None:
    student, target = pair()
    rows = torch.tensor([True, False, True, True, False, False])
    value = cost(student, target, rows=rows)
    assert value.item() == pytest.approx(cost(student[rows], target[rows]).item(), rel=1e-9)
    value.backward()
    for side in (student, target):
        assert torch.equal(side.grad.abs().sum(1) > 0, rows)


@every_consistency_cost
def test_a_full_mask_is_the_same_as_none(cost: Cost) -> None:
    student, target = pair()
    full = cost(student, target, rows=torch.ones(6, dtype=torch.bool))
    assert full.item() == pytest.approx(cost(student, target).item(), rel=1e-12)


@every_consistency_cost
def test_an_empty_mask_costs_nothing_and_moves_nothing(cost: Cost) -> None:
    student, target = pair()
    value = cost(student, target, rows=torch.zeros(6, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    for side in (student, target):
        assert torch.equal(side.grad, torch.zeros_like(side))


@every_consistency_cost
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(cost: Cost, dtype: torch.dtype) -> None:
    sure = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 1e4], [1e4, 1e4, -1e4]], dtype=dtype)
    student, target = sure.clone().requires_grad_(), sure.roll(1, 0).requires_grad_()
    value = cost(student, target)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(student.grad).all()
    assert torch.isfinite(target.grad).all()


@every_consistency_cost
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_of_a_cost_is_that_of_its_logits(cost: Cost, dtype: torch.dtype) -> None:
    assert cost(*pair(dtype=dtype)).dtype == dtype


@every_consistency_cost
def test_consistency_averages_over_rows(cost: Cost) -> None:
    student, target = pair()
    one_by_one = [cost(s, t).item() for s, t in zip(student.split(1), target.split(1), strict=True)]
    assert cost(student, target).item() == pytest.approx(np.mean(one_by_one), rel=1e-9)


# --- gradients ------------------------------------------------------------------------------------------


@every_cost_of_two
def test_no_cost_detaches_either_argument(cost: Cost) -> None:
    student, target = pair()
    for side in torch.autograd.grad(cost(student, target), [student, target]):
        assert (side.abs().sum(1) > 1e-6).all()


@every_cost_of_two
def test_gradients_are_the_derivatives(cost: Cost) -> None:
    assert torch.autograd.gradcheck(cost, pair(3, 4, scale=1.0))


@pytest.mark.parametrize("labels", [[0, 2, 1], [UNLABELLED, 3, UNLABELLED]])
def test_the_gradient_of_the_classification_cost_is_the_derivative(labels: list[int]) -> None:
    logits, _ = pair(3, 4)
    assert torch.autograd.gradcheck(partial(classification_cost, labels=torch.tensor(labels)), [logits])


# --- entropy ---------------------------------------------------------------------------------------------


def test_entropy_is_that_of_the_softmax_averaged_over_rows() -> None:
    logits, _ = pair(3, 4)
    (q,) = probabilities(logits)
    assert entropy(logits).item() == pytest.approx(-(q * np.log(q)).sum() / 3, rel=1e-12)
    rows = torch.tensor([True, False, True])
    assert entropy(logits, rows).item() == pytest.approx(entropy(logits[rows]).item(), rel=1e-12)
    assert torch.autograd.gradcheck(entropy, [logits])


def test_entropy_of_a_certain_output_is_zero_and_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    entropy(logits).backward()
    assert entropy(logits).item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


# --- logit distance -------------------------------------------------------------------------------------


def test_logit_distance_is_the_squared_difference_averaged_over_rows_and_classes() -> None:
    first, second = pair(3, 4)
    expected = np.square(first.detach().numpy() - second.detach().numpy()).sum() / 12
    assert logit_distance(first, second).item() == pytest.approx(expected, rel=1e-12)


def test_logit_distance_sees_what_the_softmax_does_not() -> None:
    first, _ = pair()
    assert logit_distance(first, first + 3).item() == pytest.approx(9)
    assert softmax_mse(first, first + 3).item() == pytest.approx(0, abs=1e-12)


def test_logit_distance_pulls_both_outputs_towards_each_other() -> None:
    first, second = pair()
    one, other = torch.autograd.grad(logit_distance(first, second), [first, second])
    torch.testing.assert_close(one, -other)
    torch.testing.assert_close(one, 2 * (first - second).detach() / first.numel())


def test_a_confident_cost_learns_from_certain_rows_only() -> None:
    student = torch.zeros(4, 3, requires_grad=True)
    target = torch.tensor([[9.0, 0, 0], [0, 0, 0], [0.5, 0, 0], [0, 0, 9.0]])
    confident_cross_entropy(student, target, threshold=0.9).backward()
    assert student.grad is not None
    assert student.grad.abs().sum(1).ne(0).tolist() == [True, False, False, True]


def test_a_confident_cost_is_averaged_over_all_rows() -> None:
    target = torch.tensor([[9.0, 0], [0, 0], [0, 0], [0, 0]])
    one = confident_cross_entropy(torch.zeros(1, 2), target[:1], threshold=0.9)
    assert confident_cross_entropy(torch.zeros(4, 2), target, threshold=0.9) == pytest.approx(float(one) / 4)
    rows = torch.tensor([True, True, False, False])
    two = confident_cross_entropy(torch.zeros(4, 2), target, threshold=0.9, rows=rows)
    assert two == pytest.approx(float(one) / 2)


def test_a_low_temperature_rounds_the_target_to_one_class() -> None:
    student, target = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.eye(4)
    rounded = torch.nn.functional.cross_entropy(student, target.argmax(1))
    sharp = confident_cross_entropy(student, target, threshold=0.0, temperature=0.01)
    assert sharp == pytest.approx(float(rounded), abs=1e-4)
    assert confident_cross_entropy(student, target, threshold=0.0) != pytest.approx(float(rounded), abs=1e-2)


def test_a_confident_cost_rests_while_no_row_is_certain() -> None:
    cost = Confident(threshold=0.9)
    assert not cost.is_active(torch.zeros(3, 5))
    assert cost.is_active(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))


@pytest.mark.parametrize(("threshold", "temperature"), [(1.0, 1.0), (-0.1, 1.0), (0.5, 0.0)])
def test_a_confident_cost_that_could_never_train_is_refused(threshold: float, temperature: float) -> None:
    with pytest.raises(InputError, match="threshold from 0 to below 1"):
        Confident(threshold=threshold, temperature=temperature)


# --- distribution alignment -----------------------------------------------------------------------------


def test_aligned_logits_are_the_probabilities_divided_by_their_mean_over_the_batch() -> None:
    logits, _ = pair(50, 4)
    (p,) = probabilities(logits)
    for strength in (0.3, 1.0):
        expected = p / p.mean(0) ** strength
        expected /= expected.sum(1, keepdims=True)
        np.testing.assert_allclose(probabilities(aligned(logits, strength))[0], expected, rtol=1e-9)


@pytest.mark.parametrize("favour", [1.0, 4.0])
def test_full_alignment_makes_the_classes_equally_probable_and_none_changes_nothing(favour: float) -> None:
    """One class is favoured in every row, as by many labels; the rows differ otherwise."""
    logits, _ = pair(400, 3, scale=0.5)
    logits = logits.detach() + torch.tensor([favour, 0.0, 0.0])
    means = [probabilities(aligned(logits, strength))[0].mean(0) for strength in (0.0, 0.5, 1.0)]
    assert means[0][0] > 0.5
    assert 0.4 < means[1][0] < means[0][0]
    np.testing.assert_allclose(means[2], 1 / 3, atol=0.06)
    assert torch.equal(aligned(logits, 0.0), logits)


def test_alignment_keeps_the_differences_between_rows_and_bears_a_class_that_is_never_predicted() -> None:
    logits = torch.tensor([[9.0, 0.0, -900.0], [0.0, 9.0, -900.0]])
    assert aligned(logits, 1.0).argmax(1).tolist() == [0, 1]
    assert torch.isfinite(aligned(logits, 1.0)).all()


def test_an_aligned_cost_learns_from_the_aligned_target() -> None:
    """Every row says the first class. The one that says it least is taken for the second."""
    target = torch.tensor([[6.0, 0.0], [6.0, 0.0], [0.2, 0.0]])
    cost = Confident(threshold=0.8, alignment=1.0)
    student = torch.zeros(3, 2, requires_grad=True)
    cost(student, target).backward()
    assert student.grad is not None
    assert student.grad.argmin(1).tolist() == [0, 0, 1]
    assert student.grad.abs().sum(1).ne(0).all()
    assert cost.is_active(target)
    assert not cost.is_active(target[:2])  # all alike: nothing is certain
    assert Confident(threshold=0.8).is_active(target[:2])


@pytest.mark.parametrize("alignment", [-0.1, 1.1, float("nan")])
def test_an_alignment_outside_zero_to_one_is_refused(alignment: float) -> None:
    with pytest.raises(InputError, match=rf"alignment ranges from 0 \(none\) to 1 .*got {alignment}"):
        Confident(threshold=0.8, alignment=alignment)


# --- a prediction for every place -----------------------------------------------------------------------


def dense(*shape: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=source, dtype=torch.float64).requires_grad_() for _ in range(2)]


def of_second_axis(cost: Cost) -> Cost:
    """The cost with its axis named, as three axes need it; a value for recipes names it itself."""
    return cost if isinstance(cost, CTau) else partial(cost, class_axis=1)


def as_rows(logits: Tensor) -> Tensor:
    return logits.movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 6), (3, 4, 5, 6, 2)])
@every_consistency_cost
def test_every_place_of_a_dense_prediction_is_a_row(cost: Cost, shape: tuple[int, ...]) -> None:
    student, target = dense(*shape)
    cost = of_second_axis(cost)
    assert cost(student, target).item() == pytest.approx(cost(as_rows(student), as_rows(target)).item(), rel=1e-9)
    places = torch.rand(shape[0], *shape[2:], generator=torch.Generator().manual_seed(1)) < 0.5
    of_places = cost(as_rows(student), as_rows(target), rows=places.flatten())
    assert cost(student, target, rows=places).item() == pytest.approx(of_places.item(), rel=1e-9)


@every_consistency_cost
def test_a_mask_of_rows_means_the_rows_of_a_dense_prediction_whatever_their_width(cost: Cost) -> None:
    """As many rows as columns: the mask would fit the columns as well."""
    student, target = dense(4, 3, 4, 4)
    rows = torch.tensor([True, False, False, True])
    value = cost(student, target, rows=rows)
    assert value.item() == pytest.approx(cost(student[rows], target[rows]).item(), rel=1e-9)
    value.backward()
    assert torch.equal(student.grad.flatten(1).abs().sum(1) > 0, rows)


@every_consistency_cost
def test_a_mask_that_fits_neither_rows_nor_places_is_refused(cost: Cost) -> None:
    for mask in (torch.ones(2), torch.ones(5), torch.ones(4, 5), torch.ones(4, 1, 6)):
        with pytest.raises(
            InputError,
            match=r"cannot select among rows of the shape \[4, 5, 6\]. Give one value per row, \[4\], or per place",
        ):
            cost(*dense(4, 3, 5, 6), rows=mask.bool())


@every_cost_of_two
def test_two_logits_of_different_shapes_are_refused(cost: Cost) -> None:
    (student, _), (target, _) = dense(4, 3, 5), dense(4, 3, 1)
    with pytest.raises(InputError, match=r"one shape can be compared; got \[4, 3, 5\] and \[4, 3, 1\]"):
        of_second_axis(cost)(student, target)


@pytest.mark.parametrize(
    "cost",
    [*TWO_ARGUMENTS.values(), lambda one, _, class_axis: entropy(one, class_axis=class_axis)],
    ids=[*TWO_ARGUMENTS, "entropy"],
)
@pytest.mark.parametrize("shape", [(4, 1), (4,), (4, 1, 5)])
def test_a_single_logit_is_refused_because_its_softmax_never_changes(cost: Cost, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="at least two classes"):
        of_second_axis(cost)(torch.zeros(shape), torch.zeros(shape))


@pytest.mark.parametrize("share", [None, 0.25])
def test_classification_of_places_is_that_of_as_many_rows(share: float | None) -> None:
    logits, _ = dense(3, 4, 5, 6)
    labels = torch.randint(-1, 4, (3, 5, 6), generator=torch.Generator().manual_seed(1))
    expected = classification_cost(as_rows(logits), labels.flatten(), share)
    assert classification_cost(logits, labels, share).item() == pytest.approx(expected.item(), rel=1e-12)
    last = classification_cost(logits.movedim(1, -1), labels, share, class_axis=-1)
    assert last.item() == pytest.approx(expected.item(), rel=1e-12)


def test_labels_that_do_not_fit_the_logits_are_refused() -> None:
    for logits, labels in [((4, 3), (3,)), ((4, 3), (4, 1)), ((4, 7, 3), (4, 7)), ((4, 3, 5, 6), (4, 6, 5))]:
        with pytest.raises(InputError, match=r"do not fit labels .*class_axis=-1"):
            classification_cost(torch.zeros(logits), torch.zeros(labels, dtype=torch.int64))
    with pytest.raises(InputError, match="at least two classes"):
        classification_cost(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))


def test_as_many_classes_as_places_need_the_axis_of_the_classes() -> None:
    logits, labels = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 2, 3]] * 2)
    with pytest.raises(InputError, match=r"ambiguous.*class_axis=1 or class_axis=-1"):
        classification_cost(logits, labels)
    with pytest.raises(InputError, match="ambiguous"):
        classification_cost(torch.zeros(2, 4, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64))
    first, last = (classification_cost(logits, labels, class_axis=axis).item() for axis in (1, -1))
    assert first == pytest.approx(classification_cost(as_rows(logits), labels.flatten()).item())
    assert last == pytest.approx(classification_cost(logits.flatten(0, 1), labels.flatten()).item())
    assert abs(first - last) > 0.01
    classification_cost(torch.zeros(2, 4, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64))  # only one way


def test_whole_numbers_of_any_type_are_labels_and_255_can_mean_none() -> None:
    logits, _ = pair()
    labels = torch.tensor([2, UNLABELLED, 0, UNLABELLED, UNLABELLED, 3])
    expected = classification_cost(logits, labels).item()
    for dtype in (torch.int8, torch.int16, torch.int32):
        assert classification_cost(logits, labels.to(dtype)).item() == expected
    void = labels.masked_fill(labels == UNLABELLED, 255)
    assert classification_cost(logits, void.to(torch.uint8), ignore_index=255).item() == expected
    void[1] = UNLABELLED  # both mean none
    assert classification_cost(logits, void, ignore_index=255).item() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_labels_that_cannot_say_which_class_or_none_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=r"whole numbers|no value for a missing label"):
        classification_cost(torch.zeros(3, 2), torch.ones(3, dtype=dtype))
    with pytest.raises(InputError, match="one-hot"):
        classification_cost(torch.zeros(3, 2), torch.eye(3)[:, :2])


def test_dense_targets_are_aligned_over_all_places() -> None:
    logits, _ = dense(3, 4, 5, 6)
    torch.testing.assert_close(as_rows(aligned(logits, 0.7)), aligned(as_rows(logits), 0.7))


# --- costs that stay alive ----------------------------------------------------------------------------------

EVERY: dict[str, Cost] = {
    **CONSISTENCY,
    "logit-distance": logit_distance,
    "confident": partial(confident_cross_entropy, threshold=0.0),
    "entropy": lambda one, _, **options: entropy(one, **options),
    "classification": lambda one, other, **options: classification_cost(one, other.argmax(1), **options),
    "dice": lambda one, other, **options: dice_cost(one, other.argmax(1), **options),
}
every_cost = pytest.mark.parametrize("cost", EVERY.values(), ids=EVERY)
with_rows = pytest.mark.parametrize(
    "name", [name for name in EVERY if name not in ("logit-distance", "classification", "dice")]
)


@every_cost
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_costs_of_half_precision_are_those_of_the_same_numbers_in_float32(cost: Cost, dtype: torch.dtype) -> None:
    half = [x.detach().to(dtype).requires_grad_() for x in pair(8, 1000)]
    full = [x.detach().float().requires_grad_() for x in half]
    value = cost(*half)
    assert value.dtype == torch.float32
    assert value.item() == cost(*full).item()
    value.backward()
    cost(*full).backward()
    assert half[0].grad is not None
    assert full[0].grad is not None
    assert torch.equal(half[0].grad, full[0].grad.to(dtype))


def test_scaled_gradients_of_a_thousand_classes_in_float16_are_alive() -> None:
    """With the first scale of torch's gradient scaler, which float16 needs: without it they round to zero there."""
    half, target = (x.detach().half().requires_grad_() for x in pair(64, 1000, scale=1.0))
    exact = half.detach().double().requires_grad_()
    for logits in (half, exact):
        (2.0**16 * softmax_mse(logits, target.detach())).backward()
    assert half.grad is not None
    assert exact.grad is not None
    assert (half.grad == 0).double().mean() < 0.01
    assert (half.grad.double() - exact.grad).norm() < 0.01 * exact.grad.norm()


@with_rows
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("side", [0, 1, None], ids=["student", "target", "both"])
def test_a_row_that_does_not_count_may_have_any_values(name: str, bad: float, side: int | None) -> None:
    cost, rows = EVERY[name], torch.tensor([True, False, True, True, False, True])
    clean = pair()
    spoilt = [x.detach().clone() for x in clean]
    for k, x in enumerate(spoilt):
        if side in (k, None):
            x[~rows] = bad
        x.requires_grad_()
    cost(*clean, rows=rows).backward()
    value = cost(*spoilt, rows=rows)
    value.backward()
    assert value.item() == cost(*clean, rows=rows).item()
    for one, other in zip(spoilt, clean, strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)


@every_cost
def test_an_empty_batch_costs_nothing(cost: Cost) -> None:
    empty = torch.zeros(0, 4, requires_grad=True)
    value = cost(empty, torch.zeros(0, 4))
    value.backward()
    assert value.item() == 0
    assert classification_cost(empty, torch.zeros(0, dtype=torch.int64), 0.1).item() == 0


@with_rows
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_soft_mask_gives_the_weighted_mean_whatever_its_sum(name: str, dtype: torch.dtype, scale: float) -> None:
    student, target = pair()
    weights = torch.tensor([0.5, 0, 0.25, 0.125, 0, 0.125]).to(dtype) * scale
    one_by_one = [EVERY[name](s, t).item() for s, t in zip(student.split(1), target.split(1), strict=True)]
    expected = float(np.average(one_by_one, weights=weights.double().numpy()))
    assert EVERY[name](student, target, rows=weights).item() == pytest.approx(expected, rel=1e-6)
    assert EVERY[name](student, target, rows=0 * weights).item() == 0


@with_rows
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_indices_in_place_of_a_mask_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=r"mask of bool.*rows.bool\(\), for indices a mask"):
        EVERY[name](*pair(), rows=torch.tensor([3, 1, 0, 5, 2, 4]).to(dtype))
    with pytest.raises(InputError, match=r"mask\[indices\] = True"):
        EVERY[name](*pair(), rows=torch.tensor([3, 1]).to(dtype))
    with pytest.raises(InputError, match="for indices of rows"):
        EVERY[name](*pair(), rows=torch.tensor([True, False]))


ONE_BY_ONE = {name: cost for name, cost in EVERY.items() if not isinstance(cost, CTau)}


@pytest.mark.parametrize("cost", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_every_cost_takes_the_classes_on_any_axis(cost: Cost) -> None:
    first, second = dense(3, 4, 5, 6)
    expected = cost(first, second).item()
    if cost in (ONE_BY_ONE["classification"], ONE_BY_ONE["dice"]):
        labels = second.argmax(1)
        function = classification_cost if cost is ONE_BY_ONE["classification"] else dice_cost
        assert function(first.movedim(1, -1), labels, class_axis=-1).item() == pytest.approx(expected, rel=1e-12)
        return
    last = cost(first.movedim(1, -1), second.movedim(1, -1), class_axis=-1)
    assert last.item() == pytest.approx(expected, rel=1e-12)
    tokens, others = first[..., 0], second[..., 0]
    with pytest.raises(
        InputError, match=r"\[3, 4, 5\] with three axes are ambiguous. Give class_axis=1 .* or class_axis=-1"
    ):
        cost(tokens, others)
    named = cost(tokens, others, class_axis=1).item()
    assert cost(tokens.movedim(1, -1), others.movedim(1, -1), class_axis=-1).item() == pytest.approx(named, rel=1e-12)


@pytest.mark.parametrize("cost", [Mse(), Kl(), CTau(0.5), Confident(threshold=0.0)], ids=repr)
def test_costs_of_methods_take_the_classes_on_the_second_axis(cost: Cost) -> None:
    first, second = dense(3, 4, 5)
    assert cost(first, second).item() == pytest.approx(cost(as_rows(first), as_rows(second)).item(), rel=1e-9)


@every_cost
def test_probabilities_in_place_of_logits_are_refused(cost: Cost) -> None:
    student, target = pair(8)
    log_p = [x.log_softmax(1) for x in (student, target)]
    assert cost(*log_p).item() == pytest.approx(cost(*log_p).item())  # the log of probabilities are logits
    with pytest.raises(InputError, match="Give the output before the softmax"):
        cost(student.softmax(1), target)


@pytest.mark.parametrize("cost", TWO_ARGUMENTS.values(), ids=TWO_ARGUMENTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_target_of_probabilities_is_noticed_within_a_few_steps(cost: Cost, dtype: torch.dtype) -> None:
    student, target = pair(8)
    guesses = target.detach().softmax(1).to(dtype)

    def a_run() -> None:
        for _ in range(17):
            cost(student, guesses)

    with pytest.raises(InputError, match="are probabilities"):
        a_run()
    for _ in range(17):
        cost(student, 2 * guesses)
        cost(student[:2], guesses[:2])  # too few rows to tell
        cost(student.detach(), target.detach())


def test_whole_numbers_are_no_logits() -> None:
    with pytest.raises(InputError, match="Are these the labels"):
        softmax_mse(torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.int64))


@pytest.mark.parametrize("hidden", [255, -100])
def test_a_label_outside_the_classes_asks_for_an_ignore_index(hidden: int) -> None:
    logits, _ = pair()
    labels = torch.tensor([2, hidden, 0, hidden, hidden, 3])
    with pytest.raises(InputError, match=r"have the classes 0 to 3.*ignore_index"):
        classification_cost(logits, labels)
    shown = labels.masked_fill(labels == hidden, UNLABELLED)
    for cost in (classification_cost, dice_cost):
        assert cost(logits, labels, ignore_index=hidden).item() == cost(logits, shown).item()


def test_class_weights_are_the_weights_of_the_rows_in_the_mean() -> None:
    logits, _ = pair()
    labels = torch.tensor([2, UNLABELLED, 0, UNLABELLED, 2, 3])
    weights = torch.tensor([1.0, 5.0, 0.5, 3.0])
    (q,) = probabilities(logits)
    costs, shares = [-np.log(q[i, y]) for i, y in ((0, 2), (2, 0), (4, 2), (5, 3))], [0.5, 1, 0.5, 3]
    found = classification_cost(logits, labels, class_weights=weights)
    assert found.item() == pytest.approx(float(np.average(costs, weights=shares)), rel=1e-6)
    equal = classification_cost(logits, labels, class_weights=torch.full((4,), 7.0))
    assert equal.item() == pytest.approx(classification_cost(logits, labels).item(), rel=1e-6)
    none = classification_cost(logits, torch.full((6,), UNLABELLED), class_weights=weights)
    assert none.item() == 0
    expected = float(np.dot(costs, shares)) / (0.5 * 6)
    assert classification_cost(logits, labels, 0.5, class_weights=weights).item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match=r"class_weights \[3\] do not fit .* 4 classes"):
        classification_cost(logits, labels, class_weights=torch.ones(3))


def test_dice_is_one_minus_twice_the_overlap_over_the_sizes() -> None:
    logits, _ = dense(2, 3, 4, 5)
    labels = torch.randint(-1, 2, (2, 4, 5), generator=torch.Generator().manual_seed(0))  # class 2 does not occur
    p, y = softmax(logits.detach().numpy(), axis=1), labels.numpy()
    expected = []
    for k in (0, 1):
        of_class = p[:, k][y >= 0]
        truth = y[y >= 0] == k
        expected.append(1 - 2 * of_class[truth].sum() / (of_class.sum() + truth.sum()))
    assert dice_cost(logits, labels).item() == pytest.approx(np.mean(expected), rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: dice_cost(x, labels), [logits])


def test_dice_weighs_small_objects_like_large_ones_and_ignores_hidden_places() -> None:
    labels = torch.zeros(1, 8, 8, dtype=torch.int64)
    labels[0, 0, 0] = 1
    missed = torch.stack([torch.full((1, 8, 8), 20.0), torch.zeros(1, 8, 8)], 1)
    assert dice_cost(missed, labels).item() > 0.5 > 10 * classification_cost(missed, labels).item() / 8
    hidden = torch.full((1, 8, 8), UNLABELLED)
    spoilt = missed.clone().requires_grad_()
    with torch.no_grad():
        spoilt[:, :, 1:] = float("nan")
    partly = labels.clone()
    partly[:, 1:] = UNLABELLED
    dice_cost(spoilt, partly).backward()
    assert spoilt.grad is not None
    assert spoilt.grad.isfinite().all()
    none = missed.clone().requires_grad_()
    value = dice_cost(none, hidden)
    value.backward()
    assert value.item() == 0
    assert not none.grad.any()
