"""What must hold of a fit on a pretrained network: who may know which label, who sees what, and what ships.

The network is a small one that is made up here, and the photos are points of two kinds.
"""

import dataclasses
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from meanteacher.core import UNLABELLED, Problem
from meanteacher.data import Dataset
from meanteacher.experiment import TrainingSpec
from meanteacher.methods import MeanTeacher
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.features.extraction import Features
from meanteacher.photos.fitting.budget import Timing
from meanteacher.photos.fitting.crossval import CrossValidation, TrainedModel
from meanteacher.photos.fitting.split import EvaluationSplit, FitData
from meanteacher.photos.fitting.stands import OnBackbone
from meanteacher.photos.fitting.tail import CachedView, Tail
from meanteacher.records import Plan
from meanteacher.train import Callback
from meanteacher.views.normalise import per_channel

_N, _N_FEATURES, _SIZE, _CUT = 60, 6, 8, 1
_N_VIEWS, _N_WEAK = 4, 2
_NAMES = ("ash", "birch")
_HELD_OUT = np.array([0, 1])
"""One of each kind."""


@dataclasses.dataclass(frozen=True)
class _SmallSpec:
    """A convolution, the mean over the positions and a classifier."""

    def build(self, problem: Problem) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Sequential(nn.Conv2d(3, _N_FEATURES, 3), nn.ReLU()),
                nn.Sequential(nn.Conv2d(_N_FEATURES, _N_FEATURES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
                nn.Linear(_N_FEATURES, problem.n_classes),
            )


class _SmallBackbone(Backbone):
    def network(self) -> nn.Sequential:
        return self.spec.build(Problem(2, 1, (3, _SIZE, _SIZE)))[:-1].eval()


def _backbone() -> Backbone:
    about = dict.fromkeys(("name", "sha256", "licence", "trained_on", "title"), "small")
    return _SmallBackbone(
        **about,
        spec=_SmallSpec(),  # type: ignore[arg-type]
        size=_SIZE,
        mean=(0.5, 0.4, 0.3),
        deviation=(0.2, 0.3, 0.4),
        cuts=(_CUT, 2),
        n_features=_N_FEATURES,
    )


def _stand(labels: np.ndarray) -> OnBackbone:
    """Points of two kinds in turn, far from each other; some of them have a label."""
    points = 1 + 0.3 * np.random.default_rng(0).random((_N, _N_FEATURES))
    points[np.arange(_N), np.arange(_N) % 2] += 3
    views = np.repeat(points[:, None], _N_VIEWS, axis=1)
    data = FitData(
        photos=SimpleNamespace(class_names=_NAMES),  # type: ignore[arg-type]
        decoded=None,  # type: ignore[arg-type]
        dataset=Dataset(torch.zeros(_N, 1), torch.from_numpy(labels), _NAMES),
        usable=np.arange(_N),
        labels=labels,
        groups=np.arange(_N),
        digests=(),
    )
    plan = Plan(minutes=1, size=_SIZE, steps=20, flip=False, backbone="small", cut=2, n_views=_N_VIEWS)
    features = Features(torch.from_numpy(views).half(), _N_WEAK, 0.0)
    return OnBackbone(data=data, plan=plan, backbone=_backbone(), features=features, earlier=None)


def _labels(*, held_out: tuple[int, int]) -> np.ndarray:
    labels = np.full(_N, UNLABELLED)
    labels[2:10] = np.arange(2, 10) % 2
    labels[_HELD_OUT] = held_out
    return labels


def _begun(stand: OnBackbone, method: str) -> tuple[dict[str, Any], TrainingSpec]:
    """What a run without the held-out photos starts from, and its training."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = stand.training(method, _HELD_OUT, Path(folder) / method, continued=False)
        return load_file(Path(folder) / f"{method}-start.safetensors"), recipe


def labels_of_judging_photos_do_not_spread() -> None:
    stands = [_stand(_labels(held_out=labels)) for labels in ((0, 1), (1, 0))]
    one, other = (stand.baselines(_HELD_OUT)["label-spreading"] for stand in stands)
    assert one.argmax(1).tolist() == [0, 1], "labels do not spread to the nearest photos"
    assert np.array_equal(one, other), "label spreading knows the labels that judge it"


def no_start_knows_the_labels_that_judge_it() -> None:
    for method in ("supervised", "mean-teacher"):
        one, other = (_begun(_stand(_labels(held_out=labels)), method)[0] for labels in ((0, 1), (1, 0)))
        assert all(torch.equal(one[name], other[name]) for name in one), f"{method} starts from labels that judge it"


def unlabelled_photos_change_the_start_of_mean_teacher_alone() -> None:
    stand = _stand(_labels(held_out=(0, 1)))
    alone = dataclasses.replace(stand.data, usable=np.arange(10))  # only those with a label
    starts = {}
    for data in (stand.data, alone):
        stand.data = data
        starts[len(data.usable)] = {method: _begun(stand, method)[0] for method in ("supervised", "mean-teacher")}
    for method, changes in (("supervised", False), ("mean-teacher", True)):
        same = torch.equal(starts[_N][method]["head.weight"], starts[10][method]["head.weight"])
        assert same != changes, f"{method} learns from unlabelled photos, or not"


def student_sees_strong_views_and_teacher_weak_ones() -> None:
    stand = _stand(_labels(held_out=(0, 1)))
    number = torch.arange(_N_VIEWS).expand(50, _N_VIEWS)
    for method in ("supervised", "mean-teacher"):
        _, recipe = _begun(stand, method)
        for role, expected in (("student", {2, 3}), ("teacher", {0, 1})):
            view = recipe.views[role]
            assert isinstance(view, CachedView)
            seen = set(view(number, torch.Generator().manual_seed(0)).tolist())
            assert seen == expected, f"{method}: the {role} sees the views {seen}"


def targets_favour_no_class() -> None:
    """Each row says the first class, some more than others, as where it has most labels."""
    _, recipe = _begun(_stand(_labels(held_out=(0, 1))), "mean-teacher")
    assert isinstance(recipe.method, MeanTeacher)
    target = torch.tensor([[5.0, 0.0]] * 4 + [[0.3, 0.0]] * 4)
    student = torch.zeros(8, 2, requires_grad=True)
    recipe.method.cost(student, target).backward()
    assert student.grad is not None
    assert student.grad.argmin(1).tolist() == [0] * 4 + [1] * 4, "a class that the labels favour collects all photos"


def the_whole_network_is_the_front_and_the_trained_tail() -> None:
    stand = _stand(_labels(held_out=(0, 1)))
    stand.plan = dataclasses.replace(stand.plan, cut=_CUT)
    with tempfile.TemporaryDirectory() as folder:
        recipe = stand.training("mean-teacher", _HELD_OUT, Path(folder) / "run", continued=False)
        tail = recipe.model.build(Problem(2, _N, ()))
    assert isinstance(tail, Tail)
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.mul_(1.1).add_(0.1)
        whole, normalise, _ = stand.whole(tail, nn.Identity())
        images = torch.randint(0, 256, (5, 3, _SIZE, _SIZE), dtype=torch.uint8)
        front = stand.backbone.network()[:_CUT]
        seen = per_channel(stand.backbone.mean, stand.backbone.deviation)(images)
        torch.testing.assert_close(
            whole(normalise(images)), tail(front(seen)), msg="the shipped network is not the one that was evaluated"
        )


def the_baseline_is_the_best_that_the_labels_alone_give() -> None:
    """Of a linear classifier and a tuned network, whichever judges better; it is also what ships."""
    good, bad = (nn.Linear(2, 2, bias=False) for _ in range(2))
    with torch.no_grad():
        good.weight.copy_(torch.eye(2))
        bad.weight.copy_(-torch.eye(2))
    truth = np.array([0, 1, 0, 1])
    stand = SimpleNamespace(data=SimpleNamespace(labels=truth), inputs=lambda part: torch.eye(2)[truth[part]])

    class Trained(CrossValidation):
        def train(self, method: str, held_out: np.ndarray, name: str, *, continued: bool) -> TrainedModel:
            return TrainedModel(tuned, nn.Identity(), {}, start)

    for tuned, start, expected in ((good, bad, 0), (bad, good, 0), (bad, bad, 4)):
        validation = Trained(
            stand=stand,  # type: ignore[arg-type]
            split=EvaluationSplit("held-out", (np.arange(4),)),
            out=Path(),
            ends=0.0,
            overhead=0.0,
            callback=Callback(),
            timing=Timing(0.0),
            device="cpu",
            runs=["supervised"],
        )
        result, both = validation.evaluate("supervised", continued=False)
        assert result.wrong.sum() == expected, "the baseline is not the best that the labels alone give"
        assert (both["probe"].sum(), both["tuned"].sum()) == (4 * (start is bad), 4 * (tuned is bad))
        kept = result.kept(result.first).network
        assert kept is (good if expected == 0 else start), "another network ships than the one that was evaluated"


DETECTORS = (
    labels_of_judging_photos_do_not_spread,
    no_start_knows_the_labels_that_judge_it,
    unlabelled_photos_change_the_start_of_mean_teacher_alone,
    student_sees_strong_views_and_teacher_weak_ones,
    targets_favour_no_class,
    the_whole_network_is_the_front_and_the_trained_tail,
    the_baseline_is_the_best_that_the_labels_alone_give,
)
