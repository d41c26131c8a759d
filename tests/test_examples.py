"""Each example runs, and does what it says."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_loop_learns_two_moons_from_six_labels():
    assert _load("own_loop").main() < 0.05


def test_every_example_has_a_test():
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.stem}"' in tested


def test_code_in_the_readme_is_python():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    for block in blocks:
        ast.parse(block)


def test_recipes_named_in_the_readme_exist():
    from meanteacher.recipes import RECIPES

    named = re.findall(r"meanteacher run (\S+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert named
    assert set(named) <= set(RECIPES)
