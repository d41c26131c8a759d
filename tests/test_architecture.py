"""Imports point down only, and the command line's help does not wait for torch."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import meanteacher

SRC = Path(meanteacher.__file__).parent

_FOUNDATION = {"core", "seeding", "passes", "devices", "distributed", "files", "formats", "stats"}
_PARTS = {"data", "views", "models", "schedules", "costs", "teacher"}
_TRAINING = _FOUNDATION | _PARTS | {"methods", "evaluate", "train"}
# part -> the parts it may import besides itself
MAY_IMPORT = {
    **{part: set() for part in _FOUNDATION},
    "devices": {"core"},
    "distributed": {"core"},
    "inference": _FOUNDATION,
    **dict.fromkeys(_PARTS, _FOUNDATION),
    "methods": _FOUNDATION | {"schedules", "costs", "teacher"},
    "evaluate": _FOUNDATION | {"data"},
    "train": _FOUNDATION | {"evaluate"},
    "experiment": _TRAINING,
    "recipes": _TRAINING | {"experiment"},
    "api": _TRAINING | {"experiment", "recipes"},
    "reproduce": _TRAINING | {"experiment", "recipes", "api", "report"},
    "online": _TRAINING | {"experiment", "photos"},
    "__main__": {"cli"},
    "photos": _FOUNDATION,
    "shards": _FOUNDATION | {"data", "photos"},
    "report": {"core", "files", "formats"},
    "pretrained": _TRAINING | {"inference", "experiment"},
    "classifier": _TRAINING | {"inference", "photos"},
    "fitting": _TRAINING | {"inference", "experiment", "recipes", "photos", "classifier", "pretrained", "report"},
    "label": _FOUNDATION | {"photos", "classifier", "fitting"},
    "cli": _TRAINING
    | {"api", "experiment", "recipes", "photos", "classifier", "fitting", "report", "label", "reproduce", "shards"},
}


def _part(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Every part of the package that a file names in an import, wherever in the file it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("meanteacher.")}


FILES = sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def test_every_part_has_its_place_in_the_order():
    assert {_part(path) for path in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
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


def test_every_public_name_is_there_and_documented():
    for name in meanteacher.__all__:
        assert hasattr(meanteacher, name)
        assert name == "UNLABELLED" or getattr(meanteacher, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = meanteacher.nonsense


def test_every_module_says_what_it_is_for():
    for path in SRC.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_a_file_is_one_idea():
    for path in SRC.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path


@pytest.mark.parametrize(("heading", "most"), [("The walk of a batch", 25), ("The walk of a photo", 40)])
def test_the_walks_in_the_documentation_pass_real_files_once_each(heading: str, most: int):
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    walked = re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)
    assert 15 < len(walked) <= most
    assert len(set(walked)) == len(walked)
    assert [file for file in walked if not (SRC / file).is_file()] == []


def test_packages_are_small_enough_to_find_a_module_in():
    modules = list(SRC.rglob("*.py"))
    assert len(modules) <= 165
    assert max(Counter(path.parent for path in modules).values()) <= 14
