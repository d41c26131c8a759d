"""Each example runs, and does what it says."""

import copy
import csv
import dataclasses
import html
import importlib.util
import inspect
import json
import pickle
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import example_record
from meanteacher import api
from meanteacher import testing as contract
from meanteacher.cli.app import app
from meanteacher.core import Batch, Problem
from meanteacher.experiment import run
from meanteacher.files.images import decode
from meanteacher.models import FastNetSpec, MlpSpec
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher
from meanteacher.views import PerChannel
from support import DECAY, SHAPE, SmallNet, parameters_of, recipe

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
    """Over five draws of points, labels and noise: 1.4 % with the consistency cost and 8.8 % without it, measured."""
    main = _load("own_loop").main
    with_consistency, without = (
        statistics.mean(main(seed=seed, weight=weight) for seed in range(5)) for weight in (50.0, 0.0)
    )
    assert with_consistency < 0.04
    assert with_consistency < 0.6 * without


def test_own_method_takes_thirty_lines_and_holds_to_the_contract(tmp_path: Path):
    """One file outside the package, no registration: it trains through a recipe like any other."""
    path = ROOT / "examples" / "own_method.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30
    method = _load("own_method").Interpolation(decay=Constant(DECAY), buffers="own", weight=Constant(2.0))
    images_too = recipe().varied(views={role: Flattened() for role in ("student", "teacher")}, method=method)
    outcome = run(
        images_too.varied(model=MlpSpec(hidden=(16,))),
        seed=0,
        out=tmp_path / "run",
        data=images_too.data.source.load(tmp_path),
    )
    assert outcome.record is not None
    assert outcome.record.method == "Interpolation"
    assert outcome.record.alarms == ()
    gradients = outcome.record.vitals[-1].gradients
    assert set(gradients) == {"classification", "consistency"}
    assert all(norm > 0 for norm in gradients.values())


def test_own_method_trains_on_images_and_mixes_each_with_one_other():
    """As many images as rows of pixels: a share per image would fit the rows of pixels as well."""
    method = _load("own_method").Interpolation(decay=DECAY, buffers="own", weight=2.0)
    contract.check_method(method)
    seen: list[Tensor] = []
    student = SmallNet().eval()
    student.register_forward_pre_hook(lambda network, inputs: seen.append(inputs[0]))
    images = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(0))
    batch = Batch(dict.fromkeys(method.roles, images), torch.tensor([0, 1, 2, -1, -1, -1]), torch.arange(6))
    torch.manual_seed(0)
    method.forward(student, Teacher(student).eval(), batch, 0)
    mixed = seen[-1].flatten(1)
    for own, image in zip(images.flatten(1), mixed, strict=True):
        apart = []
        for other in images.flatten(1):
            share = ((image - other) @ (own - other) / (own - other).square().sum().clamp_min(1e-9)).clamp(0, 1)
            apart.append(float((image - torch.lerp(other, own, share)).abs().max()))
        assert min(apart) < 1e-5
    assert not torch.allclose(mixed, images.flatten(1))


def test_own_recipe_runs_by_the_command_of_its_docstring(tmp_path: Path):
    """From the command line and from Python alike, and each recipe in it."""
    path = ROOT / "examples" / "own_recipe.py"
    (command,) = re.findall(r"^    meanteacher (.*)$", _load("own_recipe").__doc__ or "", flags=re.M)
    words = [*shlex.split(command), "--out", str(tmp_path / "run"), "--set", "steps=20"]
    done = CliRunner().invoke(app, [str(ROOT / word) if word.startswith("examples/") else word for word in words])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (record["recipe"]["name"], record["steps"]) == ("own/digits+steps=20", 20)
    assert record["alarms"] == []
    again = api.run(api.load_recipe(f"{path}:less_noise").varied(steps=20), out=tmp_path / "again")
    assert again.recipe.name == "own/digits-less-noise"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model as `fit` leaves it, and as `export` writes it."""
    folder = tmp_path_factory.mktemp("shipped")
    images = torch.stack([torch.from_numpy(decode(path, 16).copy()).permute(2, 0, 1) for path in _pictures(folder)])
    spec = FastNetSpec(width=0.125)
    torch.manual_seed(0)
    network = spec.build(Problem(3, 1, (3, 16, 16)))
    normalise = PerChannel().fit(images)
    network.initialise_from(normalise(images))
    for _ in range(50):  # until the running statistics are those of the images
        network(normalise(images))
    with torch.no_grad():
        network.head.weight.mul_(5)
    parts = {"spec": spec, "normaliser": PerChannel()}
    Classifier(network.eval(), normalise, ("cat", "dog", "owl"), 16, 1.3, {}, **parts).save(folder / "m")
    return folder / "m", load(folder / "m").export(folder / "model.onnx")


def _pictures(folder: Path) -> list[Path]:
    """Of every kind that is read in its own way: scaled while it is decoded, lying, transparent, with a palette."""
    draws = np.random.default_rng(0)
    kinds = [("RGB", "jpg", (300, 200)), ("RGB", "jpg", (67, 131)), ("L", "jpg", (90, 70)), ("RGB", "png", (61, 40))]
    kinds += [("RGBA", "png", (50, 50)), ("P", "png", (45, 80)), ("RGB", "png", (9, 7)), ("RGB", "webp", (80, 60))]
    paths = []
    for n in range(3 * len(kinds)):
        mode, suffix, size = kinds[n % len(kinds)]
        # Coarse patches over fine noise: both survive the resizing to some extent.
        patches = Image.fromarray(draws.integers(0, 256, (5, 5, 4), dtype=np.uint8), "RGBA").resize(size)
        noise = Image.fromarray(draws.integers(0, 256, (*size[::-1], 4), dtype=np.uint8), "RGBA")
        picture = Image.blend(patches, noise, 0.4).convert(mode)
        exif = Image.Exif()
        exif[0x0112] = 1 + n % 8
        paths.append(folder / f"{n:02d}.{suffix}")
        picture.save(paths[-1], **({"exif": exif} if suffix == "jpg" else {}))
    return paths


def _labels(model: Path, paths: list[Path]) -> list[str]:
    """What the example prints, in a process that has neither meanteacher nor torch."""
    script = (
        "import runpy, sys\nsys.modules['torch'] = sys.modules['meanteacher'] = None\n"
        "del sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", script, ROOT / "examples" / "predict_with_onnx.py", model, *paths]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [path for path, *_ in rows] == [str(path) for path in paths]
    return [f"{label} {float(probability):.2f}" for _, label, probability in rows]


def _renamed(model: Path, out: Path, **changes: object) -> Path:
    """The same file with other metadata."""
    import onnx

    proto = onnx.load(model)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    onnx.helper.set_model_props(proto, about | {key: json.dumps(value) for key, value in changes.items()})
    onnx.save(proto, out)
    return out


def test_predict_with_onnx_gives_the_labels_of_predict(shipped: tuple[Path, Path], tmp_path: Path):
    model, exported = shipped
    (tmp_path / "photos").mkdir()
    paths = _pictures(tmp_path / "photos")
    load(model).predict(tmp_path / "photos", out=tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    # Clear enough for two programs that add in another order to agree on every one.
    assert min(float(row["confidence"]) - float(row["second_confidence"]) for row in rows) > 0.002
    assert len({row["guess"] for row in rows}) > 1
    got = _labels(exported, paths)
    assert [label.split()[0] for label in got] == [row["guess"] for row in rows]
    confidences = [float(row["confidence"]) for row in rows]
    assert [float(label.split()[1]) for label in got] == pytest.approx(confidences, abs=0.011)
    # It goes by what the file says: with another filter or background the images are others.
    nearest = _renamed(exported, tmp_path / "nearest.onnx", resize_filter="nearest")
    assert _labels(nearest, paths) != got
    assert _labels(_renamed(exported, tmp_path / "black.onnx", background="black"), paths) != got
    names = _renamed(exported, tmp_path / "names.onnx", class_names=["one", "two", "three"])
    assert {label.split()[0] for label in _labels(names, paths)} <= {"one", "two", "three"}


def test_use_model_prints_a_label_for_every_image(
    shipped: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "photos").mkdir()
    paths = _pictures(tmp_path / "photos")
    (tmp_path / "photos" / "broken.png").write_bytes(b"")
    _load("use_model").main(str(shipped[0]), str(tmp_path / "photos"))
    rows = {name: rest for name, *rest in (line.split("\t") for line in capsys.readouterr().out.splitlines())}
    assert rows.keys() == {path.name for path in paths} | {"broken.png"}
    assert rows.pop("broken.png") == ["empty", "nan"]
    model = load(shipped[0])
    probabilities = model.predict_proba(paths)
    assert [label for label, _ in rows.values()] == [model.class_names[k] for k in probabilities.argmax(1)]
    assert [float(p) for _, p in rows.values()] == pytest.approx(probabilities.max(1).tolist(), abs=1e-4)


def test_predict_with_onnx_sees_the_very_pixels(shipped: tuple[Path, Path], tmp_path: Path, monkeypatch):
    """Not nearly the same: bytes that differ by one are another image."""
    example = _load("predict_with_onnx")
    seen: list[np.ndarray] = []

    class Session(onnxruntime.InferenceSession):
        def run(self, names: list[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
            seen.append(given["images"][0])
            return super().run(names, given)

    monkeypatch.setattr(example.onnxruntime, "InferenceSession", Session)
    paths = _pictures(tmp_path)
    example.main(str(shipped[1]), *map(str, paths))
    for path, pixels in zip(paths, seen, strict=True):
        assert np.array_equal(pixels.transpose(1, 2, 0), decode(path, 16)), path.name


def test_online_follows_the_drift_that_a_frozen_model_misses(tmp_path: Path):
    """A quarter of the stream's length; the frozen model has both classes exchanged at the end."""
    errors = _load("online").main(tmp_path, seeds=(0, 1), steps=200)
    after = {model: statistics.mean(by_part["after"]) for model, by_part in errors.items()}
    assert after["frozen"] > 0.6
    assert after["Mean Teacher"] < 0.5 * after["frozen"]
    assert after["supervised-only"] < 0.5 * after["frozen"]
    assert errors["frozen"]["before"] == errors["Mean Teacher"]["before"]
    assert json.loads((tmp_path / "online.json").read_text())["errors"] == errors
    picture = (tmp_path / "online.svg").read_text(encoding="utf-8")
    assert all(f">{model}</text>" in picture for model in errors)


def test_online_folder_continues_with_the_next_file_after_a_kill(tmp_path: Path):
    """Killed after its fourth file, of which a checkpoint holds two: the next process ends with the same weights."""
    example = _load("online_folder")
    rows = torch.Generator().manual_seed(0)
    for inbox in ("whole", "killed"):
        (tmp_path / inbox).mkdir()
    for k in range(6):
        arrays = {"images": torch.randn(8, 2, generator=rows).numpy(), "labels": np.arange(8) % 3 - 1}
        for inbox in ("whole", "killed"):
            np.savez(tmp_path / inbox / f"{k}.npz", **arrays)
    whole = example.main(tmp_path / "whole", tmp_path / "one", patience=0)
    assert (whole.n_steps, list((tmp_path / "whole").iterdir())) == (6, [])

    killed, steps = example.trainer(), []

    def stop(done: object) -> None:
        steps.append(done)
        if len(steps) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed.follow(example.Inbox(tmp_path / "killed"), folder=tmp_path / "other", save_every=2, on_step=stop)
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == [f"{k}.npz" for k in range(2, 6)]
    resumed = example.main(tmp_path / "killed", tmp_path / "other", patience=0)
    assert (resumed.n_steps, list((tmp_path / "killed").iterdir())) == (6, [])
    points = torch.randn(16, 2, generator=rows)
    assert torch.equal(resumed.predict_proba(points), whole.predict_proba(points))


def test_the_numbers_of_online_learning_on_the_page_are_those_of_its_record():
    docs = ROOT / "docs"
    record = json.loads((docs / "online.json").read_text(encoding="utf-8"))
    page = (docs / "scale.md").read_text(encoding="utf-8").partition("## On-line learning\n")[2].partition("\n## ")[0]
    example = inspect.signature(_load("online").main).parameters
    assert (tuple(record["seeds"]), record["steps"]) == (example["seeds"].default, example["steps"].default)
    assert len(record["seeds"]) == 5
    for model, by_part in record["errors"].items():
        cells = [f"{100 * statistics.mean(e):.1f} ± {100 * statistics.stdev(e):.1f}" for e in by_part.values()]
        assert f"| {model} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize(("example", "seed", "nothing_learnt"), [("segmentation", 3, 0.7), ("tokens", 4, 0.6)])
def test_dense_examples_learn_more_with_the_rows_without_labels(example: str, seed: int, nothing_learnt: float):
    """The whole run of one seed, where the record has a gain of more than a third."""
    errors = {name: of_seeds[0] for name, of_seeds in _load(example).main(seeds=(seed,)).items()}
    assert errors["supervised-only"] < 0.7 * nothing_learnt
    assert errors["Mean Teacher"] < 0.9 * errors["supervised-only"]


DENSE = json.loads(example_record.RECORD.read_text(encoding="utf-8"))["examples"]


def test_numbers_of_the_dense_examples_on_the_page_are_those_of_their_record():
    page = (ROOT / "docs" / "own-module.md").read_text(encoding="utf-8")
    assert set(DENSE) == {"segmentation", "tokens"}
    for example, runs in DENSE.items():
        expected = inspect.signature(_load(example).main).parameters
        assert (tuple(runs["seeds"]), runs["steps"]) == (expected["seeds"].default, expected["steps"].default)
        assert len(runs["seeds"]) == 5
        assert example_record.row(example, runs) in page
        assert runs["seconds_per_run"] < 60


@pytest.mark.parametrize("example", DENSE)
def test_dense_examples_gain_more_than_two_standard_errors_on_their_twins(example: str):
    mean, error = example_record.gain(DENSE[example])
    assert mean < -2 * error


@pytest.mark.parametrize("fault", [loop.__name__ for loop in _load("silent_failures").LOOPS])
@pytest.mark.filterwarnings("ignore:Step:RuntimeWarning")
def test_silent_failure_is_named_by_its_alarm_and_by_no_other(fault: str):
    (loop, kind), *_ = [entry for entry in _load("silent_failures").LOOPS.items() if entry[0].__name__ == fault]
    assert [alarm.kind for alarm in loop().train().alarms] == ([] if kind is None else [kind])


FRAMEWORKS = {
    "lightning_module": "lightning",
    "accelerate_loop": "accelerate",
    "transformers_trainer": "transformers",
    "skorch_net": "skorch",
}
"""Example -> the library it needs. Libraries of their own accord warn about much."""


def _teacher_in(part: object) -> Teacher:
    return part if isinstance(part, Teacher) else getattr(part, "module_", part).teacher


@pytest.mark.parametrize("example", FRAMEWORKS)
@pytest.mark.filterwarnings("ignore")
def test_example_of_a_framework_learns_two_moons_from_six_labels(example: str):
    pytest.importorskip(FRAMEWORKS[example])
    error, part, *_ = _load(example).main(**({"cpu": True} if example == "accelerate_loop" else {}))
    assert error < 0.2
    assert _teacher_in(part).n_updates == 400
    watch = getattr(part, "watch", getattr(part, "watch_", None))
    assert watch is None or watch.alarms == ()


@pytest.mark.parametrize("example", FRAMEWORKS)
@pytest.mark.filterwarnings("ignore")
def test_teacher_of_a_framework_follows_every_step_and_not_every_batch(example: str):
    """Ten batches per epoch, two of them per step."""
    pytest.importorskip(FRAMEWORKS[example])
    length = {"steps": 10} if example == "transformers_trainer" else {"epochs": 2}
    cpu = {"cpu": True} if example == "accelerate_loop" else {}
    _, part, *_ = _load(example).main(**length, **cpu, accumulate=2)
    assert _teacher_in(part).n_updates == 10


@pytest.mark.parametrize("example", FRAMEWORKS)
@pytest.mark.filterwarnings("ignore")
def test_checkpoint_of_a_framework_holds_the_teacher(example: str, tmp_path: Path):
    pytest.importorskip(FRAMEWORKS[example])
    module = _load(example)
    if example == "transformers_trainer":
        _, whole = module.main(steps=40)
        module.main(steps=20, folder=str(tmp_path))
        _, resumed = module.main(steps=40, folder=str(tmp_path), resume=True)
        assert resumed.teacher.n_updates == 40
        assert torch.equal(parameters_of(resumed.teacher), parameters_of(whole.teacher))
        return
    _, part, *rest = module.main(epochs=1, **({"cpu": True} if example == "accelerate_loop" else {}))
    trained = parameters_of(_teacher_in(part))
    if example == "lightning_module":
        rest[0].save_checkpoint(tmp_path / "saved.ckpt")
        state = torch.load(tmp_path / "saved.ckpt", weights_only=False)["state_dict"]
        part = module.MeanTeacherModule(copy.deepcopy(part.student))
        part.load_state_dict(state)
    elif example == "accelerate_loop":
        rest[0].save_state(tmp_path)
        with torch.no_grad():
            next(part.parameters()).zero_()
        part.n_updates = 0
        rest[0].load_state(tmp_path)
    else:
        part = pickle.loads(pickle.dumps(part))
    assert torch.equal(parameters_of(_teacher_in(part)), trained)
    assert _teacher_in(part).n_updates == 10


def test_every_example_has_a_test():
    tests = (Path(__file__), Path(__file__).with_name("test_docs.py"))
    tested = "".join(path.read_text(encoding="utf-8") for path in tests)
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.stem}"' in tested


@pytest.mark.parametrize("where", ["page", "card"])
def test_python_of_the_report_and_of_the_model_card_labels_a_photo(
    shipped: tuple[Path, Path],
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    from fit_example import NO_PLOTS, as_fit, fit_example
    from meanteacher.photos.pages.fit_page import fit_page
    from meanteacher.photos.pages.model_card import model_card

    fit = as_fit(fit_example(folder=str(shipped[0]), **NO_PLOTS))
    if where == "page":
        (code,) = re.findall(r'<pre class="python"><code>(.*?)</code>', fit_page(fit), flags=re.S)
    else:
        (code,) = re.findall(r"```python\n(.*?)```", model_card(fit), flags=re.S)
    (tmp_path / "DIR").symlink_to(shipped[0], target_is_directory=True)  # as the card calls its own folder
    _pictures(tmp_path)[0].rename(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(html.unescape(code), {})
    assert re.search(r"\b(cat|dog|owl)\b", capsys.readouterr().out)
