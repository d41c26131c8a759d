"""`meanteacher.api`: recipes from Python and from a person's own file."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from forking import start_script
from meanteacher import api
from meanteacher.core import InputError, Interrupted
from meanteacher.experiment import override
from meanteacher.experiment.describe import describe, fingerprint
from meanteacher.recipes import find
from meanteacher.records import load_record
from meanteacher.train import Callback, Evaluation, StopWhen
from support import PATIENCE

SHORT = ("steps=4", "evaluate_every=2")
FILE = """\
from dataclasses import dataclass, replace
from meanteacher.recipes import find
from beside import STEPS

@dataclass(frozen=True)
class Brighter:
    by: "float" = 0.1

    def __call__(self, images, generator):
        return images + self.by

own = find("digits/supervised").varied(name="own", steps=STEPS, views={"student": Brighter()})
other = own.varied(name="other")
number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("STEPS = 4\n")
    path = tmp_path / "my file.py"
    path.write_text(FILE)
    return path


def test_recipe_runs_by_its_name_and_as_a_value_into_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    record = api.run(override(find("digits/supervised"), *SHORT), seed=3)
    folder = tmp_path / "runs" / "digits" / "supervised+steps=4,evaluate_every=2" / "seed-3"
    assert load_record(folder / "record.json") == record
    assert (record.seed, record.steps) == (3, 4)
    assert json.loads((folder / "run.json").read_text())["options"]["precision"] == "float32"
    with pytest.raises(InputError, match="holds no run to resume"):
        api.run("moons/supervised", resume=True)
    with pytest.raises(InputError, match="Did you mean moons/supervised"):
        api.run("moons/superviced")


def test_callbacks_follow_a_run_and_should_stop_interrupts_it(tmp_path: Path):
    seen: list[Evaluation] = []

    class Remember(Callback):
        def on_evaluation(self, evaluation: Evaluation) -> None:
            seen.append(evaluation)

    recipe = override(find("digits/supervised"), *SHORT)
    with pytest.raises(Interrupted, match="after step 3; nothing is lost"):
        api.run(recipe, out=str(tmp_path / "r"), callbacks=[Remember(), StopWhen(lambda: bool(seen))])
    record = api.run(recipe, out=tmp_path / "r", callbacks=[Remember()], resume=True)
    assert [point.step for point in seen] == [2, 4]
    assert api.run(recipe, out=tmp_path / "r", resume=True) == record


def test_data_may_be_a_folder_or_what_was_loaded_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = override(find("digits/supervised"), *SHORT)
    folders: list[Path] = []
    source = type(recipe.data.source)
    real = source.load

    def load(self: object, folder: Path, *rest: object) -> object:
        folders.append(folder)
        return real(self, folder, *rest)

    monkeypatch.setattr(source, "load", load)
    monkeypatch.setenv("MEANTEACHER_DATA", str(tmp_path / "variable"))
    loaded = source().load(tmp_path)
    records = [
        api.run(recipe, out=tmp_path / str(n), data=data)
        for n, data in enumerate([None, str(tmp_path / "option"), tmp_path / "option", loaded])
    ]
    assert folders == [tmp_path, tmp_path / "variable", tmp_path / "option", tmp_path / "option"]
    assert len({record.data.fingerprint for record in records}) == 1


def test_recipe_of_a_file_is_found_and_described_the_same_from_anywhere(file: Path, monkeypatch: pytest.MonkeyPatch):
    path = list(sys.path)
    own = api.load_recipe(f"{file}:own")
    assert (own.name, own.training.steps) == ("own", 4)
    assert api.load_recipe(f"{file}:other").name == "other"
    assert sys.path == path
    monkeypatch.chdir(file.parent)
    again = api.load_recipe("my file.py:own")
    assert fingerprint(again) == fingerprint(own)
    assert describe(own)["training"]["views"]["student"] == {"is": "recipe_file_my file.Brighter", "by": 0.1}
    assert override(again, "views.student.by=1").training.views["student"].by == 1.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("missing.py:own", r"There is no file .*missing\.py\. Give FILE\.py:NAME"),
        ("my file.py", r"name the recipe in it, as in .*my file\.py:own\. Its recipes are: own, other\."),
        ("my file.py:", r"name the recipe in it"),
        ("my file.py:otter", r"defines no 'otter'\. Did you mean 'other'\? Its recipes are: own, other\."),
        ("my file.py:number", r"my file\.py:number is of type int, expected a Recipe\. Its recipes are: own, other\."),
        ("beside.py:own", r"defines no 'own'\. It defines no recipe\."),
    ],
)
def test_what_is_wrong_with_the_name_is_explained(file: Path, given: str, words: str):
    with pytest.raises(InputError, match=words):
        api.load_recipe(str(file.parent / given))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a = 1\nb = a +\n", "line 2: SyntaxError: invalid syntax."),
        ("\n\nimport nowhere_at_all\n", "line 3: ModuleNotFoundError: No module named 'nowhere_at_all'."),
        ("def f():\n    return x\n\nf()\n", "line 2: NameError: name 'x' is not defined."),
        ("from broken_beside import y\n", "line 1: SyntaxError: '(' was never closed."),
        ("import sys\nsys.exit('no')\n", "line 2: SystemExit: no."),
        ("assert False\n", "line 1: AssertionError."),
        (
            "from dataclasses import replace\nfrom meanteacher.recipes import find\n"
            "own = find('moons/vat').varied(steps=0)\n",
            "line 3: steps is at least 1, got 0.",
        ),
    ],
)
def test_error_in_the_file_is_one_sentence_with_its_line(tmp_path: Path, content: str, words: str):
    (tmp_path / "broken_beside.py").write_text("y = (\n")
    path = tmp_path / "wrong.py"
    path.write_text(content)
    with pytest.raises(InputError, match=re.escape(f"{path}, {words}")) as caught:
        api.load_recipe(f"{path}:own")
    assert "\n" not in str(caught.value)
    assert "recipe_file_wrong" not in sys.modules


def test_run_takes_a_recipe_from_a_file_and_prints_the_command_that_resumes_it(file: Path):
    words = ["run", "my file.py:own", "--seed", "2", "--set", "steps=100000", "--no-compile"]
    process, ended = start_script("from meanteacher.cli import main; main()", *words, cwd=file.parent)
    metrics = file.parent / "runs" / "own+steps=100000" / "seed-2" / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process, signal.SIGINT)
    done = ended()
    assert done.returncode == 75, done.stderr
    assert "meanteacher run 'my file.py:own' --seed 2 --set steps=100000 --no-compile --resume" in done.stdout
