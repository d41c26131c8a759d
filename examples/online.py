"""Learn from a stream that drifts: Mean Teacher, supervised-only and a frozen model on two moons that turn.

Every step brings 20 new points, and one in 40 has a label. In the first 40 % of the stream nothing changes. Then the
moons turn by 180 degrees, and one class grows from a half to 80 % of the points. In the last 20 % nothing changes.
Every batch is predicted before it is trained on. Run it: python examples/online.py [FOLDER]
"""

import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

import meanteacher as mt
from meanteacher.methods import MeanTeacher, Supervised
from meanteacher.models import MlpSpec
from meanteacher.schedules import Constant, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Noise

ROWS, LABELLED = 20, 1 / 40
DRIFT = (0.4, 0.8)
"""The part of the stream in which it drifts."""
COLOURS = {"Mean Teacher": "#0072b2", "supervised-only": "#6b7280", "frozen": "#d55e00"}


def arriving(time: float, draws: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Points, true classes and shown labels at a time from 0 (the start of the stream) to 1 (its end)."""
    drifted = min(1.0, max(0.0, (time - DRIFT[0]) / (DRIFT[1] - DRIFT[0])))
    truth = (torch.rand(ROWS, generator=draws) < 0.5 + 0.3 * drifted).long()
    along = math.pi * torch.rand(ROWS, generator=draws)
    upper = torch.stack([along.cos() - 0.5, along.sin() - 0.25], 1)
    points = torch.where(truth[:, None] == 1, upper, -upper) + 0.1 * torch.randn(ROWS, 2, generator=draws)
    turn = torch.tensor(math.pi * drifted)
    rotation = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
    shown = torch.where(torch.rand(ROWS, generator=draws) < LABELLED, truth, mt.UNLABELLED)
    return points @ rotation.T, truth, shown


def trainer(name: str, seed: int, **changes: float) -> mt.OnlineTrainer:
    """The settings of either method were the best of twelve, by the error of the whole stream, on seeds 100 to 102."""
    chosen = {"rate": 0.02, "kept": 32, "decay": 0.5 if name == "supervised-only" else 0.8, "weight": 8.0} | changes
    decay = Constant(chosen["decay"])
    method: mt.Method = Supervised(decay=decay, buffers="copy")
    if name != "supervised-only":
        weight = SigmoidRampUp(value=chosen["weight"], steps=100)
        method = MeanTeacher(decay=decay, buffers="own", weight=weight)
    return mt.OnlineTrainer(
        MlpSpec(hidden=(64, 64)),
        method,
        AdamSpec(learning_rate=Constant(chosen["rate"]), beta1=Constant(0.9), beta2=Constant(0.99)),
        n_classes=2,
        input_shape=(2,),
        views={role: Noise(0.2) for role in ("student", "teacher")},
        replay=mt.Replay(size=int(chosen["kept"]), rows=8),
        seed=seed,
        device="cpu",
    )


def follow(name: str, seed: int, steps: int, **changes: float) -> list[tuple[int, int, int]]:
    """For every step the wrong predictions, those of points of class 0, and how many points of class 0 there were."""
    model = trainer(name, seed, **changes)
    draws = torch.Generator().manual_seed(seed)
    found = []
    for step in range(steps):
        points, truth, shown = arriving(step / steps, draws)
        wrong, rare = model.predict(points) != truth, truth == 0
        found.append((int(wrong.sum()), int((wrong & rare).sum()), int(rare.sum())))
        if name != "frozen" or step < DRIFT[0] * steps:
            model.step(points, shown)
    return found


def parts(found: list[tuple[int, int, int]]) -> dict[str, float]:
    """The error in the whole stream and in each of its parts, and at last that of the class that became rare."""
    begin, end = (round(share * len(found)) for share in DRIFT)
    errors = {}
    for part, steps in {"all": found, "before": found[:begin], "drift": found[begin:end], "after": found[end:]}.items():
        errors[part] = sum(wrong for wrong, _, _ in steps) / (ROWS * len(steps))
    _, wrong_rare, n_rare = (sum(counts) for counts in zip(*found[end:], strict=True))
    return {**errors, "rare class after": wrong_rare / n_rare}


def draw(found: dict[str, list[list[tuple[int, int, int]]]], path: Path) -> None:
    """The cumulative error of every model over the stream: the mean over the seeds, and their range."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "online", "font.size": 9}):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for name, runs in found.items():
            counts = torch.tensor(runs, dtype=torch.float64)[:, :, 0]
            seen = ROWS * torch.arange(1, counts.shape[1] + 1)
            errors = 100 * counts.cumsum(1) / seen
            seen, errors = seen[3::4], errors[:, 3::4]
            axes.fill_between(seen, errors.amin(0), errors.amax(0), color=COLOURS[name], alpha=0.15, linewidth=0)
            axes.plot(seen, errors.mean(0), color=COLOURS[name], label=name, linewidth=1.5)
        begin, end = (share * float(seen[-1]) for share in DRIFT)
        axes.axvspan(begin, end, color="0.92", zorder=0)
        axes.text((begin + end) / 2, 3.3, "the moons turn", ha="center", color="0.4")
        axes.set(xlabel="examples seen", ylabel="cumulative error, %", xlim=(0, float(seen[-1])))
        axes.set_yscale("log")
        axes.set(ylim=(3, 70), yticks=[5, 10, 20, 50], yticklabels=["5", "10", "20", "50"])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper center")
        figure.savefig(path, metadata={"Date": None})


def main(folder: Path, seeds: tuple[int, ...] = (0, 1, 2, 3, 4), steps: int = 800) -> dict[str, dict[str, list[float]]]:
    """Run all models, write online.svg and online.json, and return model -> part of the stream -> error per seed."""
    found = {name: [follow(name, seed, steps) for seed in seeds] for name in COLOURS}
    by_run = {name: [parts(run) for run in runs] for name, runs in found.items()}
    errors = {name: {part: [run[part] for run in runs] for part in runs[0]} for name, runs in by_run.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "online.json").write_text(json.dumps({"seeds": seeds, "steps": steps, "errors": errors}, indent=1) + "\n")
    draw(found, folder / "online.svg")
    return errors


if __name__ == "__main__":
    for model, by_part in main(Path(sys.argv[1] if len(sys.argv) > 1 else "online")).items():
        cells = [f"{part} {100 * fmean(e):.1f} ± {100 * stdev(e):.1f} %" for part, e in by_part.items()]
        print(f"{model:16} {'   '.join(cells)}")
