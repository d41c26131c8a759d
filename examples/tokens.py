"""Mean Teacher for token classification: 16 sentences with a tag for every word, and 500 without.

Sentences come from a small grammar in which most words have one tag and some have two. The network returns a dict with
logits [B, T, C], as the models of Hugging Face do. Run it: python examples/tokens.py
"""

import statistics

import torch
from torch import Tensor, nn

from meanteacher import UNLABELLED, Batch, LogitsOf, Problem
from meanteacher.methods import MeanTeacher
from meanteacher.schedules import SigmoidRampUp

N_LABELLED, N_UNLABELLED, N_TEST, LENGTH, N_TAGS, N_WORDS = 16, 500, 200, 16, 5, 300
MASKED = N_WORDS
"""The word that hides another."""


def sentences(n: int, generator: torch.Generator, grammar: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words [n, 16] and their tags: each tag is followed by mostly one other, and has words of its own."""
    follows = torch.softmax(3 * torch.randn(N_TAGS, N_TAGS, generator=grammar), 1)
    says = torch.softmax(2 * torch.randn(N_TAGS, N_WORDS, generator=grammar), 1)
    tags = torch.zeros(n, LENGTH, dtype=torch.int64)
    tags[:, 0] = torch.randint(N_TAGS, (n,), generator=generator)
    for place in range(1, LENGTH):
        tags[:, place] = torch.multinomial(follows[tags[:, place - 1]], 1, generator=generator)[:, 0]
    words = torch.multinomial(says[tags.flatten()], 1, generator=generator).view(n, LENGTH)
    return words, tags


class Tagger(nn.Module):
    """Convolutions over the words."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS + 1, width)
        self.layers = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(), nn.Dropout(0.2), nn.Conv1d(width, width, 5, padding=2)
        )
        self.head = nn.Linear(width, N_TAGS)

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        embedded = self.embedding(words)
        hidden = embedded + self.layers(embedded.transpose(1, 2)).transpose(1, 2)
        return {"logits": self.head(hidden.relu()), "hidden": hidden}


def train(seed: int, *, weight: float, steps: int) -> float:
    """Train, and return the teacher's share of wrong tags."""
    torch.manual_seed(seed)
    draws, grammar = (torch.Generator().manual_seed(seed) for _ in range(2))
    state = grammar.get_state()
    words, truth = sentences(N_LABELLED + N_UNLABELLED, draws, grammar)
    test_words, test_truth = sentences(N_TEST, draws, grammar.set_state(state))
    labels = truth.clone()
    labels[N_LABELLED:] = UNLABELLED

    student = LogitsOf(Tagger(), "logits", class_axis=-1)
    method = MeanTeacher(decay=0.98, buffers="own", weight=SigmoidRampUp(value=weight, steps=2 * steps // 3))
    problem = Problem(n_classes=N_TAGS, n_examples=len(words), input_shape=(LENGTH,), label_shape=(LENGTH,))
    memory = method.init(student, problem)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.003)

    def partly_hidden(words: Tensor, share: float) -> Tensor:
        return words.masked_fill(torch.rand(words.shape) < share, MASKED)

    for step in range(steps):
        rows = torch.cat([torch.randint(N_LABELLED, (8,)), torch.randint(len(words), (24,))])
        views = {"student": partly_hidden(words[rows], 0.25), "teacher": partly_hidden(words[rows], 0.1)}
        batch = Batch(views, labels[rows], rows)
        output = method.forward(student, memory, batch, step)
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)

    with torch.no_grad():
        guesses = method.predictor(student, memory)(test_words).argmax(1)
    return float((guesses != test_truth).float().mean())


def main(seeds: tuple[int, ...] = (0, 1, 2, 3, 4), steps: int = 300) -> dict[str, list[float]]:
    """The errors of both, seed by seed."""
    return {
        name: [train(seed, weight=weight, steps=steps) for seed in seeds]
        for name, weight in (("supervised-only", 0.0), ("Mean Teacher", 10.0))
    }


if __name__ == "__main__":
    for name, errors in main().items():
        print(f"{name:16} {' '.join(f'{e:6.1%}' for e in errors)}   mean {statistics.mean(errors):.1%}")
