"""The pages of docs/: their Python runs, their numbers come from records, and the site finds what they link to."""

import ast
import importlib.util
import json
import re
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
import yaml
from nbclient import NotebookClient
from torch import nn

import meanteacher
import meanteacher.online
from meanteacher.methods import METHODS, MeanTeacher
from meanteacher.schedules import Constant
from meanteacher.train import AdamSpec, vitals
from meanteacher.views import Noise
from methods_page import EQUATIONS
from photo_support import save
from support import PATIENCE, child_environment

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


PAGES = {page.relative_to(DOCS).as_posix(): blocks(page) for page in sorted(DOCS.rglob("*.md")) if blocks(page)}
ELSEWHERE = {
    "own-module.md": "tests/test_own_module.py",
    "photos.md": "tests/test_readme.py, with the fit of the README",
    "scikit-learn.md": "tests/estimator/test_page.py",
}
"""Pages whose Python another test runs."""


def photos(folder: Path) -> None:
    seeds = count()
    for part in ("cat", "dog"):
        for k in range(2):
            save(folder / part / f"{k}.png", seed=next(seeds))


def names_for(page: str) -> dict[str, Any]:
    """What the text around the Python of a page says that there is."""
    if page != "scale.md":
        return {}
    for part in ("train", "test"):
        photos(Path("photos") / part)
    return {
        "network": nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)),
        "method": MeanTeacher(decay=Constant(0.9), buffers="own", weight=Constant(1.0)),
        "optim": AdamSpec(learning_rate=Constant(0.001), beta1=Constant(0.9), beta2=Constant(0.99)),
        "views": {role: Noise(0.1) for role in ("student", "teacher")},
        "images": torch.rand(4, 3, 32, 32),
        "labels": torch.tensor([3, 1, -1, -1]),
        "more_images": torch.rand(2, 3, 32, 32),
        "examples": [(torch.rand(3, 32, 32), label) for label in (0, None, None, 9)],
    }


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_python_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = names_for(page)
    for block in PAGES[page]:
        exec(compile(block, page, "exec"), names)
    learnt = {"index.md": ("error", 0.3), "library.md": ("costs", None), "scale.md": ("packed", None)}
    if page in learnt:
        name, most = learnt[page]
        assert most is None or float(names[name]) < most
        assert names[name] is not None


def test_pages_with_python_are_found():
    assert {"index.md", "library.md", "photos.md", "researchers.md", "scale.md"} <= set(PAGES)
    assert set(ELSEWHERE) <= set(PAGES)


# --- what a page has to have ------------------------------------------------------------------------------------------


def kinds_of_alarms() -> set[str]:
    """As the code names them: the second argument of every `_raise`, up to the name of a cost."""
    tree = ast.parse(Path(vitals.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._raise"]
    kinds = set()
    for call in calls:
        kind = call.args[1].values[0] if isinstance(call.args[1], ast.JoinedStr) else call.args[1]
        assert isinstance(kind, ast.Constant)
        kinds.add(kind.value.removesuffix("/"))
    return kinds


def test_every_kind_of_alarm_has_its_section_and_every_such_section_an_alarm():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## `(.+)`$", page, flags=re.MULTILINE)) == kinds_of_alarms()
    assert {"dead-cost", "collapse", "stale-teacher"} <= kinds_of_alarms()


def test_every_public_name_is_in_the_reference_once():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: meanteacher\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(meanteacher.__all__)


@pytest.mark.parametrize("name", sorted({*METHODS, *EQUATIONS}))
def test_every_method_has_an_equation_and_a_script(name: str):
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert f"$$\n{EQUATIONS[name].strip()}\n$$" in page
    script = f"examples/methods/{name.replace('-', '_')}.py"
    assert f"`{script}`" in page
    assert (ROOT / script).is_file()


def test_every_folder_of_the_package_has_one_line_in_the_architecture():
    source = ROOT / "src" / "meanteacher"
    folders = [
        path.parent for pattern in ("*", "paper/*", "photos/*") for path in source.glob(f"{pattern}/__init__.py")
    ]
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)/` \|", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(folder.relative_to(source).as_posix() for folder in folders)


def test_prose_wraps_at_120_characters():
    """Tables, code and pages that a program writes are exempt."""
    written = {"methods.md", "mutants.md", "outputs.md", "reliability.md", "results.md"}
    pages = [path for path in (ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))) if path.name not in written]
    long = [
        f"{path.name}:{number}"
        for path in pages
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > 120 and not line.startswith(("|", "    "))
    ]
    assert long == []


# --- figure 1 ---------------------------------------------------------------------------------------------------------


def figure_1() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figure_1", ROOT / "examples" / "figure_1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figure_1_on_the_page_is_what_its_script_draws():
    """If it fails: python examples/figure_1.py docs"""
    found = json.loads((DOCS / "figure-1.json").read_text(encoding="utf-8"))
    assert (DOCS / "figure-1.svg").read_text(encoding="utf-8") == figure_1().draw(found["panels"])
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    assert f"over {found['seeds']} draws" in page
    for panel, distance in found["distance"].items():
        assert re.search(rf"^\| \({panel}\) .* \| {distance:.2f} \|$", page, flags=re.MULTILINE), panel
    assert found["distance"]["c"] > found["distance"]["d"] > found["distance"]["e"]


def test_the_script_of_figure_1_fits_the_labels_and_draws_all_panels(tmp_path: Path):
    script = figure_1()
    script.main(tmp_path, seeds=2, steps=100)
    panels = json.loads((tmp_path / "figure-1.json").read_text(encoding="utf-8"))["panels"]
    grid = script.GRID.flatten()
    left, right = (int((grid - at).abs().argmin()) for at in script.LABELLED.flatten())
    assert list(panels) == list("abcde")
    for panel in panels.values():
        assert panel["student"][left] < 0.2
        assert panel["student"][right] > 0.8
    assert [len(panels[name]["single targets"]) for name in "cde"] == [0, script.TARGETS, script.TARGETS]
    picture = (tmp_path / "figure-1.svg").read_text(encoding="utf-8")
    assert all(title.partition("\n")[0] in picture for title in script.TITLES.values())


def test_the_student_of_figure_1_is_drawn_to_its_target():
    """Without a target it is sure of one class or the other there."""
    script = figure_1()
    found: dict[float | None, list[float]] = {None: [], 0.5: []}
    for target, apart in found.items():
        for seed in range(3):
            torch.manual_seed(seed)
            network = script.new_network()
            script.fit(network, 120, target=target)
            apart.append(abs(float(script.targets([network], script.UNLABELLED, 50).mean()) - 0.5))
    assert max(found[0.5]) < 0.2
    assert sum(found[0.5]) < 0.5 * sum(found[None])


# --- notebooks --------------------------------------------------------------------------------------------------------

BEFORE = {
    "photos": """
from pytest import MonkeyPatch

from backbone_support import small_networks

small_networks(MonkeyPatch())
""",
}
"""Cells before a notebook's own: a fit with tiny networks, in seconds."""
AFTER = {
    "photos": "assert result['n_judged'] == 10 and len(predictions) == 5",
    "tables": "assert error < supervised_error",
    "own-module": "assert max(errors.values()) < 0.5",
}


@pytest.mark.filterwarnings("ignore")  # of Jupyter
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs"
    cell = partial(nbformat.v4.new_code_cell)
    notebook.cells = [cell(BEFORE.get(path.stem, "")), *notebook.cells, cell(AFTER[path.stem])]
    NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


def test_there_is_a_notebook_for_photos_tables_and_an_own_module():
    assert {path.stem for path in NOTEBOOKS} == set(AFTER)


# --- the site ---------------------------------------------------------------------------------------------------------


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_or_in_one_of_two_lists():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    shown: set[str] = set()

    def collect(entry: Any) -> None:
        for value in entry if isinstance(entry, list) else entry.values():
            shown.add(value) if isinstance(value, str) else collect(value)

    collect(site["nav"])
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in pages - shown if not page.startswith(("decisions/", "experiments/"))} == set()
    for folder in ("decisions", "experiments"):
        listed = (DOCS / folder / "README.md").read_text(encoding="utf-8")
        assert all(f"({path.name})" in listed for path in (DOCS / folder).glob("*.md") if path.name != "README.md")
    assert {f"notebooks/{path.name}.md" for path in NOTEBOOKS} <= shown


def test_the_site_loads_nothing_from_elsewhere():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css"} & set(site)


def test_equations_become_mathml_and_every_one_of_the_methods_can():
    convert = hooks().converted
    page = convert("Text.\n\n$$\n\\theta'_t = \\frac{w}{K}\n$$\n\nMore.", DOCS / "a.md", DOCS)
    assert "<mfrac>" in page
    assert 'display="block"' in page
    assert "$$" not in page
    whole = convert((DOCS / "methods.md").read_text(encoding="utf-8"), DOCS / "methods.md", DOCS)
    assert whole.count("<math ") == len(METHODS)
    assert "$$" not in whole
    assert not re.search(r"<mi>\\|>\\\w", whole), "a command that the converter does not know"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("scale.md", "[a](../examples/own_recipe.py)", "[a](repository/examples/own_recipe.py)"),
        ("experiments/fit.md", "[a](../../src/meanteacher/core.py)", "[a](../repository/src/meanteacher/core.py)"),
        ("results.md", "[records](records/fast)", "records"),
        ("results.md", "[a](photos.md#small-images)", "[a](photos.md#small-images)"),
        ("results.md", "`[a](../examples/own_recipe.py)`", "`[a](../examples/own_recipe.py)`"),
        ("results.md", "![a](../examples/own_recipe.py)", "![a](../examples/own_recipe.py)"),
        ("results.md", "[a](https://example.org/x)", "[a](https://example.org/x)"),
    ],
)
def test_links_out_of_the_pages_lead_to_copies(page: str, link: str, expected: str):
    assert hooks().converted(link, DOCS / page, DOCS) == expected


def test_every_link_of_a_page_leads_somewhere():
    """The site's build checks those between pages, and their anchors; here are also those to files and folders."""
    missing = [
        f"{page.relative_to(ROOT)}: {found[2]}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for found in hooks()._LINK.finditer("".join(hooks()._CODE.split(page.read_text(encoding="utf-8"))[::2]))
        if not (page.parent / found[2]).exists()
    ]
    assert missing == []


def test_examples_of_docstrings_are_shown_as_code():
    assert hooks().fenced("Text.\n\n>>> 1 + 1\n2\n\nMore.") == "Text.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."


def test_files_that_pages_link_to_are_copied():
    found = {
        path.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md") for path in hooks().linked_files(page, DOCS)
    }
    assert {"examples/figure_1.py", "src/meanteacher/teacher.py", "examples/methods/fixmatch.py"} <= found


def test_a_notebook_becomes_a_page():
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
            {"cell_type": "code", "source": ["1 + 1"]},
        ]
    }
    assert hooks().notebook_page(notebook) == "# Title\nText.\n\n```python\n1 + 1\n```"
