"""From unlabelled photos to sorted ones, as docs/photos.md describes it: each command is the one that was printed."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from backbone_support import small_networks
from label_example import Window
from meanteacher.cli.app import app
from meanteacher.photos.label.opening import open_session

COLOURS = {"blue": (40, 60, 200), "green": (30, 180, 60), "red": (200, 30, 30)}
N = 16


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos whose names say what they show, for the person who labels them."""
    small_networks(monkeypatch)
    # All photos of a colour look as if they showed one thing.
    monkeypatch.setattr("meanteacher.photos.fitting.data.find_groups", lambda photos, near, *_, **__: near)
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    Path("photos").mkdir()
    for name, colour in COLOURS.items():
        for k in range(N):
            pixels = np.clip(np.array(colour) + draws.normal(0, 40, (64, 64, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(f"photos/{name}-{k}.png")
    return Path("photos")


def run(command: str) -> str:
    """What a command prints."""
    program, *words = shlex.split(command)
    assert program == "meanteacher"
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def kind(name: str | None) -> str:
    assert name is not None
    return name.partition("-")[0]


def test_from_unlabelled_photos_to_sorted_ones(photos: Path):
    refused = CliRunner().invoke(app, ["fit", str(photos)])
    assert refused.exit_code == 2
    assert "meanteacher label photos --classes" in " ".join(refused.output.split())

    first = Window(open_session(photos, classes=["red", "blue"]))
    while first.state["labelled"] < 23:
        first.answer(kind(first.shown))
    wrong = first.shown
    first.answer(next(name for name in COLOURS if name != kind(wrong)))
    said = run(f"{first.session.command} --minutes 1")
    assert "Right on" in said

    review = Window(open_session(photos, review=True))
    while review.shown != wrong:
        review.answer(kind(review.shown))  # a right label that the model contradicts is kept
    review.answer(kind(wrong))

    second = Window(open_session(photos))
    for _ in range(8):
        second.answer(kind(second.shown))
    assert "Before" in run(second.session.command)
    since = json.loads(Path("fit/fit.json").read_text("utf-8"))["since"]
    rows = Path("labels.csv").read_text("utf-8-sig").splitlines()
    # Every label of the first fit counts, and of the later ones those that were drawn at random.
    assert since["n"] == 24 + sum(row.endswith(",random") for row in rows[-8:])
    assert since["now"] <= since["before"]

    run("meanteacher predict fit photos --sort-into sorted --unsure-below 0.5")
    sorted_photos = list(Path("sorted").rglob("*.png"))
    assert len(sorted_photos) == N * len(COLOURS)
    right = [path.parent.name == kind(path.name) for path in sorted_photos]
    assert np.mean(right) > 0.9
