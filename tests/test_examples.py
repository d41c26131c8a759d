"""Each example runs, and does what it says."""

import ast
import dataclasses
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from meanteacher.models import Mlp
from meanteacher.recipes import run
from meanteacher.schedules import Constant
from support import DECAY, recipe

ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Flattened:
    """Images as points, which is what the example takes."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return images.flatten(1) + 0.3 * torch.randn(images.flatten(1).shape, generator=generator)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_own_loop_learns_two_moons_from_six_labels():
    assert _load("own_loop").main() < 0.05


def test_own_method_takes_thirty_lines_and_holds_to_the_contract(tmp_path: Path):
    """One file outside the package, no registration: it trains through a recipe like any other."""
    path = ROOT / "examples" / "own_method.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30
    method = _load("own_method").Interpolation(decay=Constant(DECAY), buffers="own", weight=Constant(2.0))
    images_too = dataclasses.replace(
        recipe(), views={role: Flattened() for role in ("student", "teacher")}, method=method
    )
    outcome = run(
        dataclasses.replace(images_too, model=Mlp(hidden=(16,))),
        seed=0,
        out=tmp_path / "run",
        data=images_too.data.source.load(tmp_path),
    )
    assert outcome.record is not None
    assert outcome.record["method"] == "Interpolation"
    assert outcome.record["alarms"] == []
    gradients = outcome.record["vitals"][-1]["gradients"]
    assert set(gradients) == {"classification", "consistency"}
    assert all(norm > 0 for norm in gradients.values())


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


def test_numbers_in_the_readme_come_from_committed_records():
    from meanteacher.report import load_records, paired_difference, summarise

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    records = load_records(ROOT / "docs" / "records" / "demo")
    for row in summarise(records):
        assert row.student is not None
        assert row.teacher is not None
        cells = [
            f"{100 * s.mean:.1f} ± {100 * s.deviation:.1f}"
            for s in (row.student, row.teacher)
            if s.deviation is not None
        ]
        assert f"| {row.label} | {cells[0]} | {cells[1]} |" in readme
    gain = paired_difference(records, "supervised", "mean-teacher")
    assert gain.standard_error is not None
    points, error = -100 * gain.mean, 100 * gain.standard_error
    said = f"errs on {points:.1f} points less than supervised-only,\npaired by draw, standard error {error:.1f}"
    assert said in readme
    assert gain.mean < -2 * gain.standard_error
