"""A teacher in a loop of one's own over several processes: the scripts of docs/own-module.md."""

import re
import sys
from pathlib import Path

import pytest
from processes import in_processes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the processes are forked")

PAGE = (Path(__file__).parents[2] / "docs" / "own-module.md").read_text(encoding="utf-8")
DDP, FSDP2 = re.findall(r"```python\n(import torch.distributed.*?)```", PAGE, flags=re.S)
SHARDED = r"fully_shard\(teacher.*\n"
WHOLE = re.sub(r"weights = .*", "weights = teacher.predictor().state_dict()", re.sub(SHARDED, "", FSDP2))


@pytest.mark.parametrize(
    ("script", "statistics_differ"),
    [(DDP, True), (FSDP2, False), (WHOLE, False)],
    ids=["DistributedDataParallel", "FSDP2", "FSDP2 with a whole teacher"],
)
def test_teachers_of_all_processes_are_the_mean_of_the_students(script: str, statistics_differ: bool):
    first, second = in_processes("own_loop", 2, script)
    assert first["weights"] == second["weights"]
    assert first["from the mean"] < 1e-6 < first["moved"]  # three updates: still the plain mean
    assert (first["statistics"] != second["statistics"]) == statistics_differ


def test_the_scripts_differ_as_the_page_says():
    assert len(re.findall(SHARDED, FSDP2)) == 1
    assert "predictor" in WHOLE


MADE = "teacher = mt.Teacher(student)\n"
TOO_LATE = FSDP2.replace(MADE, "").replace("fully_shard(teacher", f"{MADE}fully_shard(teacher")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (TOO_LATE, "sharded already. Make its teacher before"),
        (f"{FSDP2}teacher.predictor()\n", "A sharded teacher cannot be copied. Gather"),
    ],
    ids=["made too late", "copied"],
)
def test_what_a_sharded_network_cannot_do_is_said(script: str, words: str):
    with pytest.raises(AssertionError, match=words):
        in_processes("own_loop", 2, script)
