"""Which runs a table or figure is made of, what there is of each, and how long they take."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meanteacher.core import InputError, Problem
from meanteacher.experiment.describe import fingerprint
from meanteacher.experiment.operations import row_operations
from meanteacher.experiment.runs import Run
from meanteacher.paper import runs
from meanteacher.paper.layout import FIGURES, LAPTOP, LAPTOP_FIGURES, LAPTOP_TABLES, TABLES
from meanteacher.paper.runs import find_figure, find_table, recipe_names, runs_of
from meanteacher.recipes import RECIPES
from record_support import write_record
from support import held_by_another_process

NAME = "table1/svhn-500/mean-teacher"
PLACES = {
    f"{kind} {name}": place
    for kind, places in {
        "table": TABLES,
        "figure": FIGURES,
        "laptop table": LAPTOP_TABLES,
        "laptop figure": LAPTOP_FIGURES,
    }.items()
    for name, place in places.items()
}


def _run(tmp_path: Path, seed: int = 0) -> Run:
    return Run("digits/supervised", RECIPES["digits/supervised"], seed, tmp_path)


def _record(run: Run, *, of: str | None = None) -> None:
    recipe = {"name": run.recipe.name, "fingerprint": of or fingerprint(run.recipe), "fields": {}}
    write_record(run, 0.5, recipe=recipe)


@pytest.mark.parametrize("place", PLACES)
def test_every_cell_is_a_recipe_and_is_run_once(place: str):
    names = recipe_names(PLACES[place])
    assert names
    assert set(names) <= set(RECIPES)
    assert len(names) == len(set(names))


def test_cell_chooses_by_whole_parts_of_a_name():
    table = find_table("3")
    both = ["table1/svhn-500/pi-model", "table1/svhn-500/mean-teacher"]
    assert recipe_names(table, cell="svhn-500") == both
    assert recipe_names(table, cell="svhn-500/pi-model") == both[:1]
    assert len(recipe_names(table, cell="mean-teacher")) == 3
    assert recipe_names(find_table("1"), cell="table1") == recipe_names(find_table("1"))
    assert recipe_names(find_figure("4d"), cell="decay-0.99") == ["figure4d/decay-0.99"]


def test_cell_that_does_not_exist_gets_the_nearest_names():
    with pytest.raises(InputError, match=r"no cell 'svhn-500/mean-techer'.*Did you mean.*svhn-500/mean-teacher"):
        recipe_names(find_table("1"), cell="svhn-500/mean-techer")
    with pytest.raises(InputError, match="no cell 'svhn'"):
        recipe_names(find_table("1"), cell="svhn")


@pytest.mark.parametrize(("find", "name", "known"), [(find_table, "6", "1, 2, 3, 4, 5"), (find_figure, "4", "4a")])
def test_place_that_the_paper_does_not_have_gets_those_that_it_has(find, name: str, known: str):
    with pytest.raises(InputError, match=known):
        find(name)


def test_recipes_own_seeds_are_run_or_as_many_as_are_wanted(tmp_path: Path):
    def seeds(n: int | None) -> list[int]:
        return [run.seed for run in runs_of([NAME], seeds=n, out=tmp_path)]

    assert seeds(None) == list(RECIPES[NAME].seeds)
    assert seeds(2) == [0, 1]
    assert seeds(12) == list(range(12))


@pytest.mark.parametrize("n", [0, -1])
def test_no_seeds_are_refused(n: int, tmp_path: Path):
    with pytest.raises(InputError, match="seeds"):
        runs_of([NAME], seeds=n, out=tmp_path)


def test_first_seed_of_every_recipe_comes_before_the_second_of_any(tmp_path: Path):
    names = ["table1/svhn-500/mean-teacher", "figure3/svhn-500/pi-model", "table1/svhn-all/mean-teacher"]
    made = runs_of(names, out=tmp_path)
    assert [run.name for run in made[:3]] == names
    assert [run.seed for run in made] == sorted(run.seed for run in made)
    assert len(made) == sum(len(RECIPES[name].seeds) for name in names)


def test_preset_takes_the_authors_settings_where_they_differ(tmp_path: Path):
    without = "table1/svhn-500/gan"
    assert f"{without}/as-coded" not in RECIPES
    names = [run.name for run in runs_of([NAME, without], seeds=1, preset="as-coded", out=tmp_path)]
    assert names == [f"{NAME}/as-coded", without]


def test_preset_with_a_typing_error_is_refused_before_anything_runs(tmp_path: Path):
    with pytest.raises(InputError, match="as-coded"):
        runs_of([NAME], preset="as-codded", out=tmp_path)  # type: ignore[arg-type]


def test_laptop_run_has_a_folder_of_its_own(tmp_path: Path):
    whole, laptop = runs_of([NAME, f"{LAPTOP}{NAME}"], seeds=1, out=tmp_path)
    assert whole.folder == tmp_path / NAME / "seed-0"
    assert laptop.folder == tmp_path / "laptop" / NAME / "seed-0"
    assert laptop.arguments()[:2] == ["run", f"laptop/{NAME}"]


@pytest.mark.parametrize(("find", "name", "known"), [(find_table, "5", "1, 2"), (find_table, "cifar10-250", "1, 2")])
def test_place_without_a_laptop_version_gets_those_with_one(find, name: str, known: str):
    assert find(name)
    with pytest.raises(InputError, match=f"no laptop version of table {name}; there is one of: {known}"):
        find(name, laptop=True)


def test_runs_are_told_apart_and_can_be_keys(tmp_path: Path):
    made = [_run(tmp_path), _run(tmp_path, 1), _run(tmp_path / "other")]
    assert len(set(made)) == 3
    assert _run(tmp_path) == made[0]
    assert hash(_run(tmp_path)) == hash(made[0])


def test_state_follows_what_is_in_the_folder(tmp_path: Path):
    run = _run(tmp_path)
    assert run.state() == "missing"
    assert not run.folder.exists()
    run.folder.mkdir(parents=True)
    with held_by_another_process(run.folder / ".lock"):
        assert run.state() == "running"
    assert run.state() == "missing"
    (run.folder / "run.json").write_text("{}")
    assert run.state() == "started"
    with held_by_another_process(run.folder / ".lock"):
        assert run.state() == "running"
    assert run.state() == "started"


def test_run_with_a_record_is_complete(tmp_path: Path):
    run = _run(tmp_path)
    _record(run)
    assert run.state() == "complete"
    assert _run(tmp_path, 1).state() == "missing"


def test_record_of_another_version_of_the_recipe_is_refused(tmp_path: Path):
    run = _run(tmp_path)
    changed = run.recipe.varied(steps=run.recipe.training.steps + 1)
    _record(run, of=fingerprint(changed))
    with pytest.raises(InputError, match=r"another version of digits/supervised.*--out"):
        run.state()
    assert replace(run, recipe=changed).state() == "complete"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"recipe": 3}', "\x80"])
def test_damaged_record_is_an_input_error_that_names_the_file(content: str, tmp_path: Path):
    run = _run(tmp_path)
    _record(run)
    run.record.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"record\.json: "):
        run.state()


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ("", 0),
        ('{"step": 7}\n', 7),
        ('{"step": 7}\n{"step": 9, "ev', 7),
        ('{"step": 7}\n{"event": "alarm"}\n', 7),
        ("[1]\nnull\n", 0),
        ('{"step": 1, "x": "' + "y" * 9000 + '"}\n', 0),
        ('{"step": 1, "x": "' + "y" * 9000 + '"}\n{"step": 4}\n', 4),
    ],
)
def test_steps_done_are_read_from_the_last_whole_line(content: str, step: int, tmp_path: Path):
    run = _run(tmp_path)
    run.folder.mkdir(parents=True)
    assert run.steps_done() == 0
    (run.folder / "metrics.jsonl").write_text(content)
    assert run.steps_done() == step


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that computes 10⁹ operations per second."""
    monkeypatch.setattr(runs, "_operations_per_second", lambda device: 1e9)


def _seconds(tmp_path: Path, *names: str) -> dict[str, float]:
    return runs.estimated_seconds(runs_of(names, seeds=2, out=tmp_path), device="cpu")


@pytest.mark.usefixtures("speed")
def test_time_of_a_run_is_that_of_the_operations_of_its_steps(tmp_path: Path):
    training = RECIPES[f"{LAPTOP}{NAME}"].training
    problem = Problem(n_classes=10, n_examples=50_000, input_shape=(3, 32, 32))
    expected = training.steps * training.batch.size * row_operations(training, problem) / 1e9
    assert _seconds(tmp_path, f"{LAPTOP}{NAME}") == {f"{LAPTOP}{NAME}": pytest.approx(expected)}


@pytest.mark.usefixtures("speed")
def test_equal_work_takes_equal_time(tmp_path: Path):
    """The labels, the weight of a cost and the preset change no operation of a step."""
    labels = [f"table1/svhn-{n}/mean-teacher" for n in (250, 500, 1000, "all")]
    seconds = _seconds(tmp_path, *labels, "figure4c/weight-3", "figure4d/decay-0", "figure4/evaluation")
    assert len(set(seconds.values())) == 1
    half = RECIPES["table1/svhn-250/pi-model"].training.steps / RECIPES["table1/svhn-500/pi-model"].training.steps
    pi = _seconds(tmp_path, "table1/svhn-250/pi-model", "table1/svhn-500/pi-model")
    assert pi["table1/svhn-250/pi-model"] == pytest.approx(half * pi["table1/svhn-500/pi-model"])


@pytest.mark.usefixtures("speed")
def test_a_method_with_more_passes_takes_longer(tmp_path: Path):
    """Forward and backward are three passes; the teacher adds one, the Pi model doubles them."""
    start = f"{LAPTOP}table1/svhn-500"
    seconds = list(
        _seconds(tmp_path, *(f"{start}/{name}" for name in ("supervised", "mean-teacher", "pi-model"))).values()
    )
    rows = [32, 128, 128]
    per_row = [each / n for each, n in zip(seconds, rows, strict=True)]
    assert per_row[1] / per_row[0] == pytest.approx(4 / 3, rel=0.1)
    assert per_row[2] / per_row[0] == pytest.approx(2)


@pytest.mark.usefixtures("speed")
def test_operations_of_every_recipe_are_counted_once_per_network_and_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counted = []
    monkeypatch.setattr(runs, "row_operations", lambda training, problem: counted.append(problem.input_shape) or 1.0)
    names = [name for place in PLACES.values() for name in recipe_names(place)]
    seconds = _seconds(tmp_path, *names)
    assert seconds == {
        name: pytest.approx(RECIPES[name].training.steps * RECIPES[name].training.batch.size / 1e9) for name in names
    }
    assert len(counted) < len(seconds) / 4
    assert counted.count((3, 224, 224)) == 1


@pytest.mark.parametrize(
    "name",
    ["table1/svhn-500/gan", "table1/svhn-500/vat-entmin", "table1/svhn-500/temporal-ensembling", "figure4e/distance-1"],
)
def test_other_systems_can_be_counted(name: str, tmp_path: Path):
    assert _seconds(tmp_path, name)[name] > 0


class _Computed(TorchDispatchMode):
    """The shapes of all drawn tensors, and of the outputs of all convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[torch.Size] = []
        self.convolved: list[torch.Size] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        if name in ("normal_", "uniform_", "randn", "rand"):
            self.drawn.append(output.shape)
        elif name == "convolution":
            self.convolved.append(output.shape)
        return output


@pytest.mark.parametrize("name", ["table1/svhn-500/vat-entmin", "table4/imagenet-10/mean-teacher-resnet"])
def test_counting_computes_no_more_than_a_channel_and_draws_no_large_network(name: str):
    with _Computed() as computed:
        row_operations(RECIPES[name].training, Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32)))
    assert {shape[1] for shape in computed.convolved} == {1}
    if "resnet" in name:
        assert not computed.drawn


def test_work_of_a_network_of_the_methods_own_is_counted():
    """A generator's layers take operations that the student's do not."""
    gan = RECIPES["table1/svhn-500/gan"].training
    supervised = replace(gan, method=RECIPES["table1/svhn-500/supervised"].training.method)
    problem = Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32))
    assert row_operations(gan, problem) > 2 * row_operations(supervised, problem)


def test_speed_of_this_machine_is_measured_and_finite():
    assert 1e6 < runs._operations_per_second(torch.device("cpu")) < 1e15
