import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meanteacher.core import InputError
from meanteacher.data.split import BatchSpec, Fixed, Mixed, Sampler, ShuffledPool, Split


def split_of(n_labelled: int, n_unlabelled: int, n_validation: int = 0) -> Split:
    """Parts that are interleaved, so that a position says nothing about its part."""
    n = n_labelled + n_unlabelled + n_validation
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    parts = order.split([n_labelled, n_unlabelled, n_validation])
    return Split(*(part.sort().values for part in parts))


SPLIT = split_of(12, 48, 20)
SPECS = {
    "mixed": Mixed(size=7),
    "fixed-all": Fixed(size=7, labelled=2, unlabelled_pool="all"),
    "fixed-unlabelled": Fixed(size=7, labelled=2, unlabelled_pool="unlabelled"),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def drawn(sampler: Sampler, steps: int) -> tuple[Tensor, Tensor]:
    """Positions and visibility, [steps, B] each."""
    index, shown = zip(*(sampler.draw(step) for step in range(steps)), strict=True)
    return torch.stack(index), torch.stack(shown)


def members(part: Tensor) -> set[int]:
    return set(part.flatten().tolist())


def assert_in_passes(sequence: Tensor, pool: Tensor) -> None:
    """Every member once before any comes again."""
    passes = sequence.flatten().split(len(pool))
    for whole in passes[:-1]:
        assert whole.sort().values.tolist() == pool.sort().values.tolist()
    assert len(members(passes[-1])) == len(passes[-1])
    assert members(passes[-1]) <= members(pool)


# --- pools ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 1_000))
def test_each_pass_of_a_pool_uses_every_member_once_before_any_repeats(size: int, take: int, seed: int) -> None:
    members_of_pool = torch.arange(size) * 3 + 5
    pool = ShuffledPool(members_of_pool, seed, "order")
    assert_in_passes(torch.cat([pool.take(step * take, take) for step in range(8)]), members_of_pool)


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=6))
def test_a_piece_of_a_pools_sequence_is_the_same_however_it_is_asked_for(
    size: int, requests: list[tuple[int, int]]
) -> None:
    whole = ShuffledPool(torch.arange(size), 0, "order").take(0, 90)
    pool = ShuffledPool(torch.arange(size), 0, "order")
    for start, count in requests:
        assert torch.equal(pool.take(start, count), whole[start : start + count])


def test_passes_come_in_different_orders_and_differ_with_the_seed() -> None:
    sequence = ShuffledPool(torch.arange(20), 0, "order").take(0, 100).view(5, 20)
    other = ShuffledPool(torch.arange(20), 1, "order").take(0, 100).view(5, 20)
    assert len({tuple(row) for row in torch.cat([sequence, other]).tolist()}) == 10


# --- samplers -------------------------------------------------------------------------------------------


@every_spec
def test_a_batch_is_a_pure_function_of_seed_and_step(spec: BatchSpec) -> None:
    ascending = drawn(spec.sampler(SPLIT, seed=4), 40)
    sampler = spec.sampler(SPLIT, seed=4)
    for step in [39, 0, 17, 17, 3, 38, 1]:
        index, shown = sampler.draw(step)
        assert torch.equal(index, ascending[0][step])
        assert torch.equal(shown, ascending[1][step])


@every_spec
def test_another_seed_draws_another_order(spec: BatchSpec) -> None:
    orders = {tuple(drawn(spec.sampler(SPLIT, seed), 3)[0].flatten().tolist()) for seed in range(10)}
    assert len(orders) == 10


@every_spec
def test_validation_rows_are_never_drawn(spec: BatchSpec) -> None:
    index, _ = drawn(spec.sampler(SPLIT, seed=0), 60)
    assert members(index) == members(SPLIT.labelled) | members(SPLIT.unlabelled)


@every_spec
def test_only_rows_of_the_labelled_part_ever_show_a_label(spec: BatchSpec) -> None:
    index, shown = drawn(spec.sampler(SPLIT, seed=0), 60)
    assert members(index[shown]) == members(SPLIT.labelled)


def test_mixed_batches_treat_labelled_and_unlabelled_rows_alike() -> None:
    sampler = Mixed(size=10).sampler(SPLIT, seed=0)
    index, shown = drawn(sampler, 60)
    assert_in_passes(index, torch.cat([SPLIT.labelled, SPLIT.unlabelled]))
    assert torch.equal(shown, torch.isin(index, SPLIT.labelled))


def test_the_labelled_count_of_mixed_batches_varies_and_averages_the_declared_share() -> None:
    sampler = Mixed(size=10).sampler(SPLIT, seed=0)
    counts = drawn(sampler, 60)[1].sum(1)
    assert len(counts.unique()) > 2
    # 60 batches of 10 are ten whole passes over the 60 rows, 12 of them labelled.
    assert counts.sum() == 120
    assert sampler.labelled_share == pytest.approx(0.2)
    assert not sampler.exact


@pytest.mark.parametrize("pool", ["all", "unlabelled"])
@pytest.mark.parametrize("labelled", [1, 3, 10])
def test_the_labelled_count_of_fixed_batches_is_exact(labelled: int, pool: str) -> None:
    sampler = Fixed(size=10, labelled=labelled, unlabelled_pool=pool).sampler(SPLIT, seed=0)
    index, shown = drawn(sampler, 50)
    assert index.shape == (50, 10)
    assert shown.sum(1).unique().tolist() == [labelled]
    assert sampler.labelled_share == pytest.approx(labelled / 10)
    assert sampler.exact


@pytest.mark.parametrize("pool", ["all", "unlabelled"])
def test_fixed_batches_use_up_either_pool_before_they_shuffle_it_again(pool: str) -> None:
    index, shown = drawn(Fixed(size=10, labelled=3, unlabelled_pool=pool).sampler(SPLIT, seed=0), 50)
    everyone = torch.cat([SPLIT.labelled, SPLIT.unlabelled])
    assert_in_passes(index[shown], SPLIT.labelled)
    assert_in_passes(index[~shown], everyone if pool == "all" else SPLIT.unlabelled)


def test_the_pool_of_all_shows_labelled_images_without_their_label_too() -> None:
    index, shown = drawn(Fixed(size=10, labelled=3, unlabelled_pool="all").sampler(SPLIT, seed=0), 50)
    assert members(index[~shown]) == members(SPLIT.labelled) | members(SPLIT.unlabelled)


def test_the_pool_of_the_unlabelled_keeps_labelled_images_out() -> None:
    index, shown = drawn(Fixed(size=10, labelled=3, unlabelled_pool="unlabelled").sampler(SPLIT, seed=0), 50)
    assert members(index[~shown]) == members(SPLIT.unlabelled)


def test_the_two_pools_of_fixed_batches_are_shuffled_independently() -> None:
    split = split_of(30, 30)
    sampler = Fixed(size=60, labelled=30, unlabelled_pool="unlabelled").sampler(split, seed=0)
    labelled, unlabelled = sampler.draw(0)[0].split(30)
    ranks = torch.stack(
        [torch.searchsorted(split.labelled, labelled), torch.searchsorted(split.unlabelled, unlabelled)]
    )
    assert not torch.equal(ranks[0], ranks[1])
    assert torch.corrcoef(ranks.double())[0, 1].abs() < 0.6


@pytest.mark.parametrize("pool", ["all", "unlabelled"])
def test_a_pool_smaller_than_its_share_is_used_several_times_in_a_batch(pool: str) -> None:
    split = split_of(2, 3)
    index, shown = drawn(Fixed(size=16, labelled=5, unlabelled_pool=pool).sampler(split, seed=0), 20)
    assert_in_passes(index[shown], split.labelled)
    assert_in_passes(index[~shown], torch.arange(5) if pool == "all" else split.unlabelled)
    assert shown.sum(1).unique().tolist() == [5]


def test_a_mixed_batch_may_be_larger_than_the_training_set() -> None:
    index, _ = drawn(Mixed(size=13).sampler(split_of(2, 3), seed=0), 20)
    assert_in_passes(index, torch.arange(5))


def test_all_data_labelled_and_no_unlabelled_pool_fills_the_batch_with_labelled_rows() -> None:
    split = split_of(12, 0, 4)
    sampler = Fixed(size=10, labelled=3, unlabelled_pool="unlabelled").sampler(split, seed=0)
    index, shown = drawn(sampler, 12)
    assert shown.all()
    assert_in_passes(index, split.labelled)
    assert sampler.labelled_share == 1.0


def test_all_data_labelled_and_the_pool_of_all_keeps_rows_without_label() -> None:
    split = split_of(12, 0, 4)
    sampler = Fixed(size=10, labelled=3, unlabelled_pool="all").sampler(split, seed=0)
    index, shown = drawn(sampler, 12)
    assert shown.sum(1).unique().tolist() == [3]
    assert_in_passes(index[~shown], split.labelled)
    assert sampler.labelled_share == pytest.approx(0.3)


def test_all_data_labelled_makes_every_row_of_a_mixed_batch_labelled() -> None:
    sampler = Mixed(size=10).sampler(split_of(12, 0, 4), seed=0)
    assert drawn(sampler, 12)[1].all()
    assert sampler.labelled_share == 1.0


@pytest.mark.parametrize("pool", ["all", "unlabelled"])
def test_a_fixed_batch_of_labelled_rows_only_needs_no_other_pool(pool: str) -> None:
    index, shown = drawn(Fixed(size=4, labelled=4, unlabelled_pool=pool).sampler(SPLIT, seed=0), 6)
    assert shown.all()
    assert_in_passes(index, SPLIT.labelled)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labelled", [-1, 0, 9])
def test_a_labelled_share_that_does_not_fit_the_batch_is_refused(labelled: int) -> None:
    with pytest.raises(InputError, match=rf"labelled={labelled} .*size=8\b.* 1 to 8 "):
        Fixed(size=8, labelled=labelled, unlabelled_pool="all")


@pytest.mark.parametrize("size", [0, -3])
@pytest.mark.parametrize("kind", [Mixed, lambda size: Fixed(size=size, labelled=1, unlabelled_pool="all")])
def test_a_batch_without_rows_is_refused(kind: type[Mixed], size: int) -> None:
    with pytest.raises(InputError, match=rf"size={size}\b"):
        kind(size=size)


def test_an_unknown_pool_is_refused() -> None:
    with pytest.raises(InputError, match=r"unlabelled_pool .*all or unlabelled; got 'labelled'"):
        Fixed(size=8, labelled=1, unlabelled_pool="labelled")


@every_spec
def test_data_without_any_label_are_refused(spec: BatchSpec) -> None:
    with pytest.raises(InputError, match="No image is labelled"):
        spec.sampler(split_of(0, 10), seed=0)
