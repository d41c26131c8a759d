"""Imports are declared and point down, and the command line's help does not wait for torch."""

import ast
import functools
import inspect
import re
import subprocess
import sys
from doctest import DocTestParser
from pathlib import Path
from typing import Any

import pytest

import meanteacher

SRC = Path(meanteacher.__file__).parent
ALONE = {"PYTHONPATH": str(SRC.parent)}
"""An environment in which the package is found, and nothing that is installed beside it."""

FILES = sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")
PARTS = {".".join(path.parent.relative_to(SRC).parts) for path in FILES if path.name == "__init__.py"}
PARTS |= {path.stem for path in SRC.glob("*.py") if path.name != "__init__.py"}
"""Modules and folders of the package; a folder within a folder, such as photos.folder, is a part of its own."""

TABLE = """
0 core:
0 formats:
0 photos:
0 seeding:
0 stats:
1 devices: core
1 distributed: core
1 files: core formats
1 passes: core
1 schedules: core
2 costs: core devices passes
2 data: core devices distributed files formats passes seeding
2 models: core distributed passes
2 records: core files
2 teacher: core devices passes
2 views: core passes seeding
3 data.shards: core data files
3 evaluate: core data passes
3 methods: core costs distributed passes schedules teacher
3 photos.features: core devices files models seeding views
3 report: files formats records stats
3 train: core distributed files formats passes records schedules seeding stats
4 experiment: core costs data devices distributed evaluate files formats methods models records schedules seeding train
    views
4 testing: core costs methods models passes schedules teacher
4 photos.folder: core data data.shards files formats records seeding
4 photos.pages: files formats records report stats
5 online: core data devices evaluate experiment models seeding train views
5 paper.recipes: core costs data experiment methods models records schedules train views
5 photos.label: core files formats photos.folder records
5 photos.model: core devices files formats models passes photos.features photos.folder photos.pages records report stats
    views
6 recipes: core costs data experiment methods models paper.recipes schedules train views
7 api: core data experiment recipes records train
7 estimator: core costs data devices evaluate experiment formats methods models online passes photos.features recipes
    schedules seeding train views
7 photos.fitting: core costs data devices distributed evaluate experiment files formats models photos.features
    photos.folder photos.label photos.model photos.pages recipes records schedules seeding stats teacher train views
8 paper: core devices experiment formats methods paper.recipes recipes records report train
8 sweeps: api core experiment formats records report train
9 cli: api core data devices distributed evaluate experiment files formats paper photos.fitting photos.folder
    photos.label photos.model photos.pages recipes records report sweeps train
10 __main__: cli
"""
"""Level, part, and exactly the parts that it imports. Whoever adds a name has decided that the import belongs there.

Print the table of the imports as they are with: python tests/test_architecture.py
"""

LEVELS: dict[str, int] = {}
DECLARED: dict[str, set[str]] = {}
for _line in TABLE.replace("\n    ", " ").strip().splitlines():
    _level, _name, *_imported = _line.replace(":", "").split()
    LEVELS[_name], DECLARED[_name] = int(_level), set(_imported)


def _part_of(module: str) -> str:
    """The part that a dotted name is in: the longest one that it begins with."""
    first, second, *_ = [*module.split("."), ""]
    return part if (part := f"{first}.{second}") in PARTS else first


def _modules(path: Path) -> set[str]:
    """Every module of the package that a file names in an import, with the names it imports from packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meanteacher"):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("meanteacher").removeprefix(".") for name in found}


def _imports(path: Path) -> set[str]:
    """Every part of the package that a file imports, at its top or within a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {_part_of(name.removeprefix("meanteacher.")) for name in found if name.startswith("meanteacher.")}


@functools.cache
def _found() -> dict[str, dict[str, set[str]]]:
    """Part -> a part that it imports -> the files that do."""
    found: dict[str, dict[str, set[str]]] = {part: {} for part in PARTS}
    for path in FILES:
        file = path.relative_to(SRC)
        part = _part_of(".".join(file.with_suffix("").parts))
        for other in _imports(path) - {part}:
            found[part].setdefault(other, set()).add(file.as_posix())
    return found


def test_every_part_is_in_the_table_and_every_part_of_the_table_exists():
    assert set(DECLARED) == PARTS


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_part_imports_exactly_what_the_table_declares(part: str):
    found, declared = _found()[part], DECLARED[part]
    for other in found.keys() - declared:
        files = ", ".join(sorted(found[other]))
        pytest.fail(
            f"{files}: {part} imports {other}. If that belongs there, add {other} to the line of {part} in TABLE."
        )
    for other in declared - found.keys():
        pytest.fail(f"{part} does not import {other} any more: remove {other} from the line of {part} in TABLE.")


@pytest.mark.parametrize("part", DECLARED)
def test_imports_point_to_lower_levels(part: str):
    """So that parts have an order: none imports a part that imports it, however far around."""
    assert {other: LEVELS[other] for other in DECLARED[part] if LEVELS[other] >= LEVELS[part]} == {}


def test_the_page_shows_the_parts_of_each_level():
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", page, flags=re.MULTILINE)
    assert {part: int(level) for level, parts in rows for part in re.findall(r"`([\w.]+)`", parts)} == LEVELS


def test_concrete_methods_are_unknown_to_training():
    for path in (SRC / "train").rglob("*.py"):
        assert "methods" not in path.read_text(encoding="utf-8").replace("module", "")


@pytest.mark.parametrize("module", ["meanteacher", "meanteacher.cli", "meanteacher.report"])
def test_importing_does_not_import_torch(module: str):
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_importing_loads_nothing_that_takes_time():
    """So it takes a fraction of torch's own time on any machine, without measuring it."""
    script = "import sys; before = set(sys.modules); import meanteacher; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", script], check=True, capture_output=True, text=True, env=ALONE)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"meanteacher"}
    assert [name for name in done.stdout.split() if name.startswith("meanteacher")] == ["meanteacher"]


def _public() -> dict[str, Any]:
    """What a user may import: the front door, and what the modules that it names define."""
    found = {name: getattr(meanteacher, name) for name in meanteacher.__all__}
    for module in [value for value in found.values() if inspect.ismodule(value)]:
        part = module.__name__.removeprefix("meanteacher.")
        for name, value in ((name, getattr(module, name)) for name in module.__all__):
            if inspect.isclass(value) or inspect.isfunction(value):
                found |= {f"{part}.{name}": value} if value.__module__.startswith(module.__name__) else {}
    return found


PUBLIC = {name: value for name, value in _public().items() if not inspect.ismodule(value) and name != "UNLABELLED"}
every_public_name = pytest.mark.parametrize("name", PUBLIC)


def test_the_public_names_are_found():
    assert {"fit", "Teacher", "OnlineTrainer", "costs.softmax_mse", "methods.FixMatch", "views.Flip"} <= set(PUBLIC)
    assert all(module.__doc__ for module in map(meanteacher.__getattr__, meanteacher._MODULES))
    assert not {"costs.per_place", "costs.in_double", "schedules.fix_schedules", "schedules.as_schedule"} & set(PUBLIC)
    assert not hasattr(meanteacher.Teacher, "teacher")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = meanteacher.nonsense


@every_public_name
def test_a_public_name_has_a_docstring_with_an_example(name: str):
    """The examples run: doctests by pytest, lines with `Example:` by tests/test_docs.py."""
    value = PUBLIC[name]
    text = (vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__) or ""  # not an inherited one
    assert DocTestParser().get_examples(text) or "Example: `" in text, f"{name} has no example"


@every_public_name
def test_a_public_name_is_typed(name: str):
    value = PUBLIC[name]
    functions = (
        [value]
        if inspect.isfunction(value)
        else [
            function
            for key, function in vars(value).items()
            if inspect.isfunction(function)
            and (not key.startswith("_") or key in ("__init__", "__call__"))
            and function.__code__.co_filename == inspect.getsourcefile(value)
        ]
    )
    for function in functions:
        signature = inspect.signature(function)
        parameters = [parameter for key, parameter in signature.parameters.items() if key not in ("self", "cls")]
        assert all(parameter.annotation is not parameter.empty for parameter in parameters), function.__qualname__
        assert signature.return_annotation is not signature.empty, function.__qualname__


def test_every_module_says_what_it_is_for():
    for path in SRC.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


WALKS = {"batch": 22, "row": 18, "shard's image": 21, "photo": 26}
"""What walks -> the largest number of files that it may pass."""


def _walked(name: str) -> list[str]:
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition(f"## The walk of a {name}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_in_the_documentation_passes_few_files_and_each_once(name: str):
    walked = _walked(name)
    assert 15 < len(walked) <= WALKS[name]
    assert len(set(walked)) == len(walked)
    assert [file for file in walked if not (SRC / file).is_file()] == []


@pytest.mark.parametrize("name", ["batch", "row", "shard's image"])
def test_a_walk_needs_no_file_before_one_that_uses_it(name: str):
    """Whoever reads in this order has met every part of the package before a file of that part is reached."""
    met = {"cli.run", "estimator.classifier", "paper.recipes.table4", "data.shards.source"}  # the last two: by the user
    for file in _walked(name):
        module = file.removesuffix(".py").replace("/", ".")
        reached = {module, *(module[:i] for i, letter in enumerate(module) if letter == ".")}
        assert reached & met, f"{file} is used by no file before it"
        met |= _modules(SRC / file)
