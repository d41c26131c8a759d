"""Figure 1 of the paper on a toy in one dimension: how noise and averages make better targets.

Two labelled points, one unlabelled one, and a small network that could be anything elsewhere. Every panel adds one
thing; see docs/how-it-works.md. Run it: python examples/figure_1.py [FOLDER]
"""

import json
import math
import sys
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor, nn

import meanteacher as mt

LABELLED = torch.tensor([[-0.6], [0.2]])
CLASSES = torch.tensor([0, 1])
UNLABELLED = torch.tensor([[0.75]])
"""A point of class 1, like its nearest neighbour."""
GRID = torch.linspace(-1.2, 1.2, 121)[:, None]
NOISE, TARGETS, NETWORKS = 0.2, 12, 8
BLUE, GREY, DARK = "#0072b2", "#9a9a9a", "#1c1c1c"
TITLES = {
    "a": "(a) labels alone",
    "b": "(b) noise on\nlabelled points",
    "c": "(c) and consistency\nwith a target",
    "d": "(d) target: mean over\nnoise of the teacher",
    "e": "(e) target: mean\nover networks",
}


class Waves(nn.Module):
    """Random waves of x. Short ones let the network turn as often as it likes between the points."""

    frequency: Tensor
    phase: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("frequency", 14 * torch.randn(1, n))
        self.register_buffer("phase", 2 * math.pi * torch.rand(n))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.frequency + self.phase).sin()


def new_network() -> nn.Module:
    last = nn.Linear(64, 2)
    nn.init.normal_(last.weight, std=0.75)
    return nn.Sequential(Waves(64), nn.Linear(64, 64), nn.Tanh(), last)


def noisy(points: Tensor, n: int = 1) -> Tensor:
    repeated = points.repeat(n, 1)
    return repeated + NOISE * torch.randn_like(repeated)


def fit(network: nn.Module, steps: int, *, noise: bool = True, target: float | None = None) -> nn.Module:
    """Train on the labelled points, and towards a target around the unlabelled one. Returns the average network."""
    average = mt.Teacher(network, decay=0.95)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        cost = F.cross_entropy(network(noisy(LABELLED) if noise else LABELLED), CLASSES)
        if target is not None:
            cost = cost + 10 * (probability(network, noisy(UNLABELLED, TARGETS)) - target).square().mean()
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        average.update(network)
    return average.network


def probability(network: nn.Module, points: Tensor) -> Tensor:
    """Probability of class 1."""
    output: Tensor = network(points).softmax(1)[:, 1]
    return output


@torch.no_grad()
def targets(networks: list[nn.Module], points: Tensor, n: int) -> Tensor:
    """[n, points]: the mean of what they say about each point, under n draws of noise; without noise for n = 0."""
    shown = noisy(points, n) if n else points
    return torch.stack([probability(network, shown) for network in networks]).mean(0).view(max(n, 1), -1)


def teachers(seed: int, steps: int) -> tuple[nn.Module, nn.Module]:
    """A network fitted to the labelled points with noise, and the average of its weights over the last steps."""
    torch.manual_seed(seed)
    network = new_network()
    return network, fit(network, steps)


def distance(networks: list[nn.Module], n: int) -> float:
    """Mean squared distance of their targets from the truth, over all places of the line."""
    truth = (GRID.flatten() > LABELLED.mean()).float()  # the class of the nearer labelled point
    return float((targets(networks, GRID, n).mean(0) - truth).square().mean())


def compute(seed: int, steps: int, others: list[nn.Module]) -> dict[str, dict[str, Any]]:
    """The curves and targets of all panels, for one draw of weights and noise."""
    network, _ = teachers(seed, steps)
    plain = new_network()
    fit(plain, steps, noise=False)
    panels: dict[str, dict[str, Any]] = {"a": {"student": curve([plain])}, "b": {"student": curve([network])}}
    for panel, together, n in (("c", [network], 0), ("d", [network], TARGETS), ("e", [network, *others], TARGETS)):
        single = targets(together, UNLABELLED, n).flatten()
        target = float(single.mean())
        student = new_network()
        student.load_state_dict(network.state_dict())
        fit(student, steps, target=target)
        panels[panel] = {
            "teacher": curve(together),
            "student": curve([student]),
            "target": round(target, 4),
            "single targets": rounded(single) if n else [],
        }
    return panels


def curve(networks: list[nn.Module]) -> list[float]:
    return rounded(targets(networks, GRID, 0).flatten())


def rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def draw(panels: dict[str, dict[str, Any]]) -> str:
    """The picture as SVG: the same numbers always give the same text."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "figure 1", "font.size": 9}):
        figure = Figure(figsize=(9.6, 2.5), layout="constrained")
        grid = GRID.flatten().tolist()
        for axes, (name, panel) in zip(figure.subplots(1, 5, sharey=True), panels.items(), strict=True):
            if "teacher" in panel:
                axes.plot(grid, panel["teacher"], color=GREY, linewidth=1.5)
            axes.plot(grid, panel["student"], color=BLUE if "teacher" in panel else GREY, linewidth=1.5)
            axes.plot(LABELLED.flatten().tolist(), CLASSES.tolist(), "o", color=DARK, markersize=7, clip_on=False)
            if "target" in panel:
                at = float(UNLABELLED)
                singles = panel["single targets"]
                axes.plot([at] * len(singles), singles, "o", color=GREY, markersize=3, markerfacecolor="none")
                axes.plot([at], [panel["target"]], "o", color=DARK, markersize=8, markerfacecolor="none")
            axes.set(xlim=(-1.2, 1.2), ylim=(-0.08, 1.08), xticks=[], yticks=[0, 1])
            axes.set_title(TITLES[name], fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def main(folder: Path, seeds: int = 20, steps: int = 150) -> dict[str, float]:
    """Write figure-1.svg and figure-1.json, and return how far targets are from the truth, on average over the seeds.

    The draw that is shown is the one whose plain target for the unlabelled point is the worst.
    """
    pairs = [teachers(seed, steps) for seed in range(seeds)]
    groups = [[pairs[(seed + k) % seeds][0] for k in range(min(NETWORKS, seeds))] for seed in range(seeds)]
    n = 4 * TARGETS
    found_distance = {
        "c": fmean(distance([network], 0) for network, _ in pairs),
        "d": fmean(distance([network], n) for network, _ in pairs),
        "weights": fmean(distance([average], n) for _, average in pairs),
        "e": fmean(distance(group, n) for group in groups),
    }
    found_distance = {kind: round(value, 4) for kind, value in found_distance.items()}
    shown = min(range(seeds), key=lambda seed: float(targets([pairs[seed][0]], UNLABELLED, 0)))
    panels = compute(shown, steps, groups[shown][1:])
    found = {"seeds": seeds, "steps": steps, "distance": found_distance, "shown": shown, "panels": panels}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figure-1.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    (folder / "figure-1.svg").write_text(draw(panels), encoding="utf-8")
    return found_distance


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "figure-1")))
