"""What all sources have in common."""

from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.dataset import Source
from meanteacher.data.imagenet import ImageNet
from meanteacher.data.svhn import Svhn
from meanteacher.data.toy import Digits


def test_a_source_is_a_value_that_can_stand_in_a_recipe() -> None:
    sources: list[Source] = [Digits(), Cifar10(), Svhn(extra=100), ImageNet(size=56, resize=64)]
    assert sources == [Digits(), Cifar10(), Svhn(extra=100), ImageNet(size=56, resize=64)]
    assert [repr(source) for source in sources[:3]] == ["Digits()", "Cifar10()", "Svhn(extra=100)"]
    assert len({*sources, Svhn(extra=100), Svhn()}) == 5
