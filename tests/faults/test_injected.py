"""Faults are injected into real processes, of which `make faults` injects more."""

import subprocess
import sys
from pathlib import Path

import injected
import pytest
from command_line import expect
from injected import FAULTS, Fault, Place, rows_of, run_all

from support import PATIENCE, child_environment

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_injected_faults_have_the_expected_consequences():
    """In one process that forks all others: it imports torch once, and has one thread."""
    done = subprocess.run(
        [sys.executable, injected.__file__, "--quick"],
        env=child_environment(OMP_NUM_THREADS="1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n|") + 1 == sum(fault.in_tests for fault in FAULTS)


def test_fault_with_another_consequence_fails_until_it_is_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def broken(at: Place) -> str:
        expect(at.folder is None, "other | bytes")
        return "fine"

    out = tmp_path / "page.md"
    chosen = [Fault("a", "b", broken), Fault("c", "d", lambda at: "fine")]
    monkeypatch.setattr(injected, "FAULTS", chosen)
    assert not run_all(chosen, quick=True, out=out)
    assert [seen for seen, _ in rows_of(out).values()] == [
        "Seen",
        "**not as expected**: UnexpectedError: other / bytes",
        "fine",
    ]
    assert "1 of 2 faults: as expected." in capsys.readouterr().out
    assert run_all([Fault("a", "b", lambda at: "better")], quick=True, out=out)
    assert [seen for seen, _ in rows_of(out).values()] == ["Seen", "better", "fine"]


def test_page_has_a_row_for_every_fault_and_each_was_as_expected():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert [tuple(row.split(" | ")[:2]) for row in rows] == [(f"| {f.name}", f.expected) for f in FAULTS]
    assert not [row for row in rows if "not as expected" in row or "not injected" in row]
