"""Several processes train what one process trains; what goes wrong in one of them is known to all."""

import sys
from pathlib import Path
from typing import Any

import cases
import pytest
import torch
from cases import EQUAL
from processes import in_processes
from torch import Tensor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the processes are forked")

BREAKS = [["first_weights", []], ["devices", []], ["own_methods", []]]
"""What went wrong once with two processes, or with four."""

Found = dict[str, dict[str, Any]]


def files(folder: Path, name: str) -> dict[str, Tensor]:
    read: dict[str, Tensor] = torch.load(folder / "weights" / f"{name}.pt")
    return read


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    folder = tmp_path_factory.mktemp("alone")
    calls = [["weights", [[*EQUAL, "batch norm", "dropout"]]], ["in_parts", []], ["broken", []], ["dense", []]]
    calls += [["own_methods", []]]
    (found,) = in_processes("several", 1, str(folder), calls)
    others = {"in parts": found["in_parts"], "broken": found["broken"], "dense": found["dense"]}
    return folder, {**found["weights"], **others}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Found]]:
    """Two processes that do all that two have to show, to be started only once."""
    folder = tmp_path_factory.mktemp("pair")
    calls = [
        ["weights", [[*EQUAL, "batch norm", "dropout"]]],
        ["statistics", []],
        ["synchronised", []],
        ["stopped", []],
        ["plain", []],
        ["broken", []],
        ["refused", []],
        ["dense", []],
        *BREAKS,
    ]
    found = in_processes("several", 2, str(folder), calls)
    return folder, found


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_train_what_one_does(name: str, alone: tuple[Path, Found], pair: tuple[Path, list[Found]]):
    one, two = files(alone[0], name), files(pair[0], name)
    assert largest_difference(one, two) < 1e-6
    assert alone[1][name]["curve"] == [
        [*errors, pytest.approx(cost)] for *errors, cost in pair[1][0]["weights"][name]["curve"]
    ]
    assert alone[1][name]["gradients"] == pytest.approx(pair[1][0]["weights"][name]["gradients"])


@pytest.mark.parametrize("name", [*EQUAL, "batch norm", "dropout"])
def test_all_ranks_end_with_the_same_bytes(name: str, pair: tuple[Path, list[Found]]):
    first, second = (found["weights"][name] for found in pair[1])
    assert first["digest"] == second["digest"]
    assert first["curve"] == second["curve"]
    assert first["alarms"] == second["alarms"]


def test_a_rank_without_labels_trains_and_raises_no_alarm(pair: tuple[Path, list[Found]]):
    first, second = (found["weights"]["few labels"] for found in pair[1])
    assert (first["labelled"], second["labelled"]) == (1, 0)
    assert (first["alarms"], second["alarms"]) == ([], [])


def test_statistics_are_the_means_over_the_ranks_in_every_step(pair: tuple[Path, list[Found]]):
    (running, own), (other_running, other_own) = (found["statistics"] for found in pair[1])
    assert running == other_running
    assert running == pytest.approx([(a + b) / 2 for a, b in zip(own, other_own, strict=True)])
    assert own != pytest.approx(other_own)


def test_synchronised_statistics_are_those_of_one_process(alone: tuple[Path, Found], pair: tuple[Path, list[Found]]):
    synchronised: Any = torch.load(pair[0] / "synchronised" / "batch norm.pt")
    assert largest_difference(files(alone[0], "batch norm"), synchronised) < 1e-6


def test_every_rank_drops_units_of_its_own(alone: tuple[Path, Found], pair: tuple[Path, list[Found]]):
    """The result is another one, and as good."""
    one, two = files(alone[0], "dropout"), files(pair[0], "dropout")
    assert largest_difference(one, two) > 1e-6
    assert pair[1][0]["weights"]["dropout"]["digest"] == pair[1][1]["weights"]["dropout"]["digest"]


def test_a_batch_in_parts_has_the_gradients_of_the_whole(alone: tuple[Path, Found]):
    apart = alone[1]["in parts"]["apart"]
    assert apart.keys() == set(EQUAL)
    assert max(apart.values()) < 1e-6


def test_statistics_count_a_part_once_though_it_is_computed_twice(alone: tuple[Path, Found]):
    """Eleven rows are two parts of at most six, in each of twelve steps."""
    assert set(alone[1]["in parts"]["counted"].values()) == {24}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Found]]:
    folder = tmp_path_factory.mktemp("four")
    return folder, in_processes("several", 4, str(folder), [["weights", [["few labels"]]], *BREAKS])


def test_four_processes_divide_a_batch_that_four_does_not(alone: tuple[Path, Found], four: tuple[Path, list[Found]]):
    folder, found = four
    assert largest_difference(files(alone[0], "few labels"), files(folder, "few labels")) < 1e-6
    assert [rank["weights"]["few labels"]["labelled"] for rank in found] == [1, 0, 0, 0]
    assert len({rank["weights"]["few labels"]["digest"] for rank in found}) == 1


@pytest.mark.parametrize("several", ["pair", "four"])
def test_first_weights_that_depend_on_data_are_those_of_rank_0(several: str, request: pytest.FixtureRequest):
    found = request.getfixturevalue(several)[1]
    assert all(rank["first_weights"] == found[0]["first_weights"] for rank in found)


@pytest.mark.parametrize("several", ["pair", "four"])
def test_a_process_may_see_its_own_gpu_alone_and_none_is_shared(several: str, request: pytest.FixtureRequest):
    found = request.getfixturevalue(several)[1]
    for rank in found:
        own, shared = rank["devices"]
        assert own == "None"
        assert f"{' and '.join(map(str, range(len(found))))} would share one GPU" in shared


@pytest.mark.parametrize("several", ["pair", "four"])
def test_a_method_of_ones_own_trains_what_one_process_does_or_says_why_not(
    several: str, alone: tuple[Path, Found], request: pytest.FixtureRequest
):
    folder, found = request.getfixturevalue(several)
    one = torch.load(alone[0] / "own_methods" / "Interpolation-0.pt")
    for number, rank in enumerate(found):
        trained = torch.load(folder / "own_methods" / f"Interpolation-{number}.pt")
        assert largest_difference(one, trained) < 1e-6
        rows, draws = rank["own_methods"]["said"]
        assert "OwnRowsOnly.forward failed at cases.py:" in rows
        assert f"With {len(found)} processes a view has {len(range(11)[number :: len(found)])} of the 11 rows" in rows
        assert "shared_generator()" in draws
        assert "\n" not in rows + draws


def test_a_group_without_tensors_on_a_cpu_gets_one_beside_it(alone: tuple[Path, Found], tmp_path: Path):
    in_processes("several", 2, str(tmp_path), [["other_group", []]])
    trained = torch.load(tmp_path / "other_group" / "few labels.pt")
    assert largest_difference(files(alone[0], "few labels"), trained) < 1e-6


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets")
def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_the_run_resumes_exactly(pair: tuple[Path, list[Found]]):
    for found in pair[1]:
        assert found["stopped"]["stopped"] == {"step": 6, "record": None}
    stopped, straight = (pair[1][0]["stopped"][name]["record"] for name in ("resumed", "straight"))
    for field in ("curve", "errors", "vitals", "alarms", "processes"):
        assert stopped[field] == straight[field], field
    assert straight["processes"] == [{"from_step": 0, "n": 2}]
    folder = pair[0] / "stopped"
    assert cases.files_of(folder / "resumed") == cases.files_of(folder / "straight")


def test_another_number_of_processes_resumes_the_run_and_is_recorded(pair: tuple[Path, list[Found]]):
    """The network has no batch norm, so it ends where it would have ended."""
    folder = pair[0] / "plain"
    (done,) = in_processes("resumed_by_another_number", 1, str(folder))
    resumed, straight = done["run"], done["straight"]
    assert resumed["record"]["processes"] == [{"from_step": 0, "n": 2}, {"from_step": 6, "n": 1}]
    assert resumed["record"]["errors"] == straight["record"]["errors"]
    one, two = (cases.tensors_of(folder / name) for name in ("straight", "run"))
    assert largest_difference(one, two) < 1e-6


def test_broken_images_of_any_rank_are_known_to_all_ranks_and_recorded(
    alone: tuple[Path, Found], pair: tuple[Path, list[Found]]
):
    one = alone[1]["broken"]
    assert one["replaced"] == len(one["recorded"]) == 3
    assert all(named.endswith(".png: not an image") for named in one["recorded"])
    assert [found["broken"] for found in pair[1]] == [one, one]


@pytest.mark.parametrize("name", ["mean-teacher", "temporal-ensembling"])
def test_two_processes_train_what_one_does_with_a_label_for_every_pixel(
    name: str, alone: tuple[Path, Found], pair: tuple[Path, list[Found]]
):
    """Each of the two knows the labels of its own rows only."""
    one, (first, second) = alone[1]["dense"][name], (found["dense"][name] for found in pair[1])
    assert first == second
    assert largest_difference(*(torch.load(folder / "dense" / f"{name}.pt") for folder in (alone[0], pair[0]))) < 1e-6
    assert first["gradients"] == pytest.approx(one["gradients"])
    assert (first["labelled"], first["alarms"]) == (one["labelled"], one["alarms"])
    assert set(one["labelled"]) <= set(range(6))
    assert one["alarms"] == []


def test_a_rank_that_does_not_answer_is_named(tmp_path: Path):
    message, _ = in_processes("stuck", 2, str(tmp_path), timeout=20)
    assert "Rank 0 of 2" in message
    assert "for rank 1 while" in message
    assert "--resume" in message
    assert "MEANTEACHER_TIMEOUT" in message


def test_more_processes_than_rows_are_refused(pair: tuple[Path, list[Found]]):
    assert all("A batch of 1 rows cannot be divided over 2 processes" in found["refused"] for found in pair[1])
    assert not list((pair[0] / "refused").iterdir())
