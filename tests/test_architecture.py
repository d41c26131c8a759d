"""Imports point down only, and the command line's help does not wait for torch."""

import ast
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

_FOUNDATION = {"core", "seeding", "passes", "devices", "distributed", "files", "formats", "records", "stats"}
_PARTS = {"data", "views", "models", "schedules", "costs", "teacher"}
_TRAINING = _FOUNDATION | _PARTS | {"methods", "evaluate", "train"}
_PHOTOS = {f"photos.{part}" for part in ("folder", "features", "fitting", "model", "label", "pages")}
# part -> the parts it may import besides itself; a part of a part, such as photos.folder, has an order of its own
MAY_IMPORT = {
    **{part: set() for part in _FOUNDATION},
    "passes": {"core"},
    "devices": {"core"},
    "distributed": {"core"},
    "files": {"core", "formats"},
    "records": {"core", "files", "formats"},
    **dict.fromkeys(_PARTS, _FOUNDATION),
    "data.shards": _FOUNDATION | {"data"},
    "methods": _FOUNDATION | {"schedules", "costs", "teacher"},
    "evaluate": _FOUNDATION | {"data"},
    "train": _FOUNDATION | {"schedules", "evaluate"},
    "experiment": _TRAINING,
    "paper.recipes": _TRAINING | {"experiment"},
    "recipes": _TRAINING | {"experiment", "paper.recipes"},
    "api": _TRAINING | {"experiment", "recipes"},
    "report": {"core", "files", "formats", "records"},
    "paper": _TRAINING | {"experiment", "recipes", "paper.recipes", "api", "report"},
    "online": _TRAINING | {"experiment", "photos.folder"},
    "photos": set(),
    "photos.folder": _FOUNDATION | {"data", "data.shards"},
    "photos.features": _TRAINING | {"experiment"},
    "photos.model": _TRAINING | {"photos.features", "photos.folder"},
    "photos.pages": {"core", "files", "formats", "records", "report"},
    "photos.fitting": _TRAINING
    | {"experiment", "recipes", "photos.folder", "photos.features", "photos.model", "photos.pages"},
    "photos.label": _FOUNDATION | _PHOTOS | {"report"},
    "estimator": _TRAINING | {"experiment", "recipes", "online", "photos.features", "photos.fitting"},
    "__main__": {"cli"},
    "cli": _TRAINING | _PHOTOS | {"api", "experiment", "recipes", "report", "paper", "data.shards"},
}


def _part(path: Path) -> str:
    return _part_of(".".join(path.relative_to(SRC).with_suffix("").parts))


def _part_of(module: str) -> str:
    """The part that a dotted name lies in: the longest one that it begins with."""
    first, _, rest = module.partition(".")
    return part if (part := f"{first}.{rest.partition('.')[0]}") in MAY_IMPORT else first


def _imports(path: Path) -> set[str]:
    """Every part of the package that a file names in an import, wherever in the file it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {_part_of(name.removeprefix("meanteacher.")) for name in found if name.startswith("meanteacher.")}


FILES = sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def test_every_part_has_its_place_in_the_order():
    assert {_part(path) for path in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SRC).as_posix())
def test_imports_point_down_only(path: Path):
    part = _part(path)
    assert _imports(path) - {part} <= MAY_IMPORT[part]


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
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name, value in ((name, getattr(module, name)) for name in names):
            if inspect.isclass(value) or inspect.isfunction(value):
                found |= {f"{part}.{name}": value} if value.__module__.startswith(module.__name__) else {}
    return found


PUBLIC = {name: value for name, value in _public().items() if not inspect.ismodule(value) and name != "UNLABELLED"}
every_public_name = pytest.mark.parametrize("name", PUBLIC)


def test_the_public_names_are_found():
    assert {"fit", "Teacher", "OnlineTrainer", "costs.softmax_mse", "methods.FixMatch", "views.Flip"} <= set(PUBLIC)
    assert all(module.__doc__ for module in map(meanteacher.__getattr__, meanteacher._MODULES))
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


@pytest.mark.parametrize(("heading", "most"), [("The walk of a batch", 25), ("The walk of a photo", 40)])
def test_the_walks_in_the_documentation_pass_real_files_once_each(heading: str, most: int):
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    walked = re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)
    assert 15 < len(walked) <= most
    assert len(set(walked)) == len(walked)
    assert [file for file in walked if not (SRC / file).is_file()] == []
