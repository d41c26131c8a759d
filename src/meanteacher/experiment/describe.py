"""A recipe as plain JSON: for its fingerprint, its record, and the differences between two."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from meanteacher.core import ADDED_LATER, LOCATION
from meanteacher.experiment.recipe import Recipe

_NOT_COMPUTED = {"claim", "deviations", "evaluate_costs", "scale", "seeds"}
"""Statements about a run, which do not change it."""


_RECORDED_AS = {
    "meanteacher.experiment.recipe": {
        "DataSpec": "meanteacher.recipes.recipe.DataSpec",
        "Recipe": "meanteacher.recipes.recipe.Recipe",
    },
    "meanteacher.data.toy": {"Digits": "meanteacher.data.digits.Digits", "Moons": "meanteacher.data.moons.Moons"},
    "meanteacher.views.basic": {
        "Chain": "meanteacher.views.chain.Chain",
        "Flip": "meanteacher.views.flip.Flip",
        "Translate": "meanteacher.views.translate.Translate",
        "Noise": "meanteacher.views.noise.Noise",
    },
    "meanteacher.views.geometry": {
        "Rotate": "meanteacher.views.rotate.Rotate",
        "Crop": "meanteacher.views.crop.Crop",
        "Cutout": "meanteacher.views.cutout.Cutout",
    },
    "meanteacher.views.strong": {
        "Jitter": "meanteacher.views.jitter.Jitter",
        "RandAugment": "meanteacher.views.randaugment.RandAugment",
    },
    "meanteacher.views.normalise": {"Zca": "meanteacher.views.zca.Zca"},
    "meanteacher.models.conv13": {"Conv13Spec": "meanteacher.models.conv13.Conv13"},
    "meanteacher.models.external": {"ExternalSpec": "meanteacher.models.external.External"},
    "meanteacher.models.fast": {
        "FastNetSpec": "meanteacher.models.fast.FastNet",
        "MirroredSpec": "meanteacher.models.mirrored.Mirrored",
    },
    "meanteacher.models.mlp": {
        "MlpSpec": "meanteacher.models.mlp.Mlp",
        "PointGeneratorSpec": "meanteacher.models.generator.PointGenerator",
        "ImageGeneratorSpec": "meanteacher.models.generator.ImageGenerator",
    },
    "meanteacher.models.residual": {
        "ResNeXt152Spec": "meanteacher.models.resnext152.ResNeXt152",
        "Shake26Spec": "meanteacher.models.shake26.Shake26",
        "WideResNetSpec": "meanteacher.models.wrn.WideResNet",
    },
    "meanteacher.methods.pi_model": {
        "PseudoEnsemble": "meanteacher.methods.pseudo_ensemble.PseudoEnsemble",
        "GammaModel": "meanteacher.methods.gamma_model.GammaModel",
    },
    "meanteacher.methods.vat": {
        "VatEntMin": "meanteacher.methods.vat_entmin.VatEntMin",
        "MeanTeacherVat": "meanteacher.methods.mean_teacher_vat.MeanTeacherVat",
    },
    "meanteacher.methods.pseudo_label": {
        "FixMatch": "meanteacher.methods.fixmatch.FixMatch",
        "FreeMatch": "meanteacher.methods.freematch.FreeMatch",
    },
    "meanteacher.photos.fitting.stands": {"OwnPhotos": "meanteacher.fit.plan.OwnPhotos"},
    "meanteacher.photos.fitting.warm_start": {"Continued": "meanteacher.fit.continued.Continued"},
    "meanteacher.train.optim": {
        "AdamSpec": "meanteacher.train.optim.Adam",
        "SgdSpec": "meanteacher.train.optim.Sgd",
        "MuonSpec": "meanteacher.train.muon.Muon",
    },
}
"""module -> class -> its name in records. A class that moves or is renamed keeps it: otherwise the recipes of finished
runs would get another fingerprint."""


_RECORDED_VALUES: dict[str, dict[object, object]] = {"teacher_dropout": {None: True, 0.0: False}}
"""field -> value -> what records have instead. The teacher's dropout was a switch before it was a rate."""


def describe(value: object) -> Any:
    """The value in JSON's types, each frozen object as its class and its fields.

    A field marked `ADDED_LATER` is left out while it has its default, which is what it was before it was added; a
    field marked `LOCATION` always.

    >>> from meanteacher.schedules import Constant
    >>> describe(Constant(0.5))
    {'is': 'meanteacher.schedules.Constant', 'value': 0.5}
    """
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value) if not _left_out(value, field)}
        if isinstance(value, Recipe):
            labelled_view = held.pop("labelled_view")
            # Records have it among the views: it had no field of its own before.
            held["views"] = {**value.views, **({"labelled": labelled_view} if labelled_view else {})}
        named = {name: describe(_recorded(name, item)) for name, item in held.items()}
        return {"is": _qualified(type(value)), **named}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value) and hasattr(value, "__qualname__"):
        return _qualified(value)
    raise TypeError(
        f"{value!r} cannot be part of a recipe: its {type(value).__name__} has no stable description. "
        "Make it a frozen dataclass."
    )


def fingerprint(recipe: Recipe) -> str:
    """Sixteen hex digits of everything that a run computes with."""
    return hashlib.sha256(json.dumps(computed(describe(recipe)), sort_keys=True).encode()).hexdigest()[:16]


def computed(described: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's description without the statements about the run."""
    return {key: item for key, item in described.items() if key not in _NOT_COMPUTED}


def differences(old: object, new: object, path: str = "") -> list[str]:
    """Where two descriptions differ, one readable line each.

    >>> differences({"steps": 10, "model": {"width": 1}}, {"steps": 10, "model": {"width": 2}})
    ['model.width: 1 -> 2']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        return [
            line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {json.dumps(old)} -> {json.dumps(new)}"]


def _left_out(value: object, field: "Field[Any]") -> bool:
    as_before = field.metadata == ADDED_LATER and bool(getattr(value, field.name) == field.default)
    return as_before or field.metadata == LOCATION


def _recorded(name: str, item: Any) -> Any:
    return _RECORDED_VALUES[name].get(item, item) if name in _RECORDED_VALUES else item


def _qualified(named: Any) -> str:
    module, name = named.__module__, named.__qualname__
    return _RECORDED_AS.get(module, {}).get(name, f"{module}.{name}")
