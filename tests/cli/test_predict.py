"""What a person sees of a shipped model: predicting, judging, exporting."""

import csv
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from meanteacher.cli import predict as commands
from meanteacher.core import InputError, Problem
from meanteacher.files.images import decode
from meanteacher.models import FastNetSpec
from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.model.bundle import Classifier, Seen, load
from meanteacher.views import PerImage

SIZE = 16


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    spec = FastNetSpec(width=0.125)
    network = spec.build(Problem(3, 1, (3, SIZE, SIZE)))
    network.initialise_from(torch.randn(9, 3, SIZE, SIZE))
    parts = {"spec": spec, "normaliser": PerImage()}
    model = Classifier(network.eval(), PerImage().fit(torch.empty(0)), ("[b]", "cat", "dog"), SIZE, 1.0, {}, **parts)
    model.save(tmp_path / "fit" / "model")
    return tmp_path / "fit"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    for k, name in enumerate(["[b]", "cat", "dog"]):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for n in range(2 + k):
            pixels = draws.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{n}.png")
    (tmp_path / "photos" / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return tmp_path / "photos"


def test_predict_says_what_came_of_it(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "predictions.csv"
    commands.predict(model, photos, out=out)
    shown = capsys.readouterr().out
    assert "10 images in" in shown
    assert "1 cannot be read and have no guess" in shown
    assert f"Written: {out}" in shown
    assert all(name in shown for name in ("[b]", "cat", "dog"))
    assert len(out.read_text().splitlines()) == 11
    with pytest.raises(InputError, match="exists already"):
        commands.predict(model, photos, out=out)


def test_interrupted_predict_says_so(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def stopped(*arguments: object, should_stop: object, **options: object) -> object:
        return original(*arguments, should_stop=lambda: True, **options)

    original = Classifier.predict
    monkeypatch.setattr(Classifier, "predict", stopped)
    with pytest.raises(typer.Exit) as end:
        commands.predict(model, photos, out=tmp_path / "p.csv")
    assert end.value.exit_code == 75
    assert "nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "p.csv").exists()


def test_predict_sorts_photos_with_a_table_and_a_contact_sheet(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (photos / "dog" / "raw.NEF").write_bytes(b"II*\0")
    (photos / "dog" / "film.mov").write_bytes(b"film")
    before = sorted(path.name for path in photos.rglob("*.png"))
    commands.predict(model, photos, sort_into=tmp_path / "sorted", move=True, unsure_below=0.4)
    shown = capsys.readouterr().out
    assert "9 photos moved into the folders of" in shown
    assert "2 cannot be read and have no guess" in shown
    assert "1 other file was left alone" in shown
    assert f"To move all of them back: sh {tmp_path / 'sorted' / 'undo.sh'}" in " ".join(shown.split())
    with (tmp_path / "sorted" / "predictions.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert {row["path"]: row["problem"] for row in rows if row["problem"]} == {
        "cat/broken.jpg": "truncated",
        "dog/raw.NEF": "unsupported format .nef",
    }
    for row in rows:
        if not row["problem"]:
            assert row["unsure"] == ("yes" if float(row["confidence"]) < 0.4 else "no")
            folder = tmp_path / "sorted" / ("unsure" if row["unsure"] == "yes" else "") / row["guess"]
            assert list(folder.glob(f"{Path(row['path']).stem}*.png"))
    page = (tmp_path / "sorted" / "contact-sheet.html").read_text()
    assert page.count("<img src=") == 9
    assert "unsupported format .nef" in page
    subprocess.run(["sh", tmp_path / "sorted" / "undo.sh"], check=True)
    assert sorted(path.name for path in photos.rglob("*.png")) == before
    with pytest.raises(InputError, match="exists already"):
        commands.predict(model, photos, sort_into=tmp_path / "sorted")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"move": True}, r"--move says how to sort photos: add --sort-into DIR"),
        ({"link": True}, r"--link says how"),
        ({"move": True, "link": True, "sort_into": Path("sorted")}, r"--link and --move exclude each other"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    options: dict[str, Any], words: str, model: Path, photos: Path, tmp_path: Path
):
    with pytest.raises(InputError, match=words):
        commands.predict(model, photos, out=tmp_path / "p.csv", **options)
    with pytest.raises(InputError, match="give a folder beside it"):
        commands.predict(model, photos, out=tmp_path / "p.csv", sort_into=photos / "sorted")
    assert not (tmp_path / "p.csv").exists()


def test_evaluate_shows_errors_and_confusions_and_writes_them(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "new" / "scores.json"
    commands.evaluate(model, photos, out=out)
    shown = capsys.readouterr().out
    scores = json.loads(out.read_text())
    assert scores["n_judged"] == 9
    assert f"Wrong on {scores['wrong']} of 9 images: an error of" in shown
    low, high = 100 * scores["low"], 100 * scores["high"]
    assert f"{100 * scores['error']:.1f} % ({low:.1f} to {high:.1f} %)" in shown
    assert "such as cat/broken.jpg" in shown
    assert all(words in shown for words in ("Most often taken for", "True \\ predicted", "[b]", "points on average"))


def seeing(model: Path, photos: Path, *, taught: str = "", without: str = "") -> None:
    """Let the model have learnt from the images of some folders, with their labels or without."""
    digests = [
        b"".join(sorted(digest(decode(path, SIZE).transpose(2, 0, 1)) for path in photos.glob(f"{pattern}/?.png")))
        if pattern
        else b""
        for pattern in (taught, without)
    ]
    estimate = {"error": 0.192, "low": 0.15, "high": 0.241, "wrong": 60, "n": 312, "confidence": 0.95}
    seeing = replace(load(model), seen=Seen(*digests), about={"estimate": estimate})
    seeing.save(model / "model", overwrite=True)


def evaluated(model: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    out = model / "scores.json"
    commands.evaluate(model, photos, out=out)
    return json.loads(out.read_text()), capsys.readouterr().out


def test_images_that_taught_the_model_are_left_out_and_that_is_said(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
):
    seeing(model, photos, taught="dog")
    scores, shown = evaluated(model, photos, capsys)
    assert (scores["judged"], scores["n_judged"], scores["seen"]["training"]["n_judged"]) == ("new", 5, 4)
    assert f"Wrong on {scores['wrong']} of 5 images that are new to the model: an error of" in shown
    assert "Left out: 4 images that the model was trained on." in shown
    assert f"wrong on {100 * scores['seen']['training']['error']:.1f} % of them" in shown


@pytest.mark.parametrize("from_inside", [False, True])
def test_where_all_images_taught_the_model_no_error_is_told_but_where_the_estimate_is(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str], from_inside: bool
):
    seeing(model, photos, taught="*")
    (model / "report.html").write_text("the report")
    scores, shown = evaluated(model / "model" if from_inside else model, photos, capsys)
    assert (scores["judged"], scores["n_judged"], scores["error"]) == ("training", 0, None)
    assert scores["seen"]["training"]["n_judged"] == 9
    assert "Wrong on" not in shown
    assert "True \\ predicted" not in shown
    assert "The model was trained on all 9 images." in shown
    assert "says nothing about new images" in shown
    report = model / "report.html"
    assert f"The estimate of the fit (see {report}): Right on about 4 of 5 new photos (76 to 85 %)." in shown


def test_images_that_were_seen_without_their_labels_are_told_apart(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
):
    seeing(model, photos, taught="dog", without="cat")
    scores, shown = evaluated(model, photos, capsys)
    assert [scores["seen"][kind]["n_judged"] for kind in ("new", "unlabelled", "training")] == [2, 3, 4]
    assert "of 2 images that are new to the model" in shown
    assert "Left out: 3 images that the model was trained on without labels" in shown
    seeing(model, photos, without="*")
    scores, shown = evaluated(model, photos, capsys)
    assert (scores["judged"], scores["n_judged"]) == ("unlabelled", 9)
    assert "of 9 images whose labels are new to the model" in shown
    assert "was trained on these images without their labels, so the error on new images" in shown


def test_what_a_model_does_not_say_is_said(model: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    scores, shown = evaluated(model, photos, capsys)
    assert (scores["judged"], scores["seen"]) == ("unknown", None)
    assert "does not say which images it was trained on" in shown
    seeing(model, photos)
    assert "The model has seen none of these images before." in evaluated(model, photos, capsys)[1]


def test_export_says_what_the_file_takes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(Classifier, "export", lambda model, out, overwrite: asked.append((out, overwrite)))
    commands.export(model, out=tmp_path / "model.onnx", overwrite=True)
    assert asked == [(tmp_path / "model.onnx", True)]
    assert "bytes [N, 3, 16, 16] and its output `probabilities` [N, 3]" in capsys.readouterr().out
