"""A label for every image, whatever the images and their names are like; and an honest score."""

import codecs
import csv
import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from meanteacher.core import InputError
from meanteacher.files.images import decode
from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.model import predict as prediction
from meanteacher.photos.model.bundle import Classifier, Seen
from meanteacher.photos.model.images import Images, as_images
from meanteacher.photos.model.predict import Known
from meanteacher.views import PerChannel

SIZE = 8
COLOURS = {"red": (200, 30, 10), "green": (10, 200, 30), "blue": (30, 10, 200), "yellow": (190, 200, 10)}
HEADER = [
    *("path", "guess", "confidence", "second", "second_confidence", "third", "third_confidence"),
    *("strangeness", "problem"),
]


def colour_model(names: tuple[str, ...] = ("red", "green", "blue"), *, temperature: float = 0.2) -> Classifier:
    """Knows the strongest colour of an image; as many classes as there are names."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(names), bias=False))
    with torch.no_grad():
        network[2].weight.copy_(torch.eye(3).repeat(2, 1)[: len(names)])
    noise = torch.randint(0, 256, (30, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Classifier(network.eval().requires_grad_(False), PerChannel().fit(noise), names, SIZE, temperature, {})


def draw(path: Path, colour: str, *, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-9, 10, (SIZE, SIZE, 3))
    Image.fromarray((np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)).save(path, "png")


def read(path: Path) -> list[list[str]]:
    assert path.read_bytes().startswith(codecs.BOM_UTF8), "Excel does not take it for UTF-8"
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == HEADER
    assert {len(row) for row in rows} <= {len(HEADER)}
    return rows


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eleven images at several depths."""
    for k in range(11):
        draw(tmp_path / "photos" / ("deep/er" if k % 2 else "") / f"{k:02d}.png", list(COLOURS)[k % 3], seed=k)
    return tmp_path / "photos"


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_large_images_are_computed_a_few_at_a_time(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prediction, "_CHUNK_BYTES", 4 * 3 * SIZE**2 + 1)
    chunks = prediction.classify(colour_model(), as_images(photos))
    assert [list(chunk.index) for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("chunk", [1, 4, 128])
@pytest.mark.usefixtures("two_threads")
def test_every_image_gets_the_models_three_best_classes_in_the_order_of_names(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
):
    monkeypatch.setattr(prediction, "_CHUNK", chunk)
    model = colour_model()
    told: list[tuple[int, int]] = []
    predictions = model.predict(photos, out=tmp_path / "p.csv", progress=lambda done, n: told.append((done, n)))
    rows = read(tmp_path / "p.csv")
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    assert [row[0] for row in rows] == names
    images = np.stack([np.asarray(Image.open(photos / name)) for name in names]).transpose(0, 3, 1, 2)
    best = model.module()(torch.from_numpy(images.copy())).topk(3)
    for row, ks, ps in zip(rows, best.indices.tolist(), best.values.tolist(), strict=True):
        assert row[1:7:2] == [model.class_names[k] for k in ks]
        assert [float(p) for p in row[2:7:2]] == pytest.approx(ps, abs=1e-4)
        assert row[7:] == ["", ""]
    assert (predictions.complete, len(predictions), predictions.problems) == (True, 11, {})
    assert predictions.counts == {"red": 4, "green": 4, "blue": 3}
    assert list(predictions) == [row[1] for row in rows]
    assert list(predictions.names) == names
    assert predictions.confidence.tolist() == pytest.approx(best.values[:, 0].tolist(), abs=1e-4)
    assert list(model.predict(photos)) == list(predictions)
    assert told[-1] == (11, 11)
    assert [done for done, _ in told] == sorted({min(k * chunk, 11) for k in range(1, 12)})


def test_unreadable_image_has_no_label_but_a_reason(photos: Path, tmp_path: Path):
    whole = (photos / "02.png").read_bytes()
    (photos / "02.png").write_bytes(whole[:50])
    (photos / "04.png").write_bytes(b"no image at all")
    predictions = colour_model().predict(photos, out=tmp_path / "p.csv")
    rows = {row[0]: row[1:] for row in read(tmp_path / "p.csv")}
    assert len(rows) == 11
    assert rows["02.png"] == ["", "", "", "", "", "", "", "truncated"]
    assert rows["04.png"] == ["", "", "", "", "", "", "", "not an image"]
    assert rows["00.png"][0] == "red"
    assert rows["00.png"][-1] == ""
    assert (len(predictions), sum(predictions.counts.values())) == (11, 9)
    assert predictions.problems == {"02.png": "truncated", "04.png": "not an image"}
    assert [k for k, label in enumerate(predictions) if not label] == [1, 2]
    assert np.isnan(predictions.confidence).nonzero()[0].tolist() == [1, 2]


def test_image_that_disappears_meanwhile_is_said_to_be_gone(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = as_images(photos)
    monkeypatch.setattr("meanteacher.photos.model.bundle.as_images", lambda images: found)
    (photos / "04.png").unlink()
    assert colour_model().predict(photos, out=tmp_path / "p.csv").problems == {"04.png": "gone"}
    assert next(row for row in read(tmp_path / "p.csv") if row[0] == "04.png")[-1] == "gone"


def test_no_name_becomes_a_formula_or_breaks_a_row(tmp_path: Path):
    odd = {
        "=HYPERLINK(1).png": "'=HYPERLINK(1).png",
        "+1.png": "'+1.png",
        "-1.png": "'-1.png",
        "@x.png": "'@x.png",
        'a,"b".png': 'a,"b".png',
        "line\nbreak\r.png": r"line\x0abreak\x0d.png",
        "caf\udce9.png": r"caf\xe9.png",
        "naïve 猫.png": "naïve 猫.png",
    }
    for name in odd:
        draw(tmp_path / "photos" / name, "red")
    model = colour_model(("=cmd", 'a,"b"', "naïve"))
    model.predict(tmp_path / "photos", out=tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    assert {row[0] for row in rows} == set(odd.values())
    assert {row[1] for row in rows} == {"'=cmd"}
    assert {row[3] for row in rows} | {row[5] for row in rows} == {'a,"b"', "naïve"}


def test_with_two_classes_there_is_no_third(photos: Path, tmp_path: Path):
    colour_model(("red", "green")).predict(photos, out=tmp_path / "p.csv")
    for row in read(tmp_path / "p.csv"):
        assert {row[1], row[3]} == {"red", "green"}
        assert row[5:] == ["", "", "", ""]


def test_arrays_without_labels_are_predicted_like_files(tmp_path: Path):
    images = np.zeros((3, 20, 30, 3), np.uint8)
    images[[0, 1, 2], ..., [2, 0, 1]] = 200
    np.savez(tmp_path / "x.npz", images=images, names=np.array(["a", "b", "c"]))
    colour_model().predict(tmp_path / "x.npz", out=tmp_path / "p.csv")
    assert [row[:2] for row in read(tmp_path / "p.csv")] == [["a", "blue"], ["b", "red"], ["c", "green"]]


def test_existing_file_is_not_replaced_unasked(photos: Path, tmp_path: Path):
    out = tmp_path / "new" / "folder" / "p.csv"
    colour_model().predict(photos, out=out)
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        colour_model().predict(photos, out=out)
    assert out.read_text() == "mine"
    colour_model().predict(photos, out=out, overwrite=True)
    assert len(read(out)) == 11


def test_stopped_prediction_leaves_no_file(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prediction, "_CHUNK", 2)
    asked = iter([False, False, True])
    predictions = colour_model().predict(photos, out=tmp_path / "out" / "p.csv", should_stop=lambda: next(asked))
    assert not predictions.complete
    assert len(predictions) == len(predictions.names) == len(predictions.confidence) == 4
    assert not list((tmp_path / "out").iterdir())


def test_failed_prediction_leaves_no_file(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        colour_model().predict(photos, out=tmp_path / "out" / "p.csv")
    assert not list((tmp_path / "out").iterdir())


def test_folder_without_images_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="There is no image in"):
        colour_model().predict(tmp_path, out=tmp_path / "p.csv")


@pytest.mark.usefixtures("two_threads")
def test_no_more_is_decoded_than_is_soon_needed(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prediction, "_CHUNK", 1)
    decoded: list[int] = []
    pixels = Images.pixels

    def counted(images: Images, k: int, size: int) -> np.ndarray:
        decoded.append(1)
        return pixels(images, k, size)

    monkeypatch.setattr(Images, "pixels", counted)
    chunks = prediction.classify(colour_model(), as_images(photos))
    for taken in range(1, 4):
        next(chunks)
        threading.Event().wait(0.02)
        assert len(decoded) <= taken + 4
    chunks.close()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("stop", [False, True])
def test_torch_keeps_its_threads(photos: Path, tmp_path: Path, stop: bool):
    colour_model().predict(photos, out=tmp_path / "p.csv", should_stop=lambda: stop)
    with ThreadPoolExecutor(1) as later:
        assert (torch.get_num_threads(), later.submit(torch.get_num_threads).result()) == (2, 2)


def test_image_reaches_the_network_upright(photos: Path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 3))
    model = dataclasses.replace(colour_model(), network=network.eval())
    (chunk,) = prediction.classify(model, found := as_images(photos))
    images = np.stack([np.asarray(Image.open(photos / name)) for name in found.names]).transpose(0, 3, 1, 2)
    torch.testing.assert_close(chunk.probabilities, model.module()(torch.from_numpy(images.copy())))


class Watched(nn.Module):
    """An operation that is left to torch, and the number of threads that torch has for it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def __deepcopy__(self, memo: object) -> "Watched":
        return self

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 2:
            self.threads.add(torch.get_num_threads())
        return x.erf()


@pytest.mark.usefixtures("two_threads")
def test_network_that_torch_computes_gives_the_same_and_has_one_thread(photos: Path):
    watched = Watched()
    model = colour_model()
    (expected,) = prediction.classify(model, as_images(photos))
    other = dataclasses.replace(model, network=nn.Sequential(model.network, watched).eval())
    (chunk,) = prediction.classify(other, as_images(photos))
    assert watched.threads == {1}
    logits = expected.probabilities.log() * model.temperature
    assert chunk.probabilities.argmax(1).tolist() == logits.argmax(1).tolist()


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Of red 4, one of which is green to the eye; of green 3; of blue 2; and two that nobody labelled."""
    root = tmp_path / "judged"
    for folder, colours in {
        "red": ["red", "red", "green", "red"],
        "green": ["green"] * 3,
        "blue": ["blue"] * 2,
        "unlabeled": ["red", "blue"],
    }.items():
        for k, colour in enumerate(colours):
            draw(root / folder / f"{k}.png", colour, seed=k)
    return root


def test_scores_are_those_counted_by_hand(labelled: Path):
    told: list[tuple[int, int]] = []
    scores = colour_model().evaluate(labelled, progress=lambda done, n: told.append((done, n)))
    assert (scores["n_judged"], scores["wrong"], scores["n_unlabelled"]) == (9, 1, 2)
    assert scores["error"] == pytest.approx(1 / 9)
    # Wilson's interval for 1 of 9, from its textbook formula.
    assert (scores["low"], scores["high"]) == (pytest.approx(0.0199, abs=1e-4), pytest.approx(0.4350, abs=1e-4))
    assert scores["confusion"] == [[3, 1, 0], [0, 3, 0], [0, 0, 2]]
    assert [entry["name"] for entry in scores["per_class"]] == ["red", "green", "blue"]
    assert [entry["error"] for entry in scores["per_class"]] == [0.25, 0, 0]
    assert [entry["n_predicted"] for entry in scores["per_class"]] == [3, 4, 2]
    assert told[-1] == (9, 9)


@pytest.mark.parametrize(
    ("taught", "without", "judged", "counts"),
    [
        ("", "", "new", (9, 0, 0)),
        # One of the green ones is a copy of the one that is called red.
        ("red/*", "", "new", (4, 0, 5)),
        ("red/*", "blue/*", "new", (2, 2, 5)),
        ("red/*", "[bg]*/*", "unlabelled", (0, 4, 5)),
        ("*/*", "", "training", (0, 0, 9)),
    ],
)
def test_images_that_the_model_has_learnt_from_do_not_count(
    labelled: Path, taught: str, without: str, judged: str, counts: tuple[int, int, int]
):
    def digests(pattern: str) -> bytes:
        paths = labelled.glob(pattern) if pattern else ()
        return b"".join(sorted({digest(decode(path, SIZE).transpose(2, 0, 1)) for path in paths}))

    told: list[tuple[int, int]] = []
    model = dataclasses.replace(colour_model(), seen=Seen(digests(taught), digests(without)))
    scores = model.evaluate(labelled, progress=lambda done, n: told.append((done, n)))
    assert scores["judged"] == judged
    assert tuple(scores["seen"][kind]["n_judged"] for kind in ("new", "unlabelled", "training")) == counts
    # The one that is wrong is red.
    n_wrong = {kind: scores["seen"][kind]["wrong"] for kind in ("new", "unlabelled", "training")}
    assert n_wrong == {"new": 0 if taught else 1, "unlabelled": 0, "training": 1 if taught else 0}
    assert told[-1] == (9, 9)
    if judged == "training":
        assert scores["error"] is scores["low"] is scores["calibration"]["error"] is None
        assert sum(map(sum, scores["confusion"])) == scores["n_judged"] == 0
    else:
        assert {name: scores[name] for name in scores["seen"][judged]} == scores["seen"][judged]
        assert sum(map(sum, scores["confusion"])) == scores["n_judged"]


def test_a_model_that_does_not_say_what_it_has_seen_is_judged_by_all(labelled: Path):
    scores = colour_model().evaluate(labelled)
    assert (scores["judged"], scores["seen"], scores["n_judged"]) == ("unknown", None, 9)


def test_calibration_error_is_the_distance_of_confidence_from_accuracy(labelled: Path):
    sure = colour_model(temperature=1e-3).evaluate(labelled)["calibration"]
    assert sure["error"] == pytest.approx(1 / 9, abs=1e-3)
    unsure = colour_model(temperature=1e3).evaluate(labelled)["calibration"]
    assert unsure["error"] == pytest.approx(8 / 9 - 1 / 3, abs=1e-2)


def test_labels_may_come_from_a_table(labelled: Path, tmp_path: Path):
    (tmp_path / "labels.csv").write_text("path,label\nunlabeled/0.png,red\nunlabeled/1.png,red\n")
    scores = colour_model().evaluate(labelled, tmp_path / "labels.csv")
    assert (scores["n_judged"], scores["wrong"], scores["n_unlabelled"]) == (11, 2, 0)


def test_class_that_nobody_has_is_not_judged(labelled: Path):
    scores = colour_model(("red", "green", "blue", "violet")).evaluate(labelled)
    assert scores["per_class"][3] == {
        "name": "violet", "n_judged": 0, "wrong": 0, "error": None, "low": None, "high": None, "n_predicted": 0,
    }  # fmt: skip


def test_classes_that_the_model_does_not_know_are_named(labelled: Path):
    with pytest.raises(InputError, match=r"does not know 2 classes of .*: blue and green\. It knows red and violet\."):
        colour_model(("red", "violet")).evaluate(labelled)


def test_unreadable_images_are_named_and_not_judged(labelled: Path):
    (labelled / "red" / "2.png").write_bytes(b"")
    scores = colour_model().evaluate(labelled)
    assert (scores["n_judged"], scores["wrong"]) == (8, 0)
    assert scores["unreadable"] == [{"name": "red/2.png", "reason": "empty"}]
    for path in labelled.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="None of the 9 labelled images"):
        colour_model().evaluate(labelled)


ESTIMATE = {"error": 0.15, "low": 0.1, "high": 0.2, "wrong": 30, "n": 200, "confidence": 0.95}


def test_representations_are_short_and_escape_what_they_show(tmp_path: Path):
    names = ("<b>red", "green", "blue")
    model = dataclasses.replace(colour_model(names), about={"estimate": ESTIMATE}, seen=Seen(b"1" * 160))
    for k in range(30):
        draw(tmp_path / f"{k:02d}<i>.png", list(COLOURS)[k % 3], seed=k)
    (tmp_path / "broken.png").write_bytes(b"?")
    found = model.predict(tmp_path, unsure_below=0.999999)
    assert len(repr(model)) < 400
    assert "3: <b>red, green and blue" in repr(model)
    assert "Right on about 17 of 20 new photos (80 to 90 %)." in repr(model)
    handful = dataclasses.replace(model, about={"estimate": ESTIMATE | {"n": 10, "wrong": 1}})
    assert "1 of 10 test photos was wrong; it may be up to 20.0 % of new ones." in repr(handful)
    assert "10 labelled images" in repr(model)
    assert repr(found).startswith("Predictions: 10 <b>red, 10 green and 10 blue; ")
    assert "1 cannot be read; 31 in all" in repr(found)
    assert "  00<i>.png: <b>red" in repr(found)
    assert len(repr(found)) < 500
    for html in (model._repr_html_(), found._repr_html_()):
        assert "&lt;b&gt;red" in html
        assert "<b>red" not in html
    assert found._repr_html_().count("<img") == 12
    assert "and 19 more" in found._repr_html_()


def test_a_data_frame_has_a_row_for_every_image(photos: Path):
    (photos / "broken.png").write_bytes(b"?")
    found = colour_model().predict(photos, unsure_below=0.5)
    frame = found.to_frame()
    assert list(frame.columns) == ["path", "guess", "confidence", "unsure", "strangeness", "problem"]
    assert frame["path"].tolist() == list(found.names)
    assert frame["guess"].tolist() == list(found)
    assert frame.loc[frame["path"] == "broken.png", "problem"].item() == "not an image"
    assert not frame.loc[frame["path"] == "broken.png", "unsure"].item()


def test_without_pandas_a_data_frame_says_what_to_install(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        colour_model().predict(photos).to_frame()


def test_unsure_images_are_those_below_the_threshold(photos: Path, tmp_path: Path):
    (photos / "broken.png").write_bytes(b"?")
    model = colour_model(temperature=2.0)
    known = model.predict(photos).confidence
    threshold = float(np.nanmedian(known))
    found = model.predict(photos, out=tmp_path / "p.csv", unsure_below=threshold)
    assert found.is_unsure.tolist() == (known < threshold).tolist()
    with (tmp_path / "p.csv").open(encoding="utf-8-sig", newline="") as file:
        column = [row["unsure"] for row in csv.DictReader(file)]
    expected = ["" if np.isnan(value) else "yes" if value < threshold else "no" for value in known]
    assert column == expected
    assert {"", "yes", "no"} == set(column)
    assert not model.predict(photos).is_unsure.any()
    with pytest.raises(InputError, match=r"unsure_below is 80: give a confidence from 0 to 1, such as 0.8"):
        model.predict(photos, unsure_below=80)


def test_images_unlike_all_known_ones_are_strange_and_kept_apart(photos: Path, tmp_path: Path):
    draw(photos / "stranger.png", "yellow")
    (photos / "broken.png").write_bytes(b"?")
    plain = colour_model()
    pixels = torch.tensor([COLOURS[name] for name in ("red", "green", "blue")], dtype=torch.uint8)
    features = plain.network[:2](plain.normalise(pixels[:, :, None, None].expand(3, 3, SIZE, SIZE).contiguous()))
    model = dataclasses.replace(plain, known=Known(nn.functional.normalize(features), 0.1))
    found = model.predict(photos, out=tmp_path / "p.csv", unsure_below=1.0)
    assert [name for name, strange in zip(found.names, found.is_strange, strict=True) if strange] == ["stranger.png"]
    assert np.isnan(found.strangeness[list(found.names).index("broken.png")])
    apart = {"stranger.png": "none of these", "broken.png": ""}
    assert found.apart == [apart.get(name, "unsure") for name in found.names]
    assert set(model.predict(photos).apart) == {"none of these", ""}
    with (tmp_path / "p.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {row["path"]: row["strangeness"] for row in csv.DictReader(file)}
    assert float(rows["stranger.png"]) > 1 > float(rows["00.png"])
    assert rows["broken.png"] == ""
    found.sort_into(tmp_path / "sorted")
    (kept,) = (tmp_path / "sorted" / "none of these").rglob("*.png")
    assert kept.name == "stranger.png"
    assert "None of these?" in found.contact_sheet()
    # What other programs get is probabilities alone.
    np.testing.assert_allclose(model.predict_proba([photos / "00.png"]), plain.predict_proba([photos / "00.png"]))
    assert not np.isfinite(plain.predict(photos).strangeness).any()


def test_arrays_cannot_be_sorted_into_folders(tmp_path: Path):
    found = colour_model().predict(np.zeros((2, SIZE, SIZE, 3), np.uint8))
    with pytest.raises(InputError, match="These images are not files"):
        found.sort_into(tmp_path / "out")
    assert found._repr_html_().count("<img") == 2


def test_a_contact_sheet_has_the_given_title_or_the_name_of_the_folder(photos: Path):
    found = colour_model().predict(photos)
    assert "<title>Holidays" in found.contact_sheet("Holidays")
    assert f"<title>{photos.name}" in found.contact_sheet()
    assert "<title>these images" in colour_model().predict([photos / "00.png"]).contact_sheet()


def test_a_table_is_written_into_folders_that_are_made_for_it(photos: Path, tmp_path: Path):
    out = tmp_path / "not" / "yet" / "p.csv"
    colour_model().predict(photos, out=out)
    assert len(read(out)) == 11
