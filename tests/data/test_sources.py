"""What all sources have in common."""

from dataclasses import replace
from pathlib import Path

import pytest

from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.dataset import Source
from meanteacher.data.imagenet import ImageNet
from meanteacher.data.svhn import Svhn
from meanteacher.data.toy import Digits
from meanteacher.experiment import run
from support import recipe


def test_a_source_is_a_value_that_can_stand_in_a_recipe() -> None:
    sources: list[Source] = [Digits(), Cifar10(), Svhn(extra=100), ImageNet(size=56, resize=64)]
    assert sources == [Digits(), Cifar10(), Svhn(extra=100), ImageNet(size=56, resize=64)]
    assert [repr(source) for source in sources[:3]] == ["Digits()", "Cifar10()", "Svhn(extra=100)"]
    assert len({*sources, Svhn(extra=100), Svhn()}) == 5


@pytest.mark.parametrize("official", [True, False, None])
def test_the_record_says_whether_the_files_were_the_official_ones(tmp_path: Path, official: bool | None) -> None:
    small = recipe(steps=2, evaluate_every=2)
    data = replace(small.data.source.load(tmp_path), official=official)
    record = run(small, seed=0, out=tmp_path / "run", data=data).record
    assert record is not None
    assert record.data.official is official
