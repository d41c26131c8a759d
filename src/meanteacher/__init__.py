"""Mean Teacher (Tarvainen & Valpola 2017): learning from few labels and many unlabelled images.

The data flow is the architecture, and the order of the sub-packages:

    data ──> split ──> stream ──> views ──> student / teacher ──> costs ──> step ──> evaluation ──> record ──> report
    images   who is    batch of   what each   the networks        named,    optimiser,  error of     one JSON   tables,
    + labels labelled  step t     role sees                       weighted  then EMA    both models  per run    pages

The names below are the public ones of the core; each is imported on first use, so that the command line's
help does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meanteacher.core import UNLABELLED as UNLABELLED
    from meanteacher.core import Batch as Batch
    from meanteacher.core import DivergedError as DivergedError
    from meanteacher.core import InputError as InputError
    from meanteacher.core import Method as Method
    from meanteacher.core import Problem as Problem
    from meanteacher.core import StepOutput as StepOutput
    from meanteacher.experiment import Recipe as Recipe
    from meanteacher.experiment import run as run
    from meanteacher.methods import MeanTeacher as MeanTeacher
    from meanteacher.methods import PiModel as PiModel
    from meanteacher.methods import Supervised as Supervised
    from meanteacher.teacher import Teacher as Teacher

_HOME = {
    "UNLABELLED": "core",
    "Batch": "core",
    "DivergedError": "core",
    "InputError": "core",
    "MeanTeacher": "methods",
    "Method": "core",
    "PiModel": "methods",
    "Problem": "core",
    "Recipe": "experiment",
    "StepOutput": "core",
    "Supervised": "methods",
    "Teacher": "teacher",
    "run": "experiment",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'meanteacher' has no attribute {name!r}")
    return getattr(import_module(f"meanteacher.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
