"""The Gamma model: a noisy student, a clean teacher, and a denoiser between them."""

import torch
from torch import nn

from meanteacher.costs import softmax_mse
from meanteacher.methods.pi_model import Denoiser
from meanteacher.passes import untracked, without_dropout
from meanteacher.teacher import Memory
from support import METHODS, PROBLEM, SmallNet, stream

METHOD = METHODS["gamma-model"]


def test_teacher_is_clean():
    """Whatever units the student drops, the target is the same: that of the network without dropout."""
    student = SmallNet().train()
    memory = METHOD.init(student, PROBLEM)
    assert isinstance(memory, Memory)
    batch = stream()[0]
    with torch.no_grad(), without_dropout(student):
        clean = untracked(student, batch.views["teacher"])
    for seed in range(3):
        torch.manual_seed(seed)
        output = METHOD.forward(student, memory, batch, 0)
        expected = 2.0 * softmax_mse(memory.own(output.logits), clean)
        torch.testing.assert_close(output.costs["consistency"].value, expected)


def test_student_is_noisy():
    student = SmallNet().train()
    memory = METHOD.init(student, PROBLEM)
    first, second = (METHOD.forward(student, memory, stream()[0], 0).logits for _ in range(2))
    assert not torch.equal(first, second)


def test_dropout_is_back_on_after_the_clean_pass():
    student = SmallNet().train()
    METHOD.forward(student, METHOD.init(student, PROBLEM), stream()[0], 0)
    assert all(module.training for module in student.modules())


def test_denoiser_starts_as_the_identity_and_is_trained_with_the_student():
    noisy = torch.randn(50, 3)
    torch.testing.assert_close(Denoiser(3)(noisy), noisy)
    student = SmallNet()
    memory = METHOD.init(student, PROBLEM)
    assert isinstance(memory, Memory)
    METHOD.forward(student, memory, stream()[0], 0).costs["consistency"].value.backward()
    assert memory.own.gain.grad is not None
    assert bool(memory.own.gain.grad.any())


def test_denoiser_is_that_of_the_paper():
    """ẑ = (z̃ - μ(u)) ν(u) + μ(u), with μ and ν of the form a₁ sigmoid(a₂ u + a₃) + a₄ u + a₅ (Rasmus et al. 2015)."""
    draws = torch.Generator().manual_seed(0)
    noisy = 2 * torch.randn(40, 3, generator=draws) + 1
    denoise = Denoiser(3)
    for parameter in denoise.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draws)
    u = (noisy - noisy.mean(0)) / (noisy.var(0, correction=0) + 1e-5).sqrt()
    mean, gain = (a * torch.sigmoid(b * u + c) + d * u + e for a, b, c, d, e in (denoise.mean, denoise.gain))
    torch.testing.assert_close(denoise(noisy), (noisy - mean) * gain + mean)


def test_denoiser_learns_to_undo_a_known_distortion():
    torch.manual_seed(0)
    clean = torch.randn(500, 3)
    noisy = 0.5 * clean + 1.0
    denoise = Denoiser(3)
    optimizer = torch.optim.Adam(denoise.parameters(), lr=0.05)
    for _ in range(300):
        loss = nn.functional.mse_loss(denoise(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01
