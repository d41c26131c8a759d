"""Mutates one package line by line and runs its tests on every mutant: `make mutate ARGS="stats costs --sample 50"`.

The catalogue of silent mistakes (`contracts/mutants.py`) is what people thought of. This run depends on nobody's
imagination: it exchanges comparisons, arithmetic operators, constants, arguments and returned values, one at a time. A
mutant is caught if a test of its module fails, or one of its folder and of the contracts of its kind. Survivors are
printed; each is a missing test, or a change that makes no difference. Only tests that run the changed statement run on
a mutant: a first run on the code as it is notes which those are.

Every mutant runs in a process that is forked from one that has imported torch, and nothing is written to the tree.
That is why this is no standard tool: mutmut and cosmic-ray start Python anew for every mutant, which takes longer than
most tests of a module, or replace functions by trampolines, which dataclasses with slots do not allow.
"""

import argparse
import ast
import contextlib
import copy
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meanteacher"
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Pow: ast.Mult,
}


Statement = tuple[str, int, int]
"""File, line and column."""


@dataclass(frozen=True)
class Mutant:
    """One changed place of a module."""

    path: Path
    line: int
    what: str
    make: Callable[[], ast.Module]
    """Makes the changed module, which takes longer than to find its place."""
    statement: Statement | None = None
    """The innermost statement of a function around the place; None if it is run when the module is imported."""

    @property
    def tree(self) -> ast.Module:
        return self.make()

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module. Docstrings, annotations and messages of errors are left alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(inner) for node in ast.walk(tree) for part in _unimportant(node) for inner in ast.walk(part)}
    around = {id(node): statement for node, statement in _placed(tree)}
    for position, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        statement = around[id(node)]
        for what, change in _changes(node):
            where = statement and (str(path), statement.lineno, statement.col_offset)
            make = functools.partial(_mutated, tree, position, change)
            yield Mutant(path, getattr(node, "lineno", 0), what, make, where)


def _mutated(tree: ast.Module, position: int, change: Callable[[ast.AST], None]) -> ast.Module:
    mutated = copy.deepcopy(tree)
    change(next(other for at, other in enumerate(ast.walk(mutated)) if at == position))
    return ast.fix_missing_locations(mutated)


def _placed(node: ast.AST, statement: ast.stmt | None = None) -> Iterator[tuple[ast.AST, ast.stmt | None]]:
    """Every node, and the innermost statement of a function around it.

    The statements of a function whose results are kept have none: tests after the first that calls it need its result,
    but do not run it.
    """
    yield node, statement
    in_function = isinstance(node, ast.FunctionDef) and not any("cache" in ast.unparse(d) for d in node.decorator_list)
    for child in ast.iter_child_nodes(node):
        own = isinstance(child, ast.stmt) and (in_function or statement is not None)
        yield from _placed(child, child if own else statement)


def _marked(path: Path) -> ast.Module:
    """The module, in which every statement of a function is preceded by a call that says that it is run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(node) for node, statement in _placed(tree) if node is statement}
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [each for one in block for each in _with_mark(one, marked=id(one) in inside)])
    return ast.fix_missing_locations(tree)


def _with_mark(statement: ast.stmt, *, marked: bool) -> list[ast.stmt]:
    if not marked or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return [statement]
    place: list[ast.expr] = [ast.Constant(statement.lineno), ast.Constant(statement.col_offset)]
    return [ast.copy_location(ast.Expr(ast.Call(ast.Name("__ran__", ast.Load()), place, [])), statement), statement]


def _unimportant(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Raise() | ast.Import() | ast.ImportFrom():
            return [node]
        case ast.FunctionDef(args=arguments, returns=returns, decorator_list=decorators):
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            return [each for each in (returns, *(one.annotation for one in every), *decorators) if each is not None]
        case ast.AnnAssign(annotation=annotation):
            return [annotation]
        case ast.ClassDef(decorator_list=decorators, bases=bases):
            return [*decorators, *bases]
        case ast.Assert():
            return [node]
    return []


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARISONS:
            other = COMPARISONS[type(operator)]
            yield f"{type(operator).__name__} -> {other.__name__}", lambda it: it.ops.__setitem__(0, other())
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            replaced = OPERATORS[type(operator)]
            yield f"{type(operator).__name__} -> {replaced.__name__}", lambda it: setattr(it, "op", replaced())
        case ast.BoolOp(op=operator):
            joined = ast.Or if isinstance(operator, ast.And) else ast.And
            yield f"{type(operator).__name__} -> {joined.__name__}", lambda it: setattr(it, "op", joined())
        case ast.UnaryOp(op=ast.Not()):
            yield "not x -> x", _without_not
        case ast.Constant(value=bool(value)):
            yield f"{value} -> {not value}", lambda it: setattr(it, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield f"{value} -> {value + 1}", lambda it: setattr(it, "value", value + 1)
        case ast.Call(args=[ast.expr(), ast.expr(), *_] as given) if not any(isinstance(a, ast.Starred) for a in given):
            yield "the first two arguments exchanged", lambda it: it.args.__setitem__(slice(0, 2), it.args[1::-1])
        case ast.Return(value=ast.Tuple(elts=[_, _, *_])):
            yield (
                "the first two results exchanged",
                lambda it: it.value.elts.__setitem__(slice(0, 2), it.value.elts[1::-1]),
            )
        case ast.IfExp():
            yield "the other value", _exchange


def _without_not(node: ast.AST) -> None:
    """`not x` becomes `not not x`, which is x as a condition."""
    assert isinstance(node, ast.UnaryOp)
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _exchange(node: ast.AST) -> None:
    assert isinstance(node, ast.IfExp)
    node.body, node.orelse = node.orelse, node.body


def tests_of(path: Path) -> list[str]:
    """The files with the tests of a module: those of its name or of its folder, and its own examples."""
    below = path.relative_to(SOURCE)
    named = ROOT / "tests" / below.parent / f"test_{below.stem}.py"
    folder = ROOT / "tests" / below.parent
    found = [named] if named.exists() else _files(folder) if len(below.parts) > 1 else []
    return [str(path) for path in (*found, path)]


_SOUND = "contracts/test_mutants.py::test_sound_code_is_not_accused[{}]"
"""The checks that hold the promises of an area of the catalogue."""
FURTHER = {
    "costs": ["contracts/test_methods.py"],
    "methods": ["contracts/test_methods.py", "contracts/test_outputs.py"],
    "photos/fitting": [_SOUND.format(area) for area in ("heads and features", "photos")],
    "photos/model": [_SOUND.format(area) for area in ("model files", "photos")],
    "photos": ["photos/test_walk_through.py"],
    "teacher": ["contracts/test_methods.py", "contracts/test_devices.py"],
    "train": ["golden", "faults/test_checkpoint_faults.py", "distributed"],
}
"""package or module -> what else holds its promises, besides the contracts of its name"""


def further_tests_of(path: Path) -> list[str]:
    """Those of the rest of the folder, and of what all of its kind must satisfy: they take longer, so survivors alone
    meet them."""
    below = path.relative_to(SOURCE)
    subject = below.parts[0].removesuffix(".py")
    wanted = FURTHER.get(below.parent.as_posix(), FURTHER.get(subject, [f"contracts/test_{subject}.py"]))
    found = [ROOT / "tests" / each for each in wanted]
    if len(below.parts) > 1:
        found.append(ROOT / "tests" / below.parent)
    met = tests_of(path)
    return [str(file) for each in found for file in _files(each) if str(file) not in met]


def _files(place: Path) -> list[Path]:
    """The files with tests in a folder, or the file itself, or some tests of it."""
    exists = Path(str(place).partition("::")[0]).exists()
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place] if exists else []


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from the tree of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.relative_to(SOURCE.parent).with_suffix("").parts
        self.name, self.mutant = ".".join(part for part in parts if part != "__init__"), mutant

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        is_package = self.mutant.path.name == "__init__.py"
        spec = importlib.util.spec_from_loader(name, self, origin=str(self.mutant.path), is_package=is_package)
        assert spec is not None
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(self.mutant.path.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.mutant.tree, str(self.mutant.path), "exec"), module.__dict__)


VARIABLE = "MEANTEACHER_MUTANT"
"""Environment variable with the module that processes of a test replace, and the file of what they replace it by."""
ASKED = "meanteacher.tests.asked_for_a_process"
FORKS = {"os.fork", ASKED}
"""The audit events of a process that is forked here, or by the process that forks others for the tests."""


def replace_module() -> None:
    """In a process that a test has started: import the mutant that the test itself has met, if there is one."""
    if given := os.environ.get(VARIABLE):
        path, source = map(Path, given.split(os.pathsep))
        sys.meta_path.insert(0, _Mutated(Mutant(path, 0, "", lambda: ast.parse(source.read_text(encoding="utf-8")))))


@dataclass(eq=False)
class _Watch:
    """A plugin of pytest that notes which statements each test runs, with its fixtures, and the seconds it takes."""

    tests: dict[str, set[Statement | None]] = field(default_factory=dict)
    """Test -> what it runs. None stands for what a forked process runs, which is not known."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Test -> the seconds of processor time; "" -> those of the fixtures that tests share."""
    outside: set[Statement | None] = field(default_factory=set)
    """What is run while tests are collected."""
    names: list[str] = field(default_factory=list)
    """Modules of other packages that the tests import."""

    def __post_init__(self) -> None:
        self._running = [self.outside]
        self._shared: dict[tuple[str, str], set[Statement | None]] = {}
        sys.addaudithook(lambda event, _: self._running[-1].add(None) if event in FORKS else None)

    def without_state(self) -> "_Watch":
        """What another process is sent."""
        del self._running, self._shared
        return self

    def ran(self, path: str, line: int, column: int) -> None:
        self._running[-1].add((path, line, column))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
            return
        began = time.process_time()
        self._running.append(self._shared.setdefault((fixturedef.baseid, fixturedef.argname), set()))
        yield
        self._running.pop()
        self.seconds[""] = self.seconds.get("", 0.0) + time.process_time() - began

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began, own = time.process_time(), set[Statement | None]()
        self._running.append(own)
        yield
        self._running.pop()
        used = getattr(item, "fixturenames", ())
        for (below, name), found in self._shared.items():
            # A test with `request` may ask for any fixture.
            if item.nodeid.startswith(below) and (name in used or "request" in used):
                own |= found
        self.tests[item.nodeid] = own
        self.seconds[item.nodeid] = time.process_time() - began


@dataclass(frozen=True)
class _Selected:
    """A plugin of pytest that runs these tests, and all of these files."""

    tests: frozenset[str]
    files: frozenset[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.tests or str(item.path) in self.files]


class _Marked(_Mutated):
    """Imports a module whose statements tell the watch that they are run."""

    def __init__(self, path: Path, watch: _Watch) -> None:
        super().__init__(Mutant(path, 0, "", functools.partial(_marked, path)))
        self.watch = watch

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__ran__"] = functools.partial(self.watch.ran, str(self.mutant.path))
        super().exec_module(module)


def _forked(work: Callable[[], Any], limit: float) -> Any:
    """What `work` returns in a forked process; None if that ends early, or takes more processor time than the limit."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        os.setsid()
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
        try:
            send.send(work())
        finally:
            os._exit(0)
    send.close()
    found = None
    with contextlib.suppress(EOFError):  # the mutant may have ended the process
        # Only a mutant that waits for something forever takes so long by the clock.
        if receive.poll(60 * limit):
            found = receive.recv()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found


def _run(tests: Sequence[str], plugin: object) -> int:
    return int(pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider"], plugins=[plugin]))


def watched(file: str, paths: Sequence[Path]) -> _Watch:
    """Which statements of the modules each test of a file runs on the code as it is."""

    def work() -> tuple[int, _Watch]:
        before, watch = set(sys.modules), _Watch()
        finders = [_Marked(path, watch) for path in paths]
        sys.meta_path[:0] = finders
        for each in finders:
            importlib.import_module(each.name)
        code = _run([file], watch)
        watch.names = [name for name in sys.modules if name not in before and _is_installed(sys.modules[name])]
        return code, watch.without_state()

    code, watch = _forked(work, limit=1800) or (1, None)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"The tests of {Path(file).relative_to(ROOT)} fail on the code as it is.")
    sys.stderr.write(f"{Path(file).relative_to(ROOT)}: {sum(watch.seconds.values()):.0f} s\n")
    for name in watch.names:  # so that no process of a mutant takes the time to import them
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pytest collects all garbage; what the parent has imported is none
    return watch


def is_caught(mutant: Mutant, watches: dict[str, _Watch]) -> bool:
    """Whether a test of these files fails, or the tests take many times the processor time that they need."""
    tests: set[str] = set()
    files, whole, seconds = [], set(), 0.0
    for file, watch in watches.items():
        everything = mutant.statement is None or mutant.statement in watch.outside
        found = {test for test, ran in watch.tests.items() if everything or {mutant.statement, None} & ran}
        if found:
            files.append(file)
            tests |= found
            whole |= {file.partition("::")[0]} if everything else set()
            seconds += watch.seconds.get("", 0.0) + sum(watch.seconds[test] for test in found)
    if not files:
        return False

    def work() -> int:
        mutated = _Mutated(mutant)
        sys.meta_path.insert(0, mutated)
        source.write_text(ast.unparse(mutant.tree), encoding="utf-8")
        os.environ[VARIABLE] = f"{mutant.path}{os.pathsep}{source}"
        # Before pytest, which imports modules whose examples it tries in its own way, unless they are there.
        importlib.import_module(mutated.name)
        code = _run(files, _Selected(frozenset(tests), frozenset(whole)))
        return code if sys.modules[mutated.name].__loader__ is mutated else -1

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "mutant.py"
        code = _forked(work, limit=10 + 5 * seconds)
    if code == -1:
        raise RuntimeError(f"{mutant} was not imported by its tests")
    return code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _is_installed(module: ModuleType) -> bool:
    """Whether it is of another package, and can be imported before the processes of the mutants are forked."""
    return "site-packages" in str(getattr(module, "__file__", "")) and "pytest" not in module.__name__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "subjects", nargs="+", help="modules, packages or lines: stats, train, photos/fitting, teacher:57"
    )
    parser.add_argument("--sample", type=int, default=100, help="mutants per subject, drawn at random (100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import torch

    torch.set_num_threads(1)
    os.chdir(ROOT)
    for subject in arguments.subjects:
        name, _, line = subject.partition(":")
        place = SOURCE / name
        paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        if missing := [path for path in paths if not path.is_file()]:
            sys.exit(f"There is no {missing[0]}: name a module or package of src/meanteacher.")
        mutants = [mutant for path in paths for mutant in mutants_of(path) if line in {"", str(mutant.line)}]
        drawn = random.Random(arguments.seed).sample(mutants, min(arguments.sample, len(mutants)))
        changed = sorted({mutant.path for mutant in drawn})
        watch = functools.cache(functools.partial(watched, paths=changed))
        survivors = []
        for number, mutant in enumerate(sorted(drawn, key=str), start=1):
            if not any(
                is_caught(mutant, {file: watch(file) for file in tests})
                for tests in (tests_of(mutant.path), further_tests_of(mutant.path))
            ):
                survivors.append(mutant)
                print(f"survived: {mutant}", flush=True)  # noqa: T201
            sys.stderr.write(f"{subject}: {number} of {len(drawn)}\r")
        share = len(survivors) / max(1, len(drawn))
        said = f"{subject}: {len(survivors)} of {len(drawn)} mutants survived ({share:.0%}); there are {len(mutants)}."
        print(said, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
