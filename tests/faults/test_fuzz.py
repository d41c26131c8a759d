"""A part of `make fuzz`, in this process: no mutated file does more than be refused."""

import random
from dataclasses import replace
from pathlib import Path

import fuzzing
import pytest
from targets import TARGETS

CASES = 900
SEED = 17


@pytest.mark.parametrize("name", TARGETS)
def test_a_mutated_file_is_read_or_refused(name: str, tmp_path: Path):
    folder = tmp_path / "inside"
    folder.mkdir()
    n = max(3, round(CASES * TARGETS[name].share))
    refused, defects = fuzzing.run_cases(name, SEED, range(n), folder)
    assert defects == []
    # Damaged lines of metrics are left out, and damaged images of a cache are decoded again.
    assert refused > n // 4 or name in ("metrics.jsonl", "decoded images"), "the mutations damage nothing"


def test_shares_add_up_to_all_cases():
    assert sum(target.share for target in TARGETS.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [(ZeroDivisionError("x"), "ZeroDivisionError: x"), (TimeoutError("late"), "late"), (ValueError("y" * 9), "yyy")],
)
def test_what_escapes_a_reader_is_a_defect(
    fault: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = iter(range(100))

    def read(data: bytes, folder: Path) -> None:
        if next(calls):  # the valid file comes first
            raise fault

    monkeypatch.setitem(TARGETS, "split", replace(TARGETS["split"], read=read))
    (tmp_path / "inside").mkdir()
    refused, defects = fuzzing.run_cases("split", 0, range(2), tmp_path / "inside")
    assert refused == 0
    assert len(defects) == 2
    assert words in defects[0]


def test_what_is_written_outside_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read(data: bytes, folder: Path) -> None:
        (folder.parents[1] / "escaped").touch()

    monkeypatch.setitem(TARGETS, "split", replace(TARGETS["split"], read=read))
    (tmp_path / "inside").mkdir()
    assert "escaped" in fuzzing.run_cases("split", 0, range(1), tmp_path / "inside")[1][0]


def test_a_case_is_the_same_whenever_it_is_drawn():
    drawn = [fuzzing.mutated([b"abc" * 50], random.Random(f"0/x/{case}")) for case in (5, 6, 5)]
    assert drawn[0] == drawn[2] != drawn[1]
