"""Mean Teacher (Tarvainen & Valpola 2017): learn from few labels and many unlabelled images.

    import meanteacher as mt

    model = mt.fit("photos/", minutes=10)                    # a folder of photos to a classifier
    model = mt.load("fit/")                                  # the classifier that a fit left
    model.predict("more_photos/")
    mt.MeanTeacherClassifier().fit(X, y).predict(X)          # scikit-learn's contract; y == -1 is unlabelled
    record = mt.run("fast/svhn-500", seed=0)                 # a recipe, by name or as a value
    mt.sweep("moons/vat", {"steps": [100, 300]}, seeds=5)    # every combination, with paired differences
    mt.table("1", laptop=True)                               # a table of the paper, here its laptop version
    mt.pack("photos/", "shards/")                            # photos to tar shards
    teacher = mt.Teacher(student, decay=0.999)               # in your own loop, for any nn.Module
    teacher.update(student)                                  # after every step of the optimiser
    watch = mt.Watch(student, teacher)                       # whether every cost and the teacher are alive
    student = mt.LogitsOf(model, "logits")                   # a module that returns more than its logits
    trainer = mt.OnlineTrainer(student, method, optim, …)    # trainer.step(images, labels) as they arrive

`mt.methods`, `mt.costs`, `mt.schedules`, `mt.models` and `mt.views` hold what recipes are made of. Every name is
imported on first use, so that the command line's help does not wait for torch. Torch and numpy are enough for these,
for `mt.Teacher` and `mt.LogitsOf`; a name that needs an extra says which (docs/install.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meanteacher import costs as costs
    from meanteacher import methods as methods
    from meanteacher import models as models
    from meanteacher import schedules as schedules
    from meanteacher import views as views
    from meanteacher.api import run as run
    from meanteacher.core import UNLABELLED as UNLABELLED
    from meanteacher.core import Batch as Batch
    from meanteacher.core import Cost as Cost
    from meanteacher.core import DivergedError as DivergedError
    from meanteacher.core import InputError as InputError
    from meanteacher.core import Interrupted as Interrupted
    from meanteacher.core import Method as Method
    from meanteacher.core import Problem as Problem
    from meanteacher.core import StepOutput as StepOutput
    from meanteacher.estimator import MeanTeacherClassifier as MeanTeacherClassifier
    from meanteacher.estimator import SemiSupervisedClassifier as SemiSupervisedClassifier
    from meanteacher.experiment import Recipe as Recipe
    from meanteacher.experiment import TrainingSpec as TrainingSpec
    from meanteacher.methods import MeanTeacher as MeanTeacher
    from meanteacher.online import Examples as Examples
    from meanteacher.online import OnlineTrainer as OnlineTrainer
    from meanteacher.online import Replay as Replay
    from meanteacher.paper.reproduce import figure as figure
    from meanteacher.paper.reproduce import table as table
    from meanteacher.passes import LogitsOf as LogitsOf
    from meanteacher.photos.fitting.fit import fit as fit
    from meanteacher.photos.folder.packing import pack as pack
    from meanteacher.photos.model.bundle import Classifier as Classifier
    from meanteacher.photos.model.bundle import load as load
    from meanteacher.sweeps import sweep as sweep
    from meanteacher.teacher import Teacher as Teacher
    from meanteacher.train import Callback as Callback
    from meanteacher.train import EarlyStop as EarlyStop
    from meanteacher.train import RunOptions as RunOptions
    from meanteacher.train import ScalarLogger as ScalarLogger
    from meanteacher.train import StopWhen as StopWhen
    from meanteacher.train import TensorBoardLogger as TensorBoardLogger
    from meanteacher.train import WandbLogger as WandbLogger
    from meanteacher.train import Watch as Watch
    from meanteacher.train import audit as audit

_HOME = {
    "UNLABELLED": "core",
    "Batch": "core",
    "Callback": "train",
    "Classifier": "photos.model.bundle",
    "Cost": "core",
    "DivergedError": "core",
    "EarlyStop": "train",
    "Examples": "online",
    "InputError": "core",
    "Interrupted": "core",
    "LogitsOf": "passes",
    "MeanTeacher": "methods",
    "MeanTeacherClassifier": "estimator",
    "Method": "core",
    "OnlineTrainer": "online",
    "Problem": "core",
    "Recipe": "experiment",
    "Replay": "online",
    "RunOptions": "train",
    "ScalarLogger": "train",
    "SemiSupervisedClassifier": "estimator",
    "StepOutput": "core",
    "StopWhen": "train",
    "Teacher": "teacher",
    "TensorBoardLogger": "train",
    "TrainingSpec": "experiment",
    "WandbLogger": "train",
    "Watch": "train",
    "audit": "train",
    "figure": "paper.reproduce",
    "fit": "photos.fitting.fit",
    "load": "photos.model.bundle",
    "pack": "photos.folder.packing",
    "run": "api",
    "sweep": "sweeps",
    "table": "paper.reproduce",
}
_MODULES = ["costs", "methods", "models", "schedules", "views"]
_EXTRAS = {"estimator": "sklearn", "paper": "report", "photos": "photos"}
"""Package -> the extra that it needs, if it is not `train`."""
__all__ = list(_HOME) + _MODULES  # noqa: PLE0605 - both are lists of strings


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"meanteacher.{name}")
    if name in _HOME:
        try:
            return getattr(import_module(f"meanteacher.{_HOME[name]}"), name)
        except ModuleNotFoundError as error:
            from meanteacher.core import MissingExtraError

            if error.name is None or error.name.startswith("meanteacher"):
                raise
            extra = _EXTRAS.get(_HOME[name].partition(".")[0], "train")
            raise MissingExtraError(f"mt.{name}", error.name.partition(".")[0], extra=extra) from error
    raise AttributeError(f"module 'meanteacher' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
