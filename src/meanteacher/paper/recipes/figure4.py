"""The settings of figure 4: variations of one hyperparameter of Mean Teacher on SVHN with 250 labels (Sec. 3.4).

One list serves the paper's recipes, their laptop versions, and the layout of the figure. A number in the name of a
setting is the authors', as on the axis of the figure.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from meanteacher.core import Schedule
from meanteacher.costs import CTau
from meanteacher.experiment.recipe import Recipe
from meanteacher.methods import MeanTeacher
from meanteacher.models import Conv13Spec, LaptopNetSpec
from meanteacher.schedules import Constant
from meanteacher.views import Chain, Noise, Translate

TITLES = {
    "4a": "input augmentation, input noise and dropout",
    "4b": "dropout of the student and of the teacher",
    "4c": "weight of the consistency cost, relative to that of table 1",
    "4d": "decay of the teacher's average",
    "4e": "weight of the distance between two outputs, as the authors count it",
    "4f": "from squared error (tau = 0) to KL divergence (tau = 1)",
}
_WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The hyperparameters that figure 4 varies."""

    noise: bool
    """Whether the input has noise."""
    dropout: float
    decay: float | None
    """None for the paper's change from 0.99 to 0.999 after the ramp-up."""
    augmented: bool = True
    teacher_dropout: float | None = None
    """None for the student's rate."""
    weight: float = 1.0
    """Weight of the consistency cost, relative to the evaluation setting."""
    ramp_up: bool = True
    distance: float | None = None
    """Weight of the distance between two outputs, as the authors count it; None for one output."""
    tau: float = 0.0

    def of(
        self, base: Recipe, name: str, *, ramped: Callable[[float], Schedule], distance: float, **changes: Any
    ) -> Recipe:
        """The recipe with this setting.

        Args:
            base: a recipe of Mean Teacher with this decay, or with the evaluation setting's.
            name: Name of the new recipe.
            ramped: makes the schedule of the consistency weight, from a weight relative to the evaluation setting.
            distance: the authors' distance weight of 1, in our normalisation.
            **changes: Further fields of the new recipe.
        """
        method, model = base.training.method, base.training.model
        assert isinstance(method, MeanTeacher)
        assert isinstance(model, Conv13Spec | LaptopNetSpec)
        weight, last = ramped(self.weight), base.training.steps
        view = Chain((*(Translate(2),) * self.augmented, *(Noise(0.15),) * self.noise))
        return base.varied(
            name=name,
            method=replace(
                method,
                decay=method.decay if self.decay is None else Constant(self.decay),
                weight=weight if self.ramp_up else Constant(weight(last)),
                cost=CTau(self.tau) if self.tau else method.cost,
                teacher_dropout=self.teacher_dropout,
                logit_distance=None if self.distance is None else distance * self.distance,
            ),
            model=replace(model, dropout=self.dropout, outputs=1 if self.distance is None else 2),
            views={"student": view, "teacher": view},
            **changes,
        )


class Point(NamedTuple):
    """A setting as one part of the figure shows it."""

    part: str
    """One of `TITLES`."""
    panel: str
    """Title of the line."""
    label: str
    """On the axis."""
    name: str
    """Name of the recipe. A setting that several parts show has one."""
    setting: Setting


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All settings of one version of the figure."""

    evaluation: Setting
    """The setting of table 1, which every part shows."""
    rates: tuple[float, ...]
    """Rates of the dropout."""
    decays: tuple[float | None, ...]
    distances: tuple[float, ...]
    taus: tuple[float, ...]

    def points(self) -> list[Point]:
        names = {self.evaluation: "figure4/evaluation"}
        return [
            point._replace(name=names.setdefault(point.setting, f"figure{point.part}/{point.name}"))
            for point in map(Point._make, self._varied())
        ]

    def runs(self) -> list[Point]:
        """The points without repetitions."""
        return list({point.name: point for point in reversed(self.points())}.values())[::-1]

    def _varied(self) -> Iterator[tuple[str, str, str, str, Setting]]:
        ours = self.evaluation
        for augmented, noise, dropout in product((True, False), repeat=3):
            panel = "with augmentation" if augmented else "without augmentation"
            added = ["input noise"] * noise + ["dropout"] * dropout
            name = "-".join(["augmentation" if augmented else "no-augmentation", *added]).replace("input ", "")
            setting = replace(ours, augmented=augmented, noise=noise, dropout=ours.dropout * dropout)
            yield "4a", panel, ", ".join(added) or "neither", name, setting
        for student, teacher in product(self.rates, repeat=2):
            name = f"student-{student:g}-teacher-{teacher:g}"
            elsewhere = student == teacher and student in (0.0, ours.dropout)  # in figure 4a, with the student's rate
            setting = replace(ours, dropout=student, teacher_dropout=None if elsewhere else teacher)
            yield "4b", f"student {student:g}", f"teacher {teacher:g}", name, setting
        for weight in _WEIGHTS:
            yield "4c", "weight", f"{weight:g}", f"weight-{weight:g}", replace(ours, weight=weight)
        for decay in self.decays:
            label = "0.99, then 0.999" if decay is None else f"{decay:g}"
            yield "4d", "decay", label, f"decay-{label}", replace(ours, decay=decay)
        for ramp_up, distance in product((True, False), (*self.distances, None)):
            panel = "with ramp-up" if ramp_up else "without ramp-up"
            label = "one output" if distance is None else f"{distance:g}"
            name = ("one-output" if distance is None else f"distance-{distance:g}") + "-no-ramp-up" * (not ramp_up)
            yield "4e", panel, label, name, replace(ours, ramp_up=ramp_up, distance=distance)
        for tau in self.taus:
            yield "4f", "tau", f"{tau:g}", f"tau-{tau:g}", replace(ours, tau=tau)


PAPER = Grid(
    evaluation=Setting(noise=True, dropout=0.5, decay=None),
    rates=(0.0, 0.25, 0.5, 0.75),
    decays=(0.0, 0.9, 0.97, 0.99, 0.997, 0.999, 0.9997, 0.9999, None),
    distances=(0.0, 0.001, 0.01, 0.1, 1.0),
    taus=(0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0),
)
LAPTOP = Grid(
    evaluation=Setting(noise=False, dropout=0.25, decay=0.995),
    rates=(0.0, 0.25, 0.5),
    decays=(0.0, 0.9, 0.97, 0.99, 0.995, 0.998, 0.999, 0.9997),
    distances=(0.0, 0.01, 0.03),  # from 0.1 on a run diverges: the rate of the last layers is too high
    taus=(0.0, 0.01, 0.1, 0.5, 0.9, 1.0),
)
