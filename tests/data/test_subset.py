"""A subset of a source is the same for every run, and a smaller one is a part of a larger one."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from meanteacher.core import InputError
from meanteacher.data import Dataset, Subset, TrainTest
from meanteacher.data.download import Progress
from meanteacher.experiment.describe import describe
from support import MadeUp


class Numbered:
    """Images that hold their own number, and a label that follows from it."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        return TrainTest(*(_numbered(first, n) for first, n in ((0, 200), (1000, 100))))


def _numbered(first: int, n: int) -> Dataset:
    numbers = torch.arange(first, first + n)
    return Dataset(numbers.float().reshape(-1, 1, 1, 1), numbers % 3, ("a", "b", "c"))


def _numbers(dataset: Dataset) -> list[int]:
    return dataset.images.flatten().int().tolist()


def _load(tmp_path: Path, train: float, test: float = 1.0) -> TrainTest:
    return Subset(Numbered(), train=train, test=test).load(tmp_path)


def test_share_of_the_images_is_kept_and_each_keeps_its_label(tmp_path: Path):
    data = _load(tmp_path, 0.25, 0.1)
    assert (len(data.train), len(data.test)) == (50, 10)
    for part in (data.train, data.test):
        numbers = torch.tensor(_numbers(part))
        assert len(set(numbers.tolist())) == len(part)
        assert torch.equal(part.labels, numbers % 3)
        assert part.class_names == ("a", "b", "c")
    assert min(_numbers(data.test)) >= 1000


def test_images_are_drawn_not_taken_from_the_start_and_keep_their_order(tmp_path: Path):
    numbers = _numbers(_load(tmp_path, 0.25).train)
    assert numbers == sorted(numbers)
    assert numbers != list(range(50))


def test_every_load_draws_the_same_images(tmp_path: Path):
    assert _numbers(_load(tmp_path, 0.3, 0.3).train) == _numbers(_load(tmp_path, 0.3, 0.3).train)
    assert _load(tmp_path, 0.3).train.fingerprint() == _load(tmp_path, 0.3).train.fingerprint()


def test_smaller_share_is_a_part_of_a_larger_one(tmp_path: Path):
    parts = [set(_numbers(_load(tmp_path, share).train)) for share in (0.1, 0.2, 0.55, 1.0)]
    for smaller, larger in pairwise(parts):
        assert smaller < larger


def test_whole_share_is_the_source_itself_and_the_smallest_has_one_image(tmp_path: Path):
    assert _numbers(_load(tmp_path, 1.0).train) == list(range(200))
    assert len(_load(tmp_path, 1e-6).train) == 1


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, float("nan")])
@pytest.mark.parametrize("part", ["train", "test"])
def test_share_outside_of_zero_to_one_is_refused(part: str, share: float):
    with pytest.raises(InputError, match=part):
        Subset(Numbered(), **{"train": 0.5, part: share})


def test_images_that_are_not_in_memory_have_no_subset(tmp_path: Path):
    class Encoded:
        def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
            return TrainTest(object(), object())  # type: ignore[arg-type]

    with pytest.raises(InputError, match="in memory"):
        Subset(Encoded(), train=0.5).load(tmp_path)


def test_subset_is_described_with_its_source_and_shares():
    described = describe(Subset(MadeUp(n_train=40), train=0.5))
    assert described["train"] == 0.5
    assert described["source"]["n_train"] == 40
