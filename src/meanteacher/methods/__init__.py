"""The methods, one small file each. The names are the command line's; nothing needs to be registered."""

from meanteacher.core import Method
from meanteacher.methods.fixmatch import FixMatch
from meanteacher.methods.freematch import FreeMatch
from meanteacher.methods.gamma_model import GammaModel
from meanteacher.methods.improved_gan import ImprovedGan
from meanteacher.methods.mean_teacher import MeanTeacher
from meanteacher.methods.mean_teacher_vat import MeanTeacherVat
from meanteacher.methods.pi_model import PiModel
from meanteacher.methods.pseudo_ensemble import PseudoEnsemble
from meanteacher.methods.pseudo_label import PseudoLabel
from meanteacher.methods.supervised import Supervised
from meanteacher.methods.temporal_ensembling import TemporalEnsembling
from meanteacher.methods.vat import Vat
from meanteacher.methods.vat_entmin import VatEntMin

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
