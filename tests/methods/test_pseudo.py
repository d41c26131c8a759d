"""Pseudo-label and pseudo-ensembles."""

import torch
import torch.nn.functional as F

from meanteacher.core import UNLABELLED
from meanteacher.costs import softmax_mse
from meanteacher.passes import untracked, without_dropout
from support import METHODS, PROBLEM, SmallNet, stream


def test_pseudo_label_is_the_most_probable_class_of_unlabelled_rows():
    method = METHODS["pseudo-label"]
    student = SmallNet().eval()
    batch = stream()[0]
    output = method.forward(student, method.init(student, PROBLEM), batch, 0)
    rows = batch.labels == UNLABELLED
    by_hand = F.cross_entropy(output.logits[rows], output.logits[rows].argmax(1))
    torch.testing.assert_close(output.costs["pseudo-label"].value, 2.0 * by_hand)


def test_parent_of_a_pseudo_ensemble_has_no_dropout_and_both_are_trained():
    method = METHODS["pseudo-ensemble"]
    student = SmallNet().train()
    memory = method.init(student, PROBLEM)
    batch = stream()[0]
    torch.manual_seed(0)
    output = method.forward(student, memory, batch, 0)
    with without_dropout(student):
        parent = untracked(student, batch.views["teacher"])
    torch.testing.assert_close(output.costs["consistency"].value, 2.0 * softmax_mse(output.logits, parent))
    view = batch.views["teacher"].requires_grad_()
    cost = method.forward(student, memory, batch, 0).costs["consistency"].value
    (gradient,) = torch.autograd.grad(cost, view)
    assert bool(gradient.any()), "the parent's side is trained too"
