"""Several processes train what one process trains; what goes wrong in one of them is known to all."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import EQUAL, VARIANTS, files_of, last_checkpoint
from processes import in_processes
from safetensors.torch import load_file
from torch import Tensor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the processes are forked")

BOTH = ["variants", "broken", "dense", "own_methods"]
BREAKS = ["few", "first_weights", "devices", "own_methods"]
"""What went wrong once with two processes, or with four."""
PAIR = [*BOTH, "synchronised", "halves", "stopped", "plain", "refused", "guarded", *BREAKS[:3]]

Found = dict[str, Any]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    (found,) = in_processes("several", 1, str(tmp_path_factory.mktemp("alone")), [*BOTH, "in_parts", "few"])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[Found]:
    """Two processes that do all that two have to show, to be started only once."""
    return in_processes("several", 2, str(folder), PAIR)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return in_processes("several", 4, str(tmp_path_factory.mktemp("four")), BREAKS)


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two weights."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def without_weights(found: Found) -> Found:
    return {name: value for name, value in found.items() if name != "weights"}


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_train_what_one_does(name: str, alone: Found, pair: list[Found]):
    one, two = alone["variants"][name], pair[0]["variants"][name]
    assert differ(one["weights"], two["weights"]) < 1e-6
    assert one["curve"] == [[*errors, pytest.approx(cost)] for *errors, cost in two["curve"]]
    assert one["gradients"] == pytest.approx(two["gradients"])


@pytest.mark.parametrize("name", VARIANTS)
def test_all_ranks_end_with_the_same_bytes(name: str, pair: list[Found]):
    first, second = (found["variants"][name] for found in pair)
    assert all(torch.equal(first["weights"][key], second["weights"][key]) for key in first["weights"])
    assert without_weights(first) == without_weights(second)


def test_all_ranks_leave_out_the_same_steps_that_overflow_in_float16(pair: list[Found]):
    first, second = (found["halves"] for found in pair)
    assert differ(first["weights"], second["weights"]) == 0
    assert without_weights(first) == without_weights(second)
    assert first["overflows"] > 0


def test_synchronised_statistics_are_those_of_one_process(alone: Found, pair: list[Found]):
    assert differ(alone["variants"]["batch norm"]["weights"], pair[0]["synchronised"]["weights"]) < 1e-6


def test_every_rank_drops_units_of_its_own(alone: Found, pair: list[Found]):
    """The result is another one, and as good."""
    assert differ(alone["variants"]["dropout"]["weights"], pair[0]["variants"]["dropout"]["weights"]) > 1e-6


@pytest.mark.parametrize("name", EQUAL)
def test_a_batch_in_parts_has_the_gradients_of_the_whole(name: str, alone: Found):
    assert differ(*alone["in_parts"]["both"][name]) < 1e-6


def test_statistics_count_a_part_once_though_it_is_computed_twice(alone: Found):
    """Eleven rows are two parts of at most six, in each of twelve steps."""
    assert alone["in_parts"]["counted"] == {24}


several = pytest.mark.parametrize("several", ["pair", "four"])


@several
def test_a_batch_that_the_processes_do_not_divide_evenly_may_have_one_label(
    several: str, alone: Found, request: pytest.FixtureRequest
):
    """A rank without labels trains and raises no alarm. Each augments its own rows, for student and teacher."""
    found = [rank["few"] for rank in request.getfixturevalue(several)]
    assert [rank["seen"] for rank in found] == [[len(range(11)[n :: len(found)])] * 2 for n in range(len(found))]
    assert [rank["own"] for rank in found] == [1, *[0] * (len(found) - 1)]
    for rank in found:
        assert differ(alone["few"]["weights"], rank["weights"]) < 1e-6
        assert differ(found[0]["weights"], rank["weights"]) == 0
        assert rank["alarms"] == []


@several
def test_first_weights_that_depend_on_data_are_those_of_rank_0(several: str, request: pytest.FixtureRequest):
    first, *others = (rank["first_weights"] for rank in request.getfixturevalue(several))
    assert [differ(first, other) for other in others] == [0] * len(others)


@several
def test_a_process_may_see_its_own_gpu_alone_and_none_is_shared(several: str, request: pytest.FixtureRequest):
    found = request.getfixturevalue(several)
    for rank in found:
        assert f"{' and '.join(map(str, range(len(found))))} would share one GPU" in rank["devices"][0]


@several
def test_a_method_of_ones_own_trains_what_one_process_does_or_says_why_not(
    several: str, alone: Found, request: pytest.FixtureRequest
):
    found = request.getfixturevalue(several)
    for number, rank in enumerate(found):
        weights, rows, draws = rank["own_methods"]
        assert differ(alone["own_methods"][0], weights) < 1e-6
        assert "ForOne.forward failed at cases.py:" in rows
        assert f"With {len(found)} processes a view has {len(range(11)[number :: len(found)])} of the 11 rows" in rows
        assert "shared_generator()" in draws
        assert "\n" not in rows + draws


def test_a_group_without_tensors_on_a_cpu_gets_one_beside_it(alone: Found, tmp_path: Path):
    for found in in_processes("several", 2, str(tmp_path), ["other_group"]):
        assert differ(alone["few"]["weights"], found["other_group"]["weights"]) < 1e-6


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets")
def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_the_run_resumes_exactly(pair: list[Found], folder: Path):
    for found in pair:
        assert found["stopped"][0] == {"step": 6, "record": None}
    resumed, straight = (each["record"] for each in pair[0]["stopped"][1:])
    for field in ("curve", "errors", "vitals", "alarms", "processes"):
        assert resumed[field] == straight[field], field
    assert straight["processes"] == ({"from_step": 0, "n": 2},)
    assert files_of(folder / "stopped" / "resumed") == files_of(folder / "stopped" / "straight")


def test_another_number_of_processes_resumes_the_run_and_is_recorded(pair: list[Found], folder: Path):
    """The network has no batch norm, so it ends where it would have ended."""
    assert pair[0]["plain"]["step"] == 6
    ((resumed, straight),) = in_processes("resumed_by_another_number", 1, folder / "plain")
    assert resumed["record"]["processes"] == ({"from_step": 0, "n": 2}, {"from_step": 6, "n": 1})
    assert resumed["record"]["errors"] == straight["record"]["errors"]
    for files in zip(*(last_checkpoint(folder / "plain" / name) for name in ("straight", "run")), strict=True):
        assert differ(*map(load_file, files)) < 1e-6


def test_broken_images_of_any_rank_are_known_to_all_ranks_and_recorded(alone: Found, pair: list[Found]):
    one = alone["broken"]
    assert one["batch"][-1] == len(one["recorded"]) == 3
    assert all(named.endswith(".png: not an image") for named in one["recorded"])
    assert [found["broken"] for found in pair] == [one, one]


@pytest.mark.parametrize("name", ["mean-teacher", "temporal-ensembling"])
def test_two_processes_train_what_one_does_with_a_label_for_every_pixel(name: str, alone: Found, pair: list[Found]):
    """Each of the two knows the labels of its own rows only."""
    one, first, second = (found["dense"][name] for found in (alone, *pair))
    assert differ(first["weights"], second["weights"]) == 0
    assert without_weights(first) == without_weights(second)
    assert differ(one["weights"], first["weights"]) < 1e-6
    assert first["gradients"] == pytest.approx(one["gradients"])
    assert (first["labelled"], first["alarms"]) == (one["labelled"], one["alarms"])
    assert set(one["labelled"]) <= set(range(6))
    assert one["alarms"] == []


def test_a_rank_that_fails_ends_the_others_which_say_where_they_waited():
    with pytest.raises(AssertionError, match=r"(?s)rank 1 fails.*distributed.py\", line \d+ in _connect"):
        in_processes("failing", 2)


def test_a_rank_that_does_not_answer_is_named(tmp_path: Path):
    message, _ = in_processes("stuck", 2, str(tmp_path))
    for words in ("Rank 0 of 2", "for rank 1 while", "--resume", "MEANTEACHER_TIMEOUT"):
        assert words in message


def test_more_processes_than_rows_are_refused(pair: list[Found], folder: Path):
    assert all("A batch of 1 rows cannot be divided over 2 processes" in found["refused"] for found in pair)
    assert not list((folder / "refused").iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_read_nor_join_the_store_of_a_run(pair: list[Found]):
    for found in pair:
        tried = found["guarded"]["another user"]
        assert tried.keys() == {"list", "read", "write", "join"}
        assert all("Permission denied" in message for message in tried.values()), tried
