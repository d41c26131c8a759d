"""The names that records give to classes."""

import pytest

from meanteacher import models, train
from meanteacher.experiment.describe import describe
from meanteacher.schedules import Constant

RATE = Constant(0.1)
RECORDED = {
    "models.conv13.Conv13": models.Conv13Spec(),
    "models.external.External": models.ExternalSpec(library="timm", name="resnet18"),
    "models.fast.FastNet": models.FastNetSpec(),
    "models.generator.ImageGenerator": models.ImageGeneratorSpec(),
    "models.generator.PointGenerator": models.PointGeneratorSpec(),
    "models.mirrored.Mirrored": models.MirroredSpec(models.MlpSpec()),
    "models.mlp.Mlp": models.MlpSpec(),
    "models.resnext152.ResNeXt152": models.ResNeXt152Spec(),
    "models.shake26.Shake26": models.Shake26Spec(),
    "models.wrn.WideResNet": models.WideResNetSpec(),
    "train.muon.Muon": train.MuonSpec(learning_rate=RATE, sgd_learning_rate=RATE),
    "train.optim.Adam": train.AdamSpec(learning_rate=RATE, beta1=RATE, beta2=RATE),
    "train.optim.Sgd": train.SgdSpec(learning_rate=RATE),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_renamed_class_keeps_its_name_in_records(name: str):
    assert describe(RECORDED[name])["is"] == f"meanteacher.{name}"


def test_these_are_all_networks_and_optimisers():
    specs = {name for home in (models, train) for name in home.__all__ if name.endswith("Spec")}
    assert {type(spec).__name__ for spec in RECORDED.values()} == specs - {"ModelSpec", "OptimSpec"}
