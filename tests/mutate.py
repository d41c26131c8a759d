"""Mutates one package line by line and runs its tests on every mutant: `make mutate ARGS="stats costs --sample 50"`.

The catalogue of silent mistakes (`contracts/mutants.py`) is what people thought of. This run depends on nobody's
imagination: it exchanges comparisons, arithmetic operators, constants, arguments and returned values, one at a time. A
mutant is caught if a test of its module fails, or one of its folder and of the contracts of its kind. Survivors are
printed; each is a missing test, or a change that makes no difference.

Every mutant runs in a process that is forked from one that has imported torch, and nothing is written to the tree.
That is why this is no standard tool: mutmut and cosmic-ray start Python anew for every mutant, which takes longer than
most tests of a module, or replace functions by trampolines, which dataclasses with slots do not allow.
"""

import argparse
import ast
import contextlib
import copy
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

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


@dataclass(frozen=True)
class Mutant:
    """One changed place of a module."""

    path: Path
    line: int
    what: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module. Docstrings, annotations and messages of errors are left alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(inner) for node in ast.walk(tree) for part in _unimportant(node) for inner in ast.walk(part)}
    for position, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for what, change in _changes(node):
            mutated = copy.deepcopy(tree)
            change(next(other for at, other in enumerate(ast.walk(mutated)) if at == position))
            yield Mutant(path, getattr(node, "lineno", 0), what, ast.fix_missing_locations(mutated))


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
    """The tests of a module: those of its name or of its folder, and its own examples."""
    below = path.relative_to(SOURCE)
    named = ROOT / "tests" / below.parent / f"test_{below.stem}.py"
    folder = ROOT / "tests" / below.parent
    found = [named] if named.exists() else [folder] if len(below.parts) > 1 and folder.exists() else []
    return [str(path) for path in (*found, path)]


FURTHER = {
    "costs": ["contracts/test_methods.py"],
    "methods": ["contracts/test_methods.py", "contracts/test_outputs.py"],
    "teacher": ["contracts/test_methods.py", "contracts/test_devices.py"],
    "train": ["golden", "faults/test_checkpoint_faults.py", "distributed"],
}
"""subject -> what else holds its promises, besides the contracts of its name"""


def further_tests_of(path: Path) -> list[str]:
    """Those of the whole folder, and of what all of its kind must satisfy: they take longer, so survivors alone meet
    them."""
    below = path.relative_to(SOURCE)
    subject = below.parts[0].removesuffix(".py")
    found = [ROOT / "tests" / below.parent] if len(below.parts) > 1 else []
    found += [ROOT / "tests" / each for each in FURTHER.get(subject, [f"contracts/test_{subject}.py"])]
    return [str(path) for path in found if path.exists()]


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


def replace_module() -> None:
    """In a process that a test has started: import the mutant that the test itself has met, if there is one."""
    if given := os.environ.get(VARIABLE):
        path, source = map(Path, given.split(os.pathsep))
        sys.meta_path.insert(0, _Mutated(Mutant(path, 0, "", ast.parse(source.read_text(encoding="utf-8")))))


def is_caught(mutant: Mutant | None, tests: Sequence[str], limit: float) -> tuple[bool, float, list[str]]:
    """Whether a test fails, or the tests take more seconds of processor time than the limit; None mutates nothing.

    Also the seconds, and the names of the modules of other packages that were imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _is_caught(mutant, tests, limit, Path(folder) / "mutant.py")


def _is_caught(
    mutant: Mutant | None, tests: Sequence[str], limit: float, source: Path
) -> tuple[bool, float, list[str]]:
    receive, send = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        os.setsid()
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
        import pytest

        before = set(sys.modules)
        if mutant is not None:
            mutated = _Mutated(mutant)
            sys.meta_path.insert(0, mutated)
            source.write_text(ast.unparse(mutant.tree), encoding="utf-8")
            os.environ[VARIABLE] = f"{mutant.path}{os.pathsep}{source}"
            # Before pytest, which imports modules whose examples it tries in its own way, unless they are there.
            importlib.import_module(mutated.name)
        code: int | None = int(pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider"]))
        if mutant is not None and sys.modules[mutated.name].__loader__ is not mutated:
            code = None  # the tests have imported something else
        imported = [name for name in sys.modules if name not in before and _is_installed(sys.modules[name])]
        send.send((code, imported))
        os._exit(0)
    send.close()
    code, names = 1, []
    with contextlib.suppress(EOFError):  # the mutant may have ended the process
        # Only a mutant that waits for something forever takes so long by the clock.
        if receive.poll(60 * limit):
            code, names = receive.recv()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, _, usage = os.wait4(child, 0)
    if code is None:
        raise RuntimeError(f"{mutant} was not imported by its tests")
    return code != 0, usage.ru_utime + usage.ru_stime, names


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
    import pytest  # noqa: F401
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
        seconds: dict[Path, float] = {}
        for path in sorted({mutant.path for mutant in drawn}):
            failed, seconds[path], names = is_caught(None, tests_of(path), limit=1800)
            if failed:
                sys.exit(f"The tests of {path.relative_to(ROOT)} fail on the code as it is.")
            for name in names:  # so that no process of a mutant takes the time to import them
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            sys.stderr.write(f"{path.relative_to(SOURCE)}: {seconds[path]:.0f} s\n")
        gc.collect()
        gc.freeze()  # pytest collects all garbage; what the parent has imported is none
        survivors = []
        for number, mutant in enumerate(sorted(drawn, key=str), start=1):
            further = further_tests_of(mutant.path)
            if not (
                is_caught(mutant, tests_of(mutant.path), 10 + 5 * seconds[mutant.path])[0]
                or (further and is_caught(mutant, further, limit=1800)[0])
            ):
                survivors.append(mutant)
                print(f"survived: {mutant}", flush=True)  # noqa: T201
            sys.stderr.write(f"{subject}: {number} of {len(drawn)}\r")
        share = len(survivors) / max(1, len(drawn))
        said = f"{subject}: {len(survivors)} of {len(drawn)} mutants survived ({share:.0%}); there are {len(mutants)}."
        print(said, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
