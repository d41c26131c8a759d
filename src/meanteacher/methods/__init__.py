"""The methods. `METHODS` maps the names of the command line to the classes."""

from meanteacher.core import Method
from meanteacher.methods.improved_gan import ImprovedGan
from meanteacher.methods.mean_teacher import MeanTeacher
from meanteacher.methods.pi_model import GammaModel, PiModel, PseudoEnsemble
from meanteacher.methods.pseudo_label import FixMatch, FreeMatch, PseudoLabel
from meanteacher.methods.supervised import Supervised
from meanteacher.methods.temporal_ensembling import TemporalEnsembling
from meanteacher.methods.vat import MeanTeacherVat, Vat, VatEntMin

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "pseudo-label": PseudoLabel,
    "pseudo-ensemble": PseudoEnsemble,
    "gamma-model": GammaModel,
    "pi-model": PiModel,
    "temporal-ensembling": TemporalEnsembling,
    "improved-gan": ImprovedGan,
    "vat": Vat,
    "vat-entmin": VatEntMin,
    "mean-teacher": MeanTeacher,
    "mean-teacher-vat": MeanTeacherVat,
    "fixmatch": FixMatch,
    "freematch": FreeMatch,
}

__all__ = [
    "METHODS",
    "FixMatch",
    "FreeMatch",
    "GammaModel",
    "ImprovedGan",
    "MeanTeacher",
    "MeanTeacherVat",
    "PiModel",
    "PseudoEnsemble",
    "PseudoLabel",
    "Supervised",
    "TemporalEnsembling",
    "Vat",
    "VatEntMin",
]
