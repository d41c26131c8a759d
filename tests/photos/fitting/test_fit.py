"""The whole of `meanteacher fit`, on made-up photos and tiny networks."""

import csv
import dataclasses
import json
import shutil
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from backbone_support import small_networks
from meanteacher.cli import fit as commands
from meanteacher.cli.app import app
from meanteacher.core import InputError, Interrupted, MissingBackboneError
from meanteacher.distributed import Ranks
from meanteacher.photos.fitting import data, pretrained, scratch
from meanteacher.photos.fitting import fit as fitting
from meanteacher.photos.fitting import work as working
from meanteacher.photos.fitting.fit import fit
from meanteacher.photos.fitting.work import Work
from meanteacher.photos.folder import groups
from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.model.bundle import load
from meanteacher.records import WorkRecord
from meanteacher.train import Callback
from pretend_gpu import NAME, pretend_gpu
from support import held_by_another_process

COLOURS = {"blue": (30, 60, 220), "green": (30, 190, 60), "red": (220, 40, 30)}
FILES = ("model/weights.safetensors", "model/seen.bin", "predictions.csv", "label-next.csv")


def run_fit(given: dict[str, Any], callback: Callback) -> dict[str, Any]:
    """The content of fit.json that a fit with these options leaves."""
    fit(**given, callback=callback)
    content: dict[str, Any] = json.loads((given["out"] / "fit.json").read_text())
    return content


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small_networks(patch)
        # All photos of a colour look as if they showed one thing.
        patch.setattr(data, "find_groups", lambda photos, near, *_, **__: near)
        patch.setattr(scratch, "_TRIAL_STEPS", 3)
        patch.setattr(scratch, "_length", lambda *given: (0.125, 4, 5))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colours: 5 labelled images of each, 20 without a label, and one file that is no image."""
    root = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    for colour in COLOURS:
        for number in range(5):
            _paint(root / colour / f"{number}.png", colour, draws)
    for number in range(20):
        _paint(root / "unlabelled" / f"{number:02}.png", list(COLOURS)[number % 3], draws)
    (root / "unlabelled" / "broken.jpg").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="module")
def loose(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos in folders that are no classes beside a labels file."""
    root = shutil.copytree(photos, tmp_path_factory.mktemp("loose") / "photos")
    (root / "unlabelled").rename(root / "others")
    return root


def _labels(path: Path, given: dict[str, str]) -> Path:
    path.write_text("path,label\n" + "".join(f"{name},{label}\n" for name, label in given.items()))
    return path


def _paint(path: Path, colour: str, draws: np.random.Generator, side: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.array(COLOURS[colour]) + draws.normal(scale=25, size=(side, side, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


class Recorder(Callback):
    """Remembers what it is told, and stops when asked for the n-th time."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.messages: list[str] = []
        self.tasks: list[str] = []
        self.asked = 0
        self._left = stop_after

    def on_message(self, sentence: str) -> None:
        self.messages.append(sentence)

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.tasks.append(task)

    def should_stop(self) -> bool:
        self.asked += 1
        return self._left is not None and self.asked > self._left


def config(photos: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {"photos": photos, "out": out, "minutes": 600.0, **changes}


def interrupt(given: dict[str, Any], *, after: int) -> None:
    with pytest.raises(Interrupted, match=r"resume=True \(--resume\)"):
        run_fit(given, Recorder(stop_after=after))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))


def same_files(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def fitted(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fits") / "fit"
    run_fit(config(photos, out), Recorder())
    return out


@pytest.fixture(scope="module")
def from_scratch(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fits") / "fit"
    run_fit(config(photos, out, backbone="none"), Recorder())
    return out


# --- what it leaves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [0.3, 0.999, 0.0, -5.0, float("nan"), float("inf")])
def test_too_few_minutes_are_refused_before_anything_is_read(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"minutes \(--minutes\) must be at least 1"):
        fit(tmp_path / "nowhere", minutes=minutes, out=tmp_path / "fit")
    assert not (tmp_path / "fit").exists()


def test_everything_that_is_promised_is_left_in_the_folder(fitted: Path) -> None:
    names = {path.name for path in fitted.iterdir()}
    assert names >= {"model", "predictions.csv", "label-next.csv", "report.html", "MODEL_CARD.md", "fit.json"}
    content = json.loads((fitted / "fit.json").read_text())
    assert content["data"]["n_images"] == 36
    assert [content["data"][f"n_{what}"] for what in ("labelled", "unlabelled", "unreadable")] == [15, 20, 1]
    assert (content["estimate"]["n"], content["estimate"]["wrong"]) == (15, 0)
    assert content["headline"].startswith("0 of 15 test photos were wrong; it may be up to ")
    assert content["headline"].endswith("Next: label these 20.")
    assert content["network"] == "EfficientNet-Lite0 and EfficientNet-Lite2"
    assert content["n_views"] == 6
    assert [row["share"] for row in content["per_class"]] == pytest.approx([1 / 3] * 3, abs=0.1)


def test_decoded_photos_are_deleted_and_features_kept(fitted: Path) -> None:
    assert not list((fitted / "cache").glob("images-*"))
    assert len(list((fitted / "cache" / "features").iterdir())) == 12


def test_predictions_have_a_row_for_each_image_and_never_an_answer_that_the_label_taught(
    fitted: Path, photos: Path
) -> None:
    rows = table(fitted / "predictions.csv")
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*"))
    assert [row["path"] for row in rows] == names
    for row in rows:
        folder = row["path"].partition("/")[0]
        assert row["given"] == ("" if folder == "unlabelled" else folder)
        assert bool(row["guess"]) != bool(row["problem"])


def test_the_answer_for_a_labelled_photo_does_not_know_its_label(loose: Path, tmp_path: Path) -> None:
    """One red photo is labelled blue: a model that had learned from the label would agree with it."""
    given = {f"{colour}/{k}.png": colour for colour in COLOURS for k in range(5)} | {"red/0.png": "blue"}
    labels = _labels(tmp_path / "labels.csv", given)
    content = run_fit(config(loose, tmp_path / "fit", labels=labels), Recorder())
    (row,) = (row for row in table(tmp_path / "fit" / "predictions.csv") if row["path"] == "red/0.png")
    assert (row["given"], row["guess"]) == ("blue", "red")
    assert float(row["doubt"]) >= 0.5
    shown = content["gallery"]["disagreements"]
    assert [picture["reason"] for picture in shown if picture["name"] == "red/0.png"] == [
        "labelled blue, looks like red"
    ]


def test_what_to_label_next_is_unlabelled_and_readable(fitted: Path) -> None:
    asked = [row["path"] for row in table(fitted / "label-next.csv")]
    assert len(asked) == 20
    assert all(name.startswith("unlabelled/") and name != "unlabelled/broken.jpg" for name in asked)


def test_the_shipped_model_gives_the_answers_for_unlabelled_photos(fitted: Path, photos: Path) -> None:
    rows = [row for row in table(fitted / "predictions.csv") if row["guess"] and not row["given"]]
    model = load(fitted)
    found = model.predict_proba([photos / row["path"] for row in rows])
    for row, p in zip(rows, found, strict=True):
        assert float(row["confidence"]) == pytest.approx(p.max(), abs=2e-3)
        assert p[model.class_names.index(row["guess"])] == pytest.approx(p.max(), abs=2e-3)
    strangeness = model.predict([photos / row["path"] for row in rows]).strangeness
    np.testing.assert_allclose(strangeness, [float(row["strangeness"]) for row in rows], atol=0.02)


def test_the_model_of_two_networks_is_exported(fitted: Path, photos: Path, tmp_path: Path) -> None:
    model = load(fitted)
    model.export(tmp_path / "model.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    pixels = np.asarray(Image.open(photos / "red" / "0.png").resize((32, 32), Image.Resampling.BILINEAR))
    (found,) = session.run(None, {"images": pixels.transpose(2, 0, 1)[None]})
    assert model.class_names[found[0].argmax()] == "red"


def test_the_model_knows_the_images_that_taught_it(fitted: Path, photos: Path) -> None:
    seen = load(fitted).seen
    assert seen is not None
    assert (seen.n_labelled, seen.n_unlabelled) == (15, 20)
    pixels = np.asarray(Image.open(photos / "red" / "0.png").resize((32, 32), Image.Resampling.BILINEAR))
    assert seen.kinds([digest(np.ascontiguousarray(pixels.transpose(2, 0, 1)))]).tolist() == ["training"]


def test_without_unlabelled_photos_there_is_a_model_and_no_word_about_them(photos: Path, tmp_path: Path) -> None:
    some = tmp_path / "photos"
    for colour in COLOURS:
        shutil.copytree(photos / colour, some / colour)
    content = run_fit(config(some, tmp_path / "fit"), Recorder())
    assert content["helped"] is None
    assert "Next" not in content["headline"]
    assert table(tmp_path / "fit" / "label-next.csv") == []


def test_photos_that_belong_together_are_tested_together(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the red ones, all but one belong together, so that one of them is hard to tell without the others."""
    monkeypatch.setattr(data, "find_groups", groups.find_groups)
    labels = tmp_path / "labels.csv"
    rows = [f"{colour}/{k}.png,{colour},{colour if k < 4 else k}\n" for colour in COLOURS for k in range(5)]
    labels.write_text("path,label,thing\n" + "".join(rows))
    tested: list[set[int]] = []
    real = pretrained.cross_validated

    def note(features: Any, given: Any, n_classes: int, *, groups: Any, **options: Any) -> Any:
        tested.append(set(np.unique(groups[given >= 0], return_counts=True)[1].tolist()))
        return real(features, given, n_classes, groups=groups, **options)

    monkeypatch.setattr(pretrained, "cross_validated", note)
    run_fit(config(photos, tmp_path / "fit", labels=labels, group_by="thing"), Recorder())
    assert tested[0] == {3, 4}, "four of each colour, and the last ones of all three"


def test_one_label_per_class_gives_a_model_and_no_percentage(photos: Path, tmp_path: Path) -> None:
    some = shutil.copytree(photos, tmp_path / "photos")
    for colour in COLOURS:
        for number in range(1, 5):
            (some / colour / f"{number}.png").unlink()
    content = run_fit(config(some, tmp_path / "fit"), Recorder())
    assert content["headline"].startswith("How often it is right cannot be estimated from one label per class.")
    assert content["estimate"]["error"] is None
    assert content["calibration"] == {"temperature": 1.0, "before": 0.0, "after": 0.0, "bins": []}
    assert content["sure"][0]["error"] is None
    rows = {row["path"]: row for row in table(tmp_path / "fit" / "predictions.csv")}
    assert rows["red/0.png"]["guess"] == ""
    assert rows["unlabelled/00.png"]["guess"] == "blue"


# --- time -------------------------------------------------------------------------------------------------------------


def test_without_time_for_more_the_photos_themselves_give_the_model(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Work, "fits", lambda self, *seconds: False)
    content = run_fit(config(photos, tmp_path), Recorder())
    assert (content["network"], content["n_views"]) == ("EfficientNet-Lite0", 1)
    assert content["helped"] is None  # nothing was learned from the unlabelled photos
    assert load(tmp_path).predict(photos / "red" / "0.png")[0] == "red"


def test_a_view_that_does_not_finish_in_time_is_not_used(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretrained.Pretrained._extracted

    def slow(self: Any, network: Any, view: str, order: Any, *, ends: float) -> Any:
        return real(self, network, view, order, ends=0.0 if view == "crop" else ends)

    monkeypatch.setattr(pretrained.Pretrained, "_extracted", slow)
    content = run_fit(config(photos, tmp_path), Recorder())
    assert content["n_views"] == 2


def test_two_networks_are_expected_to_take_twice_as_long_to_learn_from_as_one(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise features are computed for a head whose tests come too late, and none of them is used."""
    asked: list[tuple[float, ...]] = []
    monkeypatch.setattr(Work, "took", lambda self, name: {"head": 10.0, "tests": 20.0}.get(name, 0.0))
    monkeypatch.setattr(Work, "fits", lambda self, *seconds: asked.append(seconds) or True)
    run_fit(config(photos, tmp_path), Recorder())
    first, first_tests, *steps, last, last_tests = asked
    assert (first[:2], first_tests[0]) == ((10.0, 20.0), 20.0)
    assert len(steps) == 6, "the second network, then five views by both"
    assert {seconds[-1] for seconds in steps} == {60.0}
    assert (last[:2], last_tests[0]) == ((20.0, 40.0), 40.0)


def test_photos_that_were_not_reached_in_time_have_no_answer_and_the_labelled_ones_come_first(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretrained.Pretrained.look_at
    monkeypatch.setattr(
        pretrained.Pretrained, "look_at", lambda self, rows, **options: real(self, rows[: options.pop("n", 25)])
    )
    run_fit(config(photos, tmp_path / "fit"), Recorder())
    rows = table(tmp_path / "fit" / "predictions.csv")
    late = [row for row in rows if row["problem"] == "not reached in the given minutes"]
    assert len(late) == 10
    assert all(row["path"].startswith("unlabelled/") and not row["guess"] for row in late)


@pytest.mark.parametrize(
    ("reached", "advice"),
    [
        # Reading takes a minute for any number of labels; 7 of 15 take 14 seconds: (60 + 30) / 0.7 seconds.
        (7, r"Set minutes \(--minutes\) to at least 3\."),
        (0, r"Set minutes \(--minutes\) to a larger number, or end other programs: none of the images was reached\."),
    ],
)
def test_too_little_time_for_the_labelled_photos_names_minutes_that_would_do_or_none(
    reached: int, advice: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretrained.Pretrained.look_at
    monkeypatch.setattr(pretrained.Pretrained, "look_at", lambda self, rows, **options: real(self, rows[:reached]))
    monkeypatch.setattr(Work, "spent", lambda self: 74.0 if "reading" in self.record.pieces else 60.0)
    with pytest.raises(
        InputError, match=rf"^The time \(--minutes 1\) is too short for 15 labelled images on .* load\. {advice}$"
    ):
        run_fit(config(photos, tmp_path, minutes=1), Recorder())


def test_a_later_model_that_is_clearly_worse_does_not_replace_the_first(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretrained.Pretrained._more_features

    def spoilt(self: Any) -> bool:
        added = real(self)
        draws = np.random.default_rng(0)
        for key in self.features:
            self.features[key] = draws.normal(size=self.features[key].shape).astype(np.float16)
        return added

    monkeypatch.setattr(pretrained.Pretrained, "_more_features", spoilt)
    content = run_fit(config(photos, tmp_path), Recorder())
    assert (content["n_views"], content["estimate"]["wrong"]) == (1, 0)


def test_images_that_take_too_long_to_read_are_refused_at_once_and_later_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(working.time, "perf_counter", lambda: float(next(clock)))
    record = WorkRecord(fingerprint="", device="cpu", minutes=1, flip=True, backbones=())
    work = Work(tmp_path, record, began=0.0, callback=Callback(), device=torch.device("cpu"))
    budget = work.reading()
    budget(1, 36)
    with pytest.raises(InputError, match=r"Reading the 36 images would take .* \(--minutes\) to at least \d+"):
        budget(2, 36)
    clock = iter(range(20, 10_000))
    late = work.reading()
    for done in range(1, 5):
        late(done, 36)


# --- resuming and fitting again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 4, 11, 20])
def test_an_interrupted_fit_is_resumed_to_the_same_bytes(
    after: int, fitted: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "fit"
    interrupt(config(photos, out), after=after)
    content = run_fit(config(photos, out, resume=True), Recorder())
    same_files(out, fitted)
    done = json.loads((fitted / "fit.json").read_text())["pieces"]
    assert content["pieces"].keys() == done.keys()


def test_an_interrupted_fit_from_scratch_is_resumed_to_the_same_bytes(
    from_scratch: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "fit"
    interrupt(config(photos, out, backbone="none"), after=10)
    run_fit(config(photos, out, resume=True), Recorder())
    same_files(out, from_scratch)


def test_the_same_call_starts_a_fit_continues_it_and_leaves_it_when_complete(
    fitted: Path, photos: Path, tmp_path: Path
) -> None:
    out, again = tmp_path / "fit", config(photos, tmp_path / "fit", resume="auto")
    interrupt(again, after=4)
    content = run_fit(again, Recorder())
    same_files(out, fitted)
    before = {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and path.name != ".lock" and path.parent.name != "cache"
    }
    assert run_fit(again, Recorder()) == content
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("lost", ["report.html", "model"])
def test_a_fit_that_was_killed_while_its_results_were_written_writes_them_again(
    lost: str, fitted: Path, photos: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(fitted, tmp_path / "fit")
    shutil.rmtree(out / lost) if lost == "model" else (out / lost).unlink()
    (out / ".fit.json.0123abcd.part").write_text("{")
    run_fit(config(photos, out, resume="auto"), Recorder())
    assert (out / lost).exists()
    assert not list(out.glob(".*.part"))


def test_a_second_fit_compares_itself_with_the_first_and_uses_its_features(
    loose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, few = tmp_path / "fit", {f"{colour}/{k}.png": colour for colour in COLOURS for k in range(3)}
    # The first fit agrees with a wrong label, which is corrected later.
    labels = _labels(tmp_path / "labels.csv", few | {f"red/{k}.png": "blue" for k in range(2)})
    assert run_fit(config(loose, out, labels=labels), Recorder())["since"] is None
    _labels(labels, {f"{colour}/{k}.png": colour for colour in COLOURS for k in range(5)})
    monkeypatch.setattr(pretrained, "Extraction", _Counting)
    second = run_fit(config(loose, out, labels=labels, overwrite=True), Recorder())
    assert not _Counting.computed
    # Those labelled and tested before count, and no photo that was labelled since.
    assert (second["since"]["n"], second["since"]["now"]) == (8, 0)
    before = [row for row in table(out / "predictions-before.csv") if row["given"] and row["guess"]]
    assert second["since"]["before"] == sum(row["guess"] != row["path"].partition("/")[0] for row in before)


def test_photos_drawn_at_random_since_are_compared_and_photos_of_no_class_are_left_out(
    loose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All photos of a colour look as if they showed one thing.
    monkeypatch.setattr("meanteacher.photos.fitting.data.find_groups", lambda photos, near, *_, **__: near)
    out, few = tmp_path / "fit", {f"{colour}/{k}.png": colour for colour in COLOURS for k in range(3)}
    labels = _labels(tmp_path / "labels.csv", few)
    run_fit(config(loose, out, labels=labels), Recorder())
    rows = [(name, label, "") for name, label in few.items()]
    rows += [("red/3.png", "red", "random"), ("red/4.png", "red", "next"), ("others/01.png", "none of these", "next")]
    labels.write_text("path,label,chosen\n" + "".join(",".join(row) + "\n" for row in rows))
    second = run_fit(config(loose, out, labels=labels, overwrite=True), Recorder())
    assert second["since"]["n"] == len(few) + 1
    assert (second["data"]["class_names"], second["data"]["n_unreadable"]) == (list(COLOURS), 1)
    with (out / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        answers = {row["path"]: row for row in csv.DictReader(file)}
    assert (answers["others/01.png"]["guess"], answers["others/01.png"]["problem"]) == ("", "none of these")
    assert "others/01.png" not in (out / "label-next.csv").read_text("utf-8")


class _Counting(pretrained.Extraction):
    computed: ClassVar[list[int]] = []

    def _fill(self, values: Any, *given: Any, **options: Any) -> None:
        before = np.isnan(values).any(1).sum()
        super()._fill(values, *given, **options)
        if np.isnan(values).any(1).sum() != before:
            self.computed.append(1)


def test_changed_photos_or_labels_are_not_resumed(fitted: Path, photos: Path, tmp_path: Path) -> None:
    other = shutil.copytree(photos, tmp_path / "photos")
    (other / "red" / "0.png").unlink()
    with pytest.raises(InputError, match="The photos or their labels are not those"):
        run_fit(config(other, shutil.copytree(fitted, tmp_path / "fit"), resume="auto"), Recorder())


@pytest.mark.parametrize("name", ["timm:resnet18", "hf:someone/flowers", "stolen/weights.safetensors"])
def test_what_a_folder_names_is_neither_imported_nor_downloaded_unasked(
    name: str, fitted: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(fitted, tmp_path / "fit")
    work = json.loads((out / "work.json").read_text())
    (out / "work.json").write_text(json.dumps(work | {"backbones": [name]}))
    loaded: list[str] = []

    def find(each: str) -> None:
        loaded.append(each)
        raise MissingBackboneError("asked for")

    monkeypatch.setattr(pretrained, "find_backbone", find)
    for resume in (True, "auto"):
        with pytest.raises(InputError, match=rf"begun with the network '{name}'.*\(--backbone\)"):
            run_fit(config(photos, out, resume=resume), Recorder())
    assert loaded == []
    with pytest.raises(InputError, match="asked for"):
        run_fit(config(photos, out, resume=True, backbone=name.replace("stolen/", "./stolen/")), Recorder())
    assert loaded == [name]


def test_starting_or_resuming_and_overwriting_contradict_each_other(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\(--start-or-resume\) .* \(--overwrite\)"):
        run_fit(config(photos, tmp_path, resume="auto", overwrite=True), Recorder())


def test_a_second_fit_in_one_folder_is_refused_and_replaces_nothing(fitted: Path, photos: Path, tmp_path: Path) -> None:
    out = shutil.copytree(fitted, tmp_path / "fit")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    with held_by_another_process(out / ".lock"), pytest.raises(InputError, match="Another process is fitting in"):
        run_fit(config(photos, out, overwrite=True), Recorder())
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [({}, "holds a fit already"), ({"out": "empty", "resume": True}, "holds no fit to resume")],
)
def test_nothing_is_overwritten_unasked(
    fitted: Path, photos: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    out = tmp_path if "out" in changes else fitted
    with pytest.raises(InputError, match=message):
        run_fit(config(photos, out, resume=changes.get("resume", False)), Recorder())


def test_a_folder_with_other_files_is_left_alone(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds other files"):
            run_fit(config(photos, tmp_path, overwrite=overwrite), Recorder())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_fit_is_not_resumed_on_another_kind_of_device(
    device: str, fitted: Path, photos: Path, tmp_path: Path
) -> None:
    work = json.loads((fitted / "work.json").read_text())
    assert work["device"] == "cpu"
    (tmp_path / "work.json").write_text(json.dumps(work | {"device": "mps"}))
    with pytest.raises(InputError, match="was started on mps"):
        run_fit(config(photos, tmp_path, resume=True, device=device), Recorder())


def test_a_fit_on_a_gpu_leaves_the_same_answers(fitted: Path, photos: Path, tmp_path: Path) -> None:
    with pretend_gpu():
        content = run_fit(config(photos, tmp_path, device="auto"), Recorder())
    assert (content["environment"]["device"], content["environment"]["device_name"]) == ("cuda", NAME)
    assert json.loads((tmp_path / "work.json").read_text())["device"] == "cuda"
    here, there = ([row["guess"] for row in table(folder / "predictions.csv")] for folder in (fitted, tmp_path))
    assert here == there


def test_a_wrong_device_replaces_nothing(fitted: Path, photos: Path) -> None:
    before = sorted(path for path in fitted.rglob("*") if path.parent.name != "cache")
    with pytest.raises(InputError, match="A device is auto, cpu"):
        run_fit(config(photos, fitted, overwrite=True, device="tpu"), Recorder())
    assert sorted(path for path in fitted.rglob("*") if path.parent.name != "cache") == before


# --- small images -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    draws = np.random.default_rng(1)
    for colour in COLOURS:
        for number in range(4):
            _paint(root / colour / f"{number}.png", colour, draws, side=32)
    for number in range(6):
        _paint(root / "unlabelled" / f"{number}.png", list(COLOURS)[number % 3], draws, side=32)
    return root


def _better(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    """Let the other network be wrong in the trial."""
    real = scratch.cross_validated

    def tested(features: np.ndarray, labels: np.ndarray, *given: Any, **options: Any) -> Any:
        found = real(features, labels, *given, **options)
        if (features.ndim == 5) == (chosen == "scratch"):
            return dataclasses.replace(found, logits=np.eye(3, dtype=np.float32)[found.labels])
        some = (found.labels + (np.arange(len(found.labels)) % 2)) % 3
        return dataclasses.replace(found, logits=np.eye(3, dtype=np.float32)[some])

    monkeypatch.setattr(scratch, "cross_validated", tested)


@pytest.mark.parametrize("chosen", ["pretrained", "scratch"])
def test_a_trial_on_the_labelled_images_chooses_the_network_of_small_images(
    chosen: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _better(monkeypatch, chosen)
    content = run_fit(config(small, tmp_path), Recorder())
    assert content["trial"]["chosen"] == chosen
    assert content["trial"]["n"] == 12
    assert content["network"].startswith("FastNet" if chosen == "scratch" else "EfficientNet")
    again = run_fit(config(small, tmp_path, resume=True), Recorder())
    assert again == content
    assert len(load(tmp_path).predict(small)) == 18


def test_a_fit_that_was_stopped_in_its_trial_begins_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _better(monkeypatch, "scratch")
    interrupt(config(small, tmp_path), after=1)
    assert not (tmp_path / "work.json").exists()
    assert run_fit(config(small, tmp_path, resume=True), Recorder())["trial"]["chosen"] == "scratch"


@pytest.mark.parametrize("backbone", ["lite0", "none"])
def test_there_is_no_trial_if_the_network_is_given(backbone: str, small: Path, tmp_path: Path) -> None:
    content = run_fit(config(small, tmp_path, backbone=backbone), Recorder())
    assert content["trial"] is None
    assert content["network"] == ("FastNet" if backbone == "none" else "EfficientNet-Lite0")


def test_a_network_from_scratch_that_has_no_time_left_is_used_as_far_as_it_is_trained(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch._Shown, "should_stop", lambda self: True)
    content = run_fit(config(photos, tmp_path, backbone="none"), Recorder())
    assert content["estimate"]["n"] == 15
    assert len(load(tmp_path).predict(photos)) == 36


def test_without_the_weights_package_a_network_is_trained_from_scratch_and_the_loss_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise MissingBackboneError("Install them with `pip install x`.")

    monkeypatch.setattr(pretrained, "find_backbone", missing)
    recorder = Recorder()
    content = run_fit(config(photos, tmp_path / "a"), recorder)
    assert content["network"] == "FastNet"
    assert any("No pretrained network is there" in message for message in recorder.messages)
    with pytest.raises(MissingBackboneError, match="pip install x"):
        run_fit(config(photos, tmp_path / "b", backbone="lite0"), Recorder())


def test_without_the_second_network_the_first_is_used_alone(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretrained.find_backbone

    def first_only(name: str) -> Any:
        if name == "lite2":
            raise MissingBackboneError("not installed")
        return real(name)

    monkeypatch.setattr(pretrained, "find_backbone", first_only)
    assert run_fit(config(photos, tmp_path), Recorder())["network"] == "EfficientNet-Lite0"


# --- the command and the function -------------------------------------------------------------------------------------


def test_fit_from_python_returns_the_model_that_the_folder_holds(
    fitted: Path, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = fit(str(photos), out=str(tmp_path / "fit"), minutes=600)
    assert model.class_names == tuple(COLOURS)
    same_files(tmp_path / "fit", fitted)
    saved, here = load(tmp_path / "fit").network.state_dict(), model.network.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in here.items())
    assert "Problem: " in capfd.readouterr().err


def test_the_command_says_how_good_the_model_is_in_words_of_a_photo_owner(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["fit", str(photos), "--out", str(out)])
    assert done.exit_code == 0, done.output
    content = json.loads((out / "fit.json").read_text())
    shown = " ".join(done.output.split())
    assert content["headline"] in shown
    assert content["helped"]["sentence"] in shown
    page = (out / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert content["headline"] in page
    for word in ("supervised", "student", "step "):
        assert word not in done.output.lower()
        assert word not in page.lower()


def test_the_command_and_the_function_have_the_same_options_and_defaults() -> None:
    command, function = (
        {
            name: (str(option.default) if isinstance(option.default, Path) else option.default)
            for name, option in signature(each).parameters.items()
        }
        for each in (commands.fit, fit)
    )
    assert {name: function.pop(name) for name in ("callback", "began")} == {"callback": None, "began": None}
    assert command.pop("start_or_resume") is False  # resume="auto" of the function
    assert command == function


def test_a_fit_refuses_to_be_one_of_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "join", lambda: Ranks(rank=1, size=2))
    with pytest.raises(InputError, match="one process, but 2 were started"):
        fit(tmp_path / "photos", out=tmp_path / "fit")
    assert not (tmp_path / "fit").exists()


def test_every_option_of_the_command_reaches_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def noted(*photos_and_labels: Path, **options: Any) -> None:
        given.update(options, photos_and_labels=photos_and_labels)
        raise InputError("noted")

    monkeypatch.setattr(fitting, "fit", noted)
    words = "fit p --labels l.csv --minutes 7 --flip --group-by time --resume --overwrite --device cpu --backbone lite2"
    CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path)])
    assert {name: given.pop(name) for name in ("callback", "began")}.keys() == {"callback", "began"}
    assert given == {
        "photos_and_labels": (Path("p"), Path("l.csv")),
        "minutes": 7,
        "out": tmp_path,
        "flip": True,
        "group_by": "time",
        "resume": True,
        "overwrite": True,
        "device": "cpu",
        "backbone": "lite2",
    }


def test_ctrl_c_leaves_a_fit_that_can_be_resumed_to_the_same_bytes(
    fitted: Path, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fit"

    class Interrupting(Recorder):
        def on_progress(self, task: str, done: int, total: int) -> None:
            if "crop" in task and done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(photos, out=out, minutes=600, callback=Interrupting())
    assert (out / "model" / "model.json").exists()  # of the first round
    spent = json.loads((out / "work.json").read_text())["spent"]
    fit(photos, out=out, minutes=600, resume=True, callback=Recorder())
    assert json.loads((out / "work.json").read_text())["spent"] > spent
    assert capfd.readouterr().err == ""  # with a callback of one's own nothing is printed
    same_files(out, fitted)
