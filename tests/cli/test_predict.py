"""What a person sees of a shipped model: predicting, judging, exporting."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from meanteacher.cli import predict as commands
from meanteacher.core import InputError, Problem
from meanteacher.fit.bundle import Bundle, save_bundle
from meanteacher.models import FastNet
from meanteacher.views import PerImage

SIZE = 16


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    spec = FastNet(width=0.125)
    network = spec.build(Problem(3, 1, (3, SIZE, SIZE)))
    network.initialise_from(torch.randn(9, 3, SIZE, SIZE))
    bundle = Bundle(network.eval(), PerImage().fit(torch.empty(0)), ("[b]", "cat", "dog"), SIZE, 1.0, {})
    save_bundle(bundle, spec, PerImage(), tmp_path / "fit" / "model")
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
    assert commands.run_predict(model, photos, out=out, overwrite=False)
    shown = capsys.readouterr().out
    assert "10 images in" in shown
    assert "1 cannot be read and have no label" in shown
    assert f"Written: {out}" in shown
    assert all(name in shown for name in ("[b]", "cat", "dog"))
    assert len(out.read_text().splitlines()) == 11
    with pytest.raises(InputError, match="exists already"):
        commands.run_predict(model, photos, out=out, overwrite=False)


def test_interrupted_predict_says_so(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def stopped(*arguments: object, should_stop: object, **options: object) -> object:
        return original(*arguments, should_stop=lambda: True, **options)

    original = commands.predict
    monkeypatch.setattr(commands, "predict", stopped)
    assert not commands.run_predict(model, photos, out=tmp_path / "p.csv", overwrite=False)
    assert "nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "p.csv").exists()


def test_evaluate_shows_errors_and_confusions_and_writes_them(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "new" / "scores.json"
    commands.run_evaluate(model, photos, labels=None, out=out)
    shown = capsys.readouterr().out
    scores = json.loads(out.read_text())
    assert scores["n_judged"] == 9
    assert f"Wrong on {scores['wrong']} of 9 images" in shown
    assert f"{scores['error']:.1%} ({scores['low']:.1%} to {scores['high']:.1%})" in shown
    assert "such as cat/broken.jpg" in shown
    assert all(words in shown for words in ("Most often taken for", "True \\ predicted", "[b]", "points on average"))


def test_export_says_what_the_file_takes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(commands, "export_onnx", lambda bundle, out, overwrite: asked.append((out, overwrite)))
    commands.run_export(model, out=tmp_path / "model.onnx", overwrite=True)
    assert asked == [(tmp_path / "model.onnx", True)]
    assert "bytes [N, 3, 16, 16], and gives `probabilities` [N, 3]" in capsys.readouterr().out
