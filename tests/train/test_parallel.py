"""What divides a step: the parts of a batch, and what the ranks of a run agree on. Ranks are threads here."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from meanteacher.core import Batch, Cost, DivergedError, InputError, LostRankError, StepOutput
from meanteacher.distributed import ALONE, Ranks
from meanteacher.schedules import Constant
from meanteacher.train import SgdSpec, TrainState, start
from meanteacher.train.parallel import (
    WholeBatch,
    agreed_batch,
    averaged_statistics,
    check_costs,
    engine,
    explained,
    seed_networks,
    whole_batches,
)
from support import METHODS, PROBLEM, SmallNet, stream
from thread_ranks import in_threads

# --- a batch in parts ------------------------------------------------------------------------------------------------


class Noting(nn.Module):
    """Notes the rows and the mode of each pass; its outputs are one or two."""

    def __init__(self, *, pair: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.5, -2.0], [3.0, 1.0], [0.25, 4.0]]))
        self.pair = pair
        self.passes: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Any:
        self.passes.append((len(x), self.training))
        logits = (x @ self.weight.T).tanh()
        return (logits, 10 * logits[:, :2]) if self.pair else logits


ROWS = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0], [-2.0, 1.5], [0.1, 0.2], [-1.0, -1.0], [2.5, 0.7]])


@pytest.mark.parametrize(
    ("micro_batch", "n_rows", "forward", "backward"),
    [
        pytest.param(3, 7, [3, 3, 1], [3, 3, 1], id="parts are computed twice"),
        pytest.param(3, 3, [3], [], id="a batch that fits is computed once"),
        pytest.param(8, 7, [7], [], id="a smaller one, too"),
        pytest.param(None, 7, [7], [], id="no parts"),
    ],
)
@pytest.mark.parametrize("pair", [False, True])
def test_a_batch_in_parts_has_the_outputs_and_gradients_of_the_whole(
    micro_batch: int | None, n_rows: int, forward: list[int], backward: list[int], pair: bool
):
    network, plain = Noting(pair=pair), Noting(pair=pair)
    output, expected = WholeBatch(network, micro_batch)(ROWS[:n_rows]), plain(ROWS[:n_rows])
    assert [n for n, _ in network.passes] == forward
    torch.testing.assert_close(output, expected)
    for one in (output, expected):
        (one[0].square().sum() + one[1].sum() if pair else one.square().sum()).backward()
    torch.testing.assert_close(network.weight.grad, plain.weight.grad)
    assert sorted(n for n, _ in network.passes[len(forward) :]) == sorted(backward)


def test_a_pass_without_gradient_is_in_parts_and_keeps_nothing():
    network = Noting()
    with torch.no_grad():
        output = WholeBatch(network, 3)(ROWS)
    assert not output.requires_grad
    assert [n for n, _ in network.passes] == [3, 3, 1]
    torch.testing.assert_close(output, Noting()(ROWS).detach())


def test_outputs_in_half_precision_become_float32():
    class Half(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.bfloat16(), x.half()

    assert [output.dtype for output in WholeBatch(Half(), 2)(ROWS)] == [torch.float32] * 2


def test_a_part_is_computed_again_in_the_mode_of_its_first_pass_and_the_network_keeps_its_own():
    network = Noting().train()
    output = WholeBatch(network, 4)(ROWS)
    network.eval()
    output.sum().backward()
    assert sorted(network.passes) == [(3, True), (3, True), (4, True), (4, True)]
    assert not network.training


def test_a_part_is_computed_again_with_the_parameters_of_its_first_pass():
    """A method may replace them for a pass, as weights with noise."""
    others = [(2 * Noting().weight.detach()).requires_grad_() for _ in range(2)]
    outputs = [
        functional_call(WholeBatch(Noting(), 3), {"network.weight": others[0]}, ROWS),
        functional_call(Noting(), {"weight": others[1]}, ROWS),
    ]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(others[0].grad, others[1].grad)


def test_a_part_is_computed_again_with_one_tensor_for_two_parameters():
    """Weights that a method ties for a pass are tied in its repetition."""
    tied = [torch.tensor([[1.0, -0.5], [2.0, 0.25]], requires_grad=True) for _ in range(2)]
    layers = [nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 2, bias=False)) for _ in range(2)]
    outputs = [
        functional_call(
            WholeBatch(layers[0], 3), dict.fromkeys(("network.0.weight", "network.2.weight"), tied[0]), ROWS
        ),
        functional_call(layers[1], dict.fromkeys(("0.weight", "2.weight"), tied[1]), ROWS),
    ]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(tied[0].grad, tied[1].grad)


def test_running_statistics_count_a_part_once():
    network, plain = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    output = WholeBatch(network, 4)(ROWS)
    for part in ROWS.split(4):
        plain(part)
    output.square().sum().backward()
    assert int(network.num_batches_tracked) == 2
    torch.testing.assert_close(network.running_mean, plain.running_mean)
    torch.testing.assert_close(network.running_var, plain.running_var)


# --- the networks of a step ------------------------------------------------------------------------------------------


def _state(name: str = "mean-teacher") -> TrainState:
    optim = SgdSpec(learning_rate=Constant(0.1))
    return start(SmallNet(), METHODS[name], optim, stream(), normalise=nn.Identity(), problem=PROBLEM, seed=0)


def _wrapped(memory: nn.Module) -> list[WholeBatch]:
    return [module for module in memory.modules() if isinstance(module, WholeBatch)]


@pytest.mark.parametrize(("ranks", "micro_batch"), [(ALONE, 5), (Ranks(1, 2), None), (Ranks(1, 2), 5)])
@pytest.mark.parametrize("name", METHODS)
def test_student_and_predictor_give_whole_batches_within_the_block_alone(
    name: str, ranks: Ranks, micro_batch: int | None
):
    state, method = _state(name), METHODS[name]
    predictor, names = state.predictor(method), list(state.memory.state_dict())
    with suppress(ZeroDivisionError), whole_batches(state, method, ranks, micro_batch) as (student, memory):
        assert isinstance(student, WholeBatch)
        assert (student.network, student.micro_batch) == (state.student, micro_batch)
        assert memory is state.memory
        assert {(each.network, each.micro_batch) for each in _wrapped(memory)} <= {(predictor, micro_batch)}
        held = any(module is predictor for module in memory.modules())
        assert held == bool(_wrapped(memory))
        raise ZeroDivisionError
    assert not _wrapped(state.memory)
    assert state.predictor(method) is predictor
    assert list(state.memory.state_dict()) == names


def test_one_process_without_parts_passes_its_networks_as_they_are():
    state = _state()
    with whole_batches(state, METHODS["mean-teacher"], ALONE, None) as (student, memory):
        assert student is state.student
        assert memory is state.memory
        assert not _wrapped(memory)


def test_a_memory_that_is_itself_the_predictor_gives_whole_batches():
    class Itself:
        def predictor(self, student: nn.Module, memory: nn.Module) -> nn.Module:
            return memory

    state, method = _state(), Itself()
    with whole_batches(state, method, ALONE, 5) as (_, memory):  # type: ignore[arg-type]
        assert isinstance(memory, WholeBatch)
        assert memory.network is state.memory


def test_one_process_computes_its_cost_as_it_is():
    cost = torch.ones(())
    assert engine([], ALONE)(lambda: cost) is cost


def _draws(seed: int, step: int, ranks: Ranks) -> list[int]:
    with torch.random.fork_rng():
        seed_networks(seed, step, ranks)
        return torch.randint(1000, (3,)).tolist()


def test_networks_draw_by_seed_step_and_rank_and_as_in_earlier_versions():
    given = [(3, 7, ALONE), (4, 7, ALONE), (3, 8, ALONE), (3, 7, Ranks(0, 2)), (3, 7, Ranks(1, 2))]
    drawn = [tuple(_draws(*each)) for each in given]
    assert len(set(drawn)) == len(given)
    assert drawn == [tuple(_draws(*each)) for each in given]
    # A run is repeated by a later version: the generator of a CPU draws the same whole numbers on every machine.
    assert drawn[0] == (836, 109, 975)
    assert drawn[4] == (720, 886, 351)


# --- what ranks agree on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=["rows", "places"])
@pytest.mark.parametrize("n", [2, 3])
def test_labels_and_positions_of_a_row_are_those_of_the_rank_that_has_it(shape: tuple[int, ...], n: int):
    index = torch.tensor([40, 7, 12, 3, 55])
    labels = torch.randint(-1, 9, (5, *shape), generator=torch.Generator().manual_seed(2), dtype=torch.int32)

    def agreed(ranks: Ranks) -> Batch:
        own_labels, own_index = torch.full_like(labels, 99), torch.full_like(index, 99)
        own_labels[ranks.rows], own_index[ranks.rows] = labels[ranks.rows], index[ranks.rows]
        return agreed_batch(Batch({"student": torch.full((1,), ranks.rank)}, own_labels, own_index), ranks)

    for rank, batch in enumerate(in_threads(agreed, n)):
        assert torch.equal(batch.labels, labels)
        assert batch.labels.dtype == torch.int32
        assert torch.equal(batch.index, index)
        assert batch.views["student"].tolist() == [rank]


def test_one_process_has_its_batch_as_it_is():
    batch = stream()[0]
    assert agreed_batch(batch, ALONE) is batch


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(0.0, 0.0, True, id="inactive"),
        pytest.param(5.0, 5.004, True, id="rounding"),
        pytest.param(5.0, 5.006, False, id="more than rounding"),
        pytest.param(5.006, 5.0, False, id="more than rounding on the other"),
        pytest.param(-5.0, -5.004, True, id="rounding of a negative cost"),
        pytest.param(-5.0, -5.006, False, id="more than rounding of a negative cost"),
        pytest.param(3e-4, 3.1e-4, False, id="small costs"),
        pytest.param(2.0, -2.0, False, id="another sign"),
        pytest.param(0.0, 0.5, False, id="inactive on one of them"),
    ],
)
def test_costs_of_the_ranks_differ_by_rounding_alone(one: float, other: float, same: bool):
    def check(ranks: Ranks) -> str:
        costs = {"sure": Cost(torch.tensor(1.5)), "drawn": Cost(torch.tensor((one, other)[ranks.rank]))}
        try:
            check_costs(StepOutput(costs, torch.zeros(2, 3)), ranks)
        except InputError as error:
            return str(error)
        return ""

    said = in_threads(check, 2)
    if same:
        assert said == ["", ""]
    else:
        for rank, (own, its) in enumerate([(one, other), (other, one)]):
            assert f"The cost 'drawn' is {own:.6g} on rank {rank} and {its:.6g} on another" in said[rank]


def test_one_process_may_have_any_cost():
    check_costs(StepOutput({"lost": Cost(torch.tensor(float("nan")))}, torch.zeros(2, 3)), ALONE)


class Buffers(nn.Module):
    """Buffers that differ between the ranks: some are written in a pass, in place or by another tensor."""

    kept: Tensor
    written: Tensor
    replaced: Tensor
    count: Tensor

    def __init__(self, rank: int) -> None:
        super().__init__()
        for name in ("kept", "written", "replaced"):
            self.register_buffer(name, torch.tensor([1.0 + rank, 5.0]))
        self.register_buffer("count", torch.tensor(rank))
        self.norm = nn.BatchNorm1d(2, momentum=0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.written.mul_(10)
        self.replaced = self.replaced + 100
        self.count += 1
        return self.norm(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("part", ["student", "memory"])
def test_what_networks_write_of_their_statistics_becomes_the_mean_over_the_ranks(part: str):
    def train(ranks: Ranks) -> dict[str, Any]:
        networks = {"student": Buffers(ranks.rank), "memory": Buffers(ranks.rank)}
        optimizer = torch.optim.SGD(networks["student"].parameters(), lr=0.1)
        state = TrainState(networks["student"], networks["memory"], nn.Identity(), optimizer)
        x = torch.tensor([[2.0, 0.0], [4.0, 6.0]]) + 8.0 * ranks.rank
        with averaged_statistics(state, ranks):
            networks[part](x)
        found = {name: buffer.tolist() for name, buffer in networks[part].named_buffers()}
        other = networks["student" if part == "memory" else "memory"]
        return {**found, "other": other.written.tolist()}

    for rank, found in enumerate(in_threads(train, 2)):
        assert found["written"] == [15.0, 50.0]
        assert found["replaced"] == [101.5, 105.0]
        assert found["norm.running_mean"] == [3.5, 3.5]  # half of (3 + 11) / 2
        assert found["norm.running_var"] == [1.5, 9.5]
        assert found["kept"] == [1.0 + rank, 5.0], "nobody has written it"
        assert found["count"] == rank + 1, "a count is no statistic"
        assert found["other"] == [1.0 + rank, 5.0], "no pass"


# --- errors of a method's own code -----------------------------------------------------------------------------------


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(ValueError("shapes [2] and [7].\nand more"), "shapes [2] and [7]", id="first line"),
        pytest.param(ZeroDivisionError(), "ZeroDivisionError", id="without words"),
    ],
)
@pytest.mark.parametrize(("rank", "own"), [(0, 3), (1, 2), (2, 2)])
def test_an_error_of_a_method_says_where_it_is_and_which_rows_a_rank_has(
    error: Exception, reason: str, rank: int, own: int
):
    with pytest.raises(InputError) as raised, explained(METHODS["vat"], 7, Ranks(rank, 3)):
        _raise(error)
    line = _raise.__code__.co_firstlineno + 1
    said = f"Vat.forward failed at {Path(__file__).name}:{line} ({reason}). With 3 processes a view has {own} of the 7"
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("error", "size"),
    [
        pytest.param(ValueError("any"), 1, id="one process"),
        pytest.param(InputError("wrong"), 2, id="an input"),
        pytest.param(DivergedError("inf"), 2, id="diverged"),
        pytest.param(LostRankError("lost"), 2, id="a lost rank"),
    ],
)
def test_an_error_that_explains_itself_or_of_one_process_is_raised_as_it_is(error: Exception, size: int):
    with pytest.raises(type(error)) as raised, explained(METHODS["vat"], 7, Ranks(0, size)):
        raise error
    assert raised.value is error
