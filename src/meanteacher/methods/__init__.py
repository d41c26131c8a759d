"""The methods, one small file each. The names are the command line's; nothing needs to be registered."""

from meanteacher.core import Method
from meanteacher.methods.mean_teacher import MeanTeacher
from meanteacher.methods.pi_model import PiModel
from meanteacher.methods.supervised import Supervised

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "pi-model": PiModel,
    "mean-teacher": MeanTeacher,
}

__all__ = ["METHODS", "MeanTeacher", "PiModel", "Supervised"]
