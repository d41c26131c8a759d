import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from meanteacher.data import stream as module
from meanteacher.data.dataset import Dataset
from meanteacher.data.split import Fixed, make_split
from meanteacher.data.stream import ImageStream, read_ahead
from meanteacher.views import Chain

LABELS = torch.arange(60) % 3
SPLIT = make_split(LABELS, n_classes=3, n_labelled=9, seed=0)


@pytest.fixture
def images(tmp_path: Path) -> torch.Tensor:
    file = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, (60, 3, 50, 50))
    file[:] = np.random.default_rng(0).integers(0, 256, file.shape)
    return torch.from_numpy(file)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """First and last byte of what the system is asked for."""
    ranges: list[tuple[int, int]] = []

    def advise(start: int, length: int, advice: int) -> int:
        assert advice == mmap.MADV_WILLNEED
        ranges.append((start, start + length))
        return 0

    monkeypatch.setattr(module, "_advise", lambda: advise)
    return ranges


def stream(images: torch.Tensor, *, on_disk: bool) -> ImageStream:
    data = Dataset(images, LABELS, tuple("abc"), on_disk=on_disk)
    sampler = Fixed(size=8, labelled=2, unlabelled_pool="all").sampler(SPLIT, 0)
    return ImageStream(data, sampler, views={"student": Chain()}, normalise=torch.Tensor.float, seed=0)


def test_whole_pages_are_asked_for_that_hold_the_rows_and_little_more(images: torch.Tensor, asked: list):
    read_ahead(images, torch.tensor([7, 0, 59]))
    for row, (start, end) in zip([7, 0, 59], asked, strict=True):
        assert start % mmap.PAGESIZE == 0
        assert start <= images[row].data_ptr() < start + mmap.PAGESIZE
        assert end == images[row].data_ptr() + 7500


def test_the_rows_of_the_next_batch_are_asked_for(images: torch.Tensor, asked: list):
    batches = stream(images, on_disk=True)
    batches[4]
    ends = [images[row].data_ptr() + 7500 for row in stream(images, on_disk=False)[5].index]
    assert [end for _, end in asked] == ends


def test_nothing_is_asked_for_where_the_images_are_in_memory(images: torch.Tensor, asked: list):
    stream(images, on_disk=False)[4]
    assert not asked


def test_the_system_takes_the_request_and_the_batches_stay_the_same(images: torch.Tensor):
    start = images.data_ptr() - images.data_ptr() % mmap.PAGESIZE
    assert module._advise()(start, 1000, mmap.MADV_WILLNEED) == 0
    ahead, plain = stream(images, on_disk=True), stream(images, on_disk=False)
    for step in range(20):
        assert torch.equal(ahead[step].views["student"], plain[step].views["student"])
        assert torch.equal(ahead[step].index, plain[step].index)


def test_where_images_lie_is_no_part_of_what_they_are(images: torch.Tensor):
    data = Dataset(images, LABELS, tuple("abc"))
    assert replace(data, on_disk=True).fingerprint() == data.fingerprint()


def test_a_system_that_knows_no_such_request_is_not_asked(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(mmap, "MADV_WILLNEED")
    monkeypatch.delattr(module, "_advise")
    assert stream(images, on_disk=True)[4].index.equal(stream(images, on_disk=False)[4].index)
