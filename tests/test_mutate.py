"""The mechanical mutants: what is changed, what is left alone, and that a mutant is really what the tests import."""

import ast
import builtins
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
    assert further[:2] == ["test_methods.py", "test_outputs.py"]
    assert "test_vat.py" not in further, "it has met the mutant before"
    assert {Path(test).parent.name for test in mutate.further_tests_of(mutate.SOURCE / "methods" / "vat.py")[2:]} == {
        "methods"
    }
    assert mutate.further_tests_of(mutate.SOURCE / "stats.py") == []
    without_own = mutate.SOURCE / "photos" / "model" / "manifest.py"
    *folder, examples = mutate.tests_of(without_own)
    assert examples == str(without_own)
    assert {Path(test).parent.relative_to(mutate.ROOT / "tests").as_posix() for test in folder} == {"photos/model"}
    assert {"test_bundle.py", "test_sorting.py"} <= {Path(test).name for test in folder}


WATCHED = '''
from functools import cache, partial

def double(x, by=2):
    """Twice."""
    if x > 9:
        return (
            x - 1
        )
    larger = lambda: x * by
    return larger()

@cache
def kept():
    return 1 + 1
'''


def test_the_statements_of_functions_are_marked_and_do_what_they_did(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_text(WATCHED, encoding="utf-8")
    ran: list[tuple[int, int]] = []
    module = {"__ran__": lambda *where: ran.append(where)}
    exec(compile(mutate._marked(path), str(path), "exec"), module)
    assert ran == []
    assert (module["double"](3), module["double"].__doc__, module["kept"]()) == (6, "Twice.", 2)
    assert ran == [(6, 4), (10, 4), (11, 4)]
    assert module["double"](10) == 9
    assert ran[3:] == [(6, 4), (7, 8)]


def test_a_mutant_knows_its_statement_unless_that_is_run_at_import_or_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(WATCHED, encoding="utf-8")
    statements = {(mutant.line, mutant.what): mutant.statement for mutant in mutate.mutants_of(path)}
    assert statements == {
        (4, "2 -> 3"): None,  # a default
        (6, "Gt -> GtE"): (str(path), 6, 4),
        (6, "9 -> 10"): (str(path), 6, 4),
        (8, "Sub -> Add"): (str(path), 7, 8),
        (8, "1 -> 2"): (str(path), 7, 8),
        (10, "Mult -> Div"): (str(path), 10, 4),
        (15, "Add -> Sub"): None,  # the result is kept for later tests
        (15, "1 -> 2"): None,
    }


FIXTURES = f"""
import os
import sys
import pytest

@pytest.fixture(scope="module")
def shared():
    ran("setup")
    yield 1

@pytest.fixture
def own():
    ran("own")

ran("collected")

def test_alone():
    ran("alone")

def test_first(shared, own):
    ran("first")

def test_second(shared):
    pass

def test_asks(request):
    request.getfixturevalue("shared")

def test_forks():
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)

def test_starts():
    sys.audit("{mutate.ASKED}")
"""


def test_a_test_runs_what_its_fixtures_ran_even_for_an_earlier_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a process of its own: pytest is not made to run within pytest."""
    path = tmp_path / "test_fixtures.py"
    path.write_text(FIXTURES, encoding="utf-8")

    def work() -> mutate._Watch:
        watch = mutate._Watch()
        vars(builtins)["ran"] = lambda what: watch.ran(what, 0, 0)
        pytest.main([str(path), "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull], plugins=[watch])
        return watch.without_state()

    watch = mutate._forked(work, limit=PATIENCE)
    found = {
        test.rpartition("_")[2]: {None if ran is None else ran[0] for ran in every}
        for test, every in watch.tests.items()
    }
    assert found == {
        "alone": {"alone"},
        "first": {"first", "setup", "own"},
        "second": {"setup"},
        "asks": {"setup"},
        "forks": {None},
        "starts": {None},
    }
    assert {ran[0] for ran in watch.outside} == {"collected"}
    assert watch.seconds.keys() == {"", *watch.tests}


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
