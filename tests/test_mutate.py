"""The mechanical mutants: what is changed, what is left alone, and that a mutant is really what the tests import."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mutate
from support import PATIENCE, child_environment

MODULE = '''
"""Not 1 of these."""
LIMIT: "Literal[3]" = 7

def inside(x, low, high, strict=False):
    """The number 2 stays."""
    if not strict and x is None:
        raise ValueError("1 < 2" + 3)
    return (low < x, low + high) if strict else max(low, high)
'''


@pytest.fixture
def mutated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What was changed -> the source of the mutant."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(MODULE, encoding="utf-8")
    return {mutant.what: ast.unparse(mutant.tree) for mutant in mutate.mutants_of(path)}


def test_operators_constants_arguments_and_values_are_changed_one_at_a_time(mutated: dict[str, str]):
    assert set(mutated) == {
        "7 -> 8",
        "False -> True",
        "And -> Or",
        "not x -> x",
        "Is -> IsNot",
        "the other value",
        "Lt -> LtE",
        "Add -> Sub",
        "the first two arguments exchanged",
    }
    original = ast.unparse(ast.parse(MODULE)).splitlines()
    for what, source in mutated.items():
        changed = [line for line, before in zip(source.splitlines(), original, strict=True) if line != before]
        assert len(changed) == 1, what
    assert "max(high, low)" in mutated["the first two arguments exchanged"]
    assert "not not strict" in mutated["not x -> x"]


def test_the_tests_of_a_module_are_those_of_its_name_or_folder():
    assert [Path(test).name for test in mutate.tests_of(mutate.SOURCE / "stats.py")] == ["test_stats.py", "stats.py"]
    further = [Path(test).name for test in mutate.further_tests_of(mutate.SOURCE / "methods" / "vat.py")]
    assert further == ["methods", "test_methods.py", "test_outputs.py"]
    assert mutate.further_tests_of(mutate.SOURCE / "stats.py") == []
    (first, _) = mutate.tests_of(mutate.SOURCE / "train" / "optim.py")
    assert Path(first).relative_to(mutate.ROOT / "tests").parts[0] == "train"


def test_a_mutant_replaces_its_module_alone():
    path = mutate.SOURCE / "stats.py"
    finder = mutate._Mutated(next(mutate.mutants_of(path)))
    assert finder.find_spec("meanteacher.costs") is None
    spec = finder.find_spec("meanteacher.stats")
    assert spec is not None
    assert spec.origin == str(path)


def test_a_mutant_is_what_the_tests_and_the_examples_try():
    """In a process of its own, because this one has imported the module. With the real code all would survive."""
    ended = subprocess.run(
        [sys.executable, mutate.__file__, "formats", "--sample", "2"],
        check=True,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert ended.stdout.startswith("formats: 0 of 2 mutants survived"), ended.stdout


def test_processes_that_a_test_starts_meet_the_mutant_too(tmp_path: Path):
    path, source = mutate.SOURCE / "formats.py", tmp_path / "mutant.py"
    source.write_text(f"{path.read_text(encoding='utf-8')}\nNAME = 'mutant'\n", encoding="utf-8")
    inner = "import meanteacher.formats; print(meanteacher.formats.NAME)"
    ended = subprocess.run(
        [sys.executable, "-c", f"import forking; print(forking.run_script({inner!r}).stdout)"],
        check=True,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
        env=child_environment(**{mutate.VARIABLE: f"{path}{os.pathsep}{source}"}),
    )
    assert ended.stdout.strip() == "mutant"
