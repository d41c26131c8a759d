import pytest
import torch
from torch import Tensor

from meanteacher.views import Cutout


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Positive, so that a zero was written."""
    return (1 + torch.rand(shape, generator=seeded(9))).to(dtype)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("shape", [(12, 12), (9, 14)])
def test_exactly_the_square_is_zero_and_all_else_is_kept(size: int, shape: tuple[int, int]) -> None:
    images = photographs(200, 3, *shape)
    cut = Cutout(size)(images, seeded())
    hidden = cut == 0
    assert torch.equal(cut[~hidden], images[~hidden])
    assert torch.equal(hidden, hidden[:, :1].expand_as(hidden))
    rows, columns = hidden[:, 0].any(2), hidden[:, 0].any(1)
    # A square is the product of its rows and columns, each without a gap.
    assert torch.equal(hidden[:, 0], rows[:, :, None] & columns[:, None, :])
    for covered in (rows, columns):
        n_covered = covered.sum(1)
        first, last = covered.int().argmax(1), covered.shape[1] - 1 - covered.flip(1).int().argmax(1)
        assert torch.equal(last - first + 1, n_covered)
        at_border = (first == 0) | (last == covered.shape[1] - 1)
        assert (n_covered[~at_border] == size).all()
        assert (n_covered <= size).all()
        assert (n_covered >= (size + 1) // 2).all()


@pytest.mark.parametrize("size", [1, 4, 5])
def test_the_middle_of_the_square_is_uniform_over_the_pixels(size: int) -> None:
    cut = Cutout(size)(torch.ones(20_000, 1, 6, 10), seeded())
    # An image wide enough has the middle where the square starts, plus half its size.
    for covered, length in [((cut == 0).any(3)[:, 0], 6), ((cut == 0).any(2)[:, 0], 10)]:
        before, middle = size // 2, torch.arange(length)
        chance = torch.tensor([((k >= middle - before) & (k < middle - before + size)).sum() / length for k in middle])
        torch.testing.assert_close(covered.float().mean(0), chance, atol=0.02, rtol=0)


def test_rows_and_columns_are_drawn_independently() -> None:
    cut = Cutout(1)(torch.ones(10_000, 1, 5, 5), seeded())
    assert (cut == 0).flatten(1).sum(1).eq(1).all()
    torch.testing.assert_close((cut == 0).float().mean(0)[0], torch.full((5, 5), 0.04), atol=0.01, rtol=0)


def test_a_square_may_extend_past_the_border() -> None:
    n_hidden = (Cutout(4)(torch.ones(500, 1, 8, 8), seeded()) == 0).flatten(1).sum(1)
    assert n_hidden.min() == 4
    assert n_hidden.max() == 16


def test_a_square_of_twice_the_image_hides_all_of_it() -> None:
    assert not Cutout(16)(torch.ones(50, 3, 8, 8), seeded()).any()


def test_values_that_are_not_finite_are_hidden_too() -> None:
    assert not Cutout(16)(torch.full((2, 1, 8, 8), torch.nan), seeded()).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.uint8])
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 3, 5, 9), (6, 3, 9, 5), (6, 1, 1, 1)])
def test_shape_and_dtype_are_kept(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    cut = Cutout(3)(photographs(*shape, dtype=dtype), seeded())
    assert cut.shape == shape
    assert cut.dtype == dtype
    assert (cut == 0).flatten(1).any(1).all()
