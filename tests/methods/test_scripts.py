"""One complete script per method, each of which learns."""

import importlib.util
import statistics
from pathlib import Path
from types import ModuleType

import pytest

from meanteacher.methods import METHODS

SCRIPTS = Path(__file__).parents[2] / "examples" / "methods"
every_method = pytest.mark.parametrize("name", METHODS)


def script(name: str) -> ModuleType:
    path = SCRIPTS / f"{name.replace('-', '_')}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_script_is_that_of_a_method():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {name.replace("-", "_") for name in METHODS}


@every_method
def test_a_script_is_small_and_of_its_own_method(name: str):
    lines = (SCRIPTS / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 50
    assert f"from meanteacher.methods import {METHODS[name].__name__}" in lines


@every_method
def test_a_script_learns(name: str):
    """A guess is wrong on half of the points; after a third of the steps the worst is wrong on 22 %, measured."""
    main = script(name).main
    assert statistics.mean(main(seed=seed, steps=100) for seed in range(2)) < 0.3


def test_without_steps_nothing_is_learnt():
    assert statistics.mean(script("supervised").main(seed=seed, steps=0) for seed in range(2)) > 0.4
