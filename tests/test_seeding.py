import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from meanteacher.seeding import derive_seed, generator, isolated_global_randomness, seed_global, set_global

TRIPLES = st.tuples(st.integers(-3, 1_000), st.text("a1|/-", max_size=6), st.integers(0, 1_000))


def draws(seed: int, purpose: str, step: int, n: int = 64) -> torch.Tensor:
    return torch.randn(n, generator=generator(seed, purpose, step))


@settings(max_examples=50, deadline=None, database=None)
@given(TRIPLES)
def test_draws_depend_on_nothing_but_seed_purpose_and_step(triple: tuple[int, str, int]) -> None:
    first = draws(*triple)
    torch.rand(3)
    generator(*triple[:2], triple[2] + 1)
    assert torch.equal(draws(*triple), first)


@settings(max_examples=200, deadline=None, database=None)
@given(TRIPLES, TRIPLES)
@example((1, "1", 1), (11, "", 1))
@example((1, "1|1", 1), (1, "1", 11))
def test_different_triples_never_share_a_seed(one: tuple[int, str, int], other: tuple[int, str, int]) -> None:
    # Nor may the digits of one argument be taken for those of the next.
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)


def test_seeds_stay_what_they_were_when_results_were_recorded() -> None:
    assert derive_seed(0, "order", 1) == 3_550_055_310_620_727_384
    assert 0 <= derive_seed(0, "order", 1) < 2**63


@pytest.mark.parametrize("other", [(1, "noise", 5), (0, "order", 5), (0, "noise", 6)], ids=["seed", "purpose", "step"])
def test_each_argument_alone_gives_other_and_uncorrelated_draws(other: tuple[int, str, int]) -> None:
    pair = torch.stack([draws(0, "noise", 5, 10_000), draws(*other, 10_000)])
    assert torch.corrcoef(pair)[0, 1].abs() < 0.04


def test_the_first_draws_of_successive_steps_are_uniform_and_unrelated() -> None:
    first = torch.stack([torch.rand(1, generator=generator(7, "view", step)) for step in range(4_000)]).flatten()
    assert first.histc(10, 0, 1).sub(400).abs().max() < 80
    assert torch.corrcoef(torch.stack([first[1:], first[:-1]]))[0, 1].abs() < 0.06


def test_two_generators_of_one_triple_do_not_disturb_each_other() -> None:
    one, other = generator(0, "noise", 1), generator(0, "noise", 1)
    torch.rand(100, generator=one)
    assert torch.equal(torch.rand(5, generator=other), torch.rand(5, generator=generator(0, "noise", 1)))


def test_a_generator_leaves_the_global_one_alone() -> None:
    before = torch.get_rng_state()
    draws(0, "noise", 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_isolation_leaves_the_callers_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with isolated_global_randomness():
        seed_global(3, "network noise", 9)
        torch.rand(100)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_isolation_holds_when_the_work_inside_fails() -> None:
    def fail() -> None:
        seed_global(3, "network noise", 9)
        raise RuntimeError("out of memory")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of memory"), isolated_global_randomness():
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_becomes_a_function_of_the_triple() -> None:
    def mask(step: int) -> torch.Tensor:
        seed_global(3, "network noise", step)
        return nn.functional.dropout(torch.ones(200))

    with isolated_global_randomness():
        first, second = mask(1), mask(2)
        assert torch.equal(mask(1), first)
        assert not torch.equal(first, second)


def test_the_global_generator_is_seeded_as_torch_does_it() -> None:
    with isolated_global_randomness():
        set_global(5)
        drawn = torch.rand(9)
        torch.manual_seed(5)
        assert torch.equal(drawn, torch.rand(9))


@pytest.mark.parametrize("available", [True, False])
def test_other_devices_are_seeded_where_there_are_some(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    with isolated_global_randomness():
        set_global(5)
    assert seeds == ([5] if available else [])
