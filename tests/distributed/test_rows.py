"""A batch is divided: every row belongs to one process, and is what one process would have made of it."""

from dataclasses import dataclass

import pytest
import torch

from meanteacher.data import EncodedDataset, Fixed, ImageStream, make_split
from meanteacher.data.dataset import BrokenImages
from meanteacher.distributed import Ranks
from meanteacher.views import Chain, Flip, Noise, PerImage, Rotate
from shard_support import InMemory, picture
from support import BATCHES, N_CLASSES, made_up


def encoded(*broken: int) -> EncodedDataset:
    files = InMemory([b"no image" if k in broken else picture(k) for k in range(30)])
    some, labels = BrokenImages(most=len(broken)), torch.arange(30) % N_CLASSES
    return EncodedDataset(files, labels, ("a", "b", "c"), resize=10, size=8, threads=1, broken=some)


def stream_of(data, batch, ranks: Ranks, *, labelled_view=None) -> ImageStream:
    split = make_split(data.labels, n_classes=N_CLASSES, n_labelled=9, seed=0)
    view = Chain((Flip(), Rotate(), Noise(0.3)))
    return ImageStream(
        data,
        batch.sampler(split, 0),
        views={"student": view, "teacher": view},
        labelled_view=labelled_view,
        normalise=PerImage().fit(data.images[:4]),
        seed=0,
        rows=slice(None) if ranks.size == 1 else ranks.rows,
    )


@pytest.mark.parametrize("batch", [*BATCHES.values(), Fixed(size=7, labelled=2, unlabelled_pool="all")])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("labelled_view", [None, Noise(0.1)])
def test_the_rows_of_the_ranks_are_those_of_one_process(batch, n: int, labelled_view):
    data = made_up(60, seed=0)
    whole = stream_of(data, batch, Ranks(), labelled_view=labelled_view)[5]
    positions = torch.arange(len(whole.index))
    seen: list[int] = []
    for rank in range(n):
        ranks = Ranks(rank, n)
        part = stream_of(data, batch, ranks, labelled_view=labelled_view)[5]
        assert torch.equal(part.labels, whole.labels)
        assert torch.equal(part.index, whole.index)
        for role, view in whole.views.items():
            assert torch.equal(part.views[role], view[ranks.rows])
        seen += positions[ranks.rows].tolist()
    assert sorted(seen) == positions.tolist()  # disjoint, and all


@dataclass(frozen=True)
class Counting:
    """Noise that notes how many rows it is given."""

    seen: list[int]
    by_rows: bool

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.seen.append(len(images))
        return Noise(0.1)(images, generator)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("by_rows", [True, False])
def test_a_rank_augments_its_own_rows_only_with_a_view_that_can(n: int, by_rows: bool):
    seen: list[int] = []
    batch = Fixed(size=16, labelled=5, unlabelled_pool="all")
    stream = stream_of(made_up(60, seed=0), batch, Ranks(n - 1, n))
    stream.views = dict.fromkeys(("student", "teacher"), Counting(seen, by_rows))
    whole = stream_of(made_up(60, seed=0), batch, Ranks())
    whole.views = dict.fromkeys(("student", "teacher"), Noise(0.1))
    assert torch.equal(stream[3].views["student"], whole[3].views["student"][n - 1 :: n])
    assert seen == [16 // n if by_rows else 16] * 2


def test_a_rank_decodes_its_own_images_only():
    batch = Fixed(size=7, labelled=2, unlabelled_pool="unlabelled")
    whole = stream_of(encoded(), batch, Ranks())[0]
    for rank in range(2):
        data, ranks = encoded(), Ranks(rank, 2)
        stream = stream_of(data, batch, ranks)
        data.files.read_positions.clear()
        _, crops = stream._begin(data, 0)()
        assert sorted(data.files.read_positions) == sorted(set(whole.index[ranks.rows].tolist()))
        assert all(len(rows) == len(whole.index[ranks.rows]) for rows in crops.values())
        for role, view in whole.views.items():
            assert torch.equal(stream[0].views[role], view[ranks.rows])
