"""A model takes images in every form in which Python programs have them, and says clearly what it cannot take."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from meanteacher.core import InputError
from meanteacher.photos.model.bundle import Classifier
from meanteacher.photos.model.images import as_images
from meanteacher.views import PerImage

SIZE = 8
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def model() -> Classifier:
    """Every pixel counts, so that no two pictures get the same probabilities."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, len(NAMES))).requires_grad_(False)
    return Classifier(network.eval(), PerImage().fit(torch.empty(0)), NAMES, SIZE, 0.5, {})


def pixels(n: int = 1, height: int = 21, width: int = 30) -> np.ndarray:
    """[N, H, W, 3]: noise, which shows any other resizing, turning or order of colours."""
    return np.random.default_rng(0).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for k, image in enumerate(pixels(5)):
        Image.fromarray(image).save(tmp_path / "photos" / f"{k}.png")
    return tmp_path / "photos"


def same(model: Classifier, given: Any, other: Any) -> None:
    """The network gets the same pixels, and the probabilities are the same up to rounding."""
    one, two = (
        np.stack([images.pixels(k, SIZE) for k in range(len(images))]) for images in map(as_images, (given, other))
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(model.predict_proba(given), model.predict_proba(other), atol=1e-6)


def opened(folder: Path) -> list[Image.Image]:
    images = []
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            image.load()
            images.append(image)
    return images


def _npz(folder: Path) -> Path:
    np.savez(folder.parent / "photos.npz", images=pixels(5))
    return folder.parent / "photos.npz"


FORMS: dict[str, Callable[[Path], Any]] = {
    "folder as text": str,
    "npz": _npz,
    "npz as text": lambda folder: str(_npz(folder)),
    "list of paths": lambda folder: sorted(folder.iterdir()),
    "tuple of texts": lambda folder: tuple(map(str, sorted(folder.iterdir()))),
    "PIL images": opened,
    "array": lambda folder: pixels(5),
    "array in another layout": lambda folder: np.asfortranarray(pixels(5)),
    "list of arrays": lambda folder: list(pixels(5)),
    "list of all kinds": lambda folder: [*sorted(folder.iterdir())[:2], opened(folder)[2], *pixels(5)[3:]],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_pictures_get_the_same_probabilities_in_every_form(model: Classifier, folder: Path, form: str):
    expected = model.predict_proba(folder)
    assert expected.shape == (5, 4)
    assert len(np.unique(expected[:, 0])) == 5
    np.testing.assert_allclose(expected.sum(1), 1, rtol=1e-5)
    given = FORMS[form](folder)
    same(model, given, folder)
    predictions = model.predict(given)
    assert list(predictions) == [NAMES[k] for k in expected.argmax(1)]
    np.testing.assert_allclose(predictions.confidence, expected.max(1), atol=1e-6)


def test_one_picture_may_be_given_alone(model: Classifier, folder: Path):
    for given in (folder / "3.png", str(folder / "3.png"), opened(folder)[3], pixels(5)[3], pixels(5)[3:4]):
        same(model, given, [folder / "3.png"])
        assert len(model.predict(given)) == 1


def test_grey_images_have_one_channel(model: Classifier, tmp_path: Path):
    grey = pixels(3)[..., 0]
    np.savez(tmp_path / "grey.npz", images=grey)
    in_colours = np.repeat(grey[..., None], 3, axis=3)
    for given in (grey, list(grey), [Image.fromarray(image) for image in grey], in_colours):
        same(model, given, tmp_path / "grey.npz")


@pytest.mark.parametrize(
    "kind", ["orientation", "transparent", "palette", "16 bit", "CMYK", "small JPEG", "two colours"]
)
def test_a_pil_image_is_read_as_its_file(model: Classifier, tmp_path: Path, kind: str):
    colours = Image.fromarray(pixels()[0])
    path, options = tmp_path / ("x.jpg" if kind in ("orientation", "CMYK", "small JPEG") else "x.png"), {}
    if kind == "orientation":
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = 6
    picture = {
        "transparent": lambda: Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 12, 4), dtype=np.uint8)),
        "palette": lambda: colours.convert("P"),
        "16 bit": lambda: Image.fromarray(pixels()[0, ..., 0].astype(np.uint16) * 250),
        "CMYK": lambda: colours.convert("CMYK"),
        "two colours": lambda: colours.convert("1"),
    }.get(kind, lambda: colours)()
    picture.save(path, **options)
    with Image.open(path) as lazily:
        same(model, lazily, path)


def test_a_large_jpeg_differs_from_its_file_by_rounding_only(model: Classifier, tmp_path: Path):
    smooth = Image.fromarray(pixels(1, 4, 5)[0]).resize((200, 160), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "x.jpg", quality=95)
    with Image.open(tmp_path / "x.jpg") as image:
        np.testing.assert_allclose(model.predict_proba(image), model.predict_proba(tmp_path / "x.jpg"), atol=0.05)


def test_a_pil_image_may_be_given_twice_and_stays_as_it_is(model: Classifier, folder: Path):
    with Image.open(folder / "2.png") as image:
        same(model, [image] * 40, [folder / "2.png"] * 40)
        assert np.array_equal(np.asarray(image), pixels(5)[2])


def test_images_have_names(model: Classifier, folder: Path):
    paths = [folder / "4.png", str(folder / "0.png")]
    assert list(model.predict(paths).names) == list(map(str, paths))
    assert list(model.predict(str(folder)).names) == [f"{k}.png" for k in range(5)]
    assert list(model.predict(pixels(2)).names) == list(model.predict(list(pixels(2))).names) == ["image 0", "image 1"]


def test_only_a_folder_has_files_that_are_left_alone(folder: Path):
    (folder / "notes.txt").write_text("")
    path = next(folder.rglob("*.png"))
    assert as_images(folder).n_ignored == 1
    assert as_images([path]).n_ignored == as_images(np.zeros((1, SIZE, SIZE, 3), np.uint8)).n_ignored == 0


def test_predictions_are_a_sequence_of_labels(model: Classifier, folder: Path):
    predictions = model.predict(folder)
    labels = list(predictions)
    assert (predictions[0], predictions[-1], predictions[1:3]) == (labels[0], labels[-1], labels[1:3])
    assert (len(predictions), labels[2] in predictions, predictions.index(labels[0])) == (5, True, 0)
    assert sum(predictions.counts.values()) == 5
    assert all(predictions.counts[label] == labels.count(label) for label in NAMES)
    assert "5 in all" in repr(predictions)
    with pytest.raises(IndexError):
        predictions[5]


def test_arrays_and_lists_are_written_to_a_file_too(model: Classifier, folder: Path, tmp_path: Path):
    for k, given in enumerate([folder, pixels(5), sorted(folder.iterdir())]):
        predictions = model.predict(given, out=str(tmp_path / f"{k}.csv"))
        lines = (tmp_path / f"{k}.csv").read_text(encoding="utf-8").splitlines()[1:]
        assert [line.split(",")[:2] for line in lines] == [
            list(pair) for pair in zip(predictions.names, predictions, strict=True)
        ]


def test_probabilities_of_what_cannot_be_read_are_an_error(model: Classifier, folder: Path):
    (folder / "1.png").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"1\.png cannot be read \(not an image\).*`problems`"):
        model.predict_proba(folder)
    path = folder / "1.png"
    predictions = model.predict([folder / "0.png", path])
    assert predictions.problems == {str(path): "not an image"}
    assert predictions[1] == ""
    (folder / "2.png").write_bytes((folder / "2.png").read_bytes()[:100])
    with Image.open(folder / "2.png") as image:
        assert model.predict([image]).problems == {"image 0": "truncated"}


def test_a_person_sees_how_far_it_is(model: Classifier):
    told: list[tuple[int, int]] = []
    model.predict_proba(pixels(300, 8, 8), progress=lambda done, n: told.append((done, n)))
    assert told == [(128, 300), (256, 300), (300, 300)]


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fractions": (lambda _: pixels(2) / 255, "The array is of float64: give uint8, from 0 to 255; for values from 0"),
    "large numbers": (lambda _: pixels(2).astype(np.int64), "The array is of int64: give uint8"),
    "channels first": (lambda _: pixels(2).transpose(0, 3, 1, 2), "the shape (2, 3, 21, 30): give [N, H, W, 3]"),
    "channels first, hint": (lambda _: pixels(2).transpose(0, 3, 1, 2), "transpose(0, 2, 3, 1) moves the channels"),
    "four channels": (lambda _: np.zeros((2, 9, 9, 4), np.uint8), "the shape (2, 9, 9, 4)"),
    "one grey image": (lambda _: pixels()[0, ..., 0], "the shape (21, 30)"),
    "five dimensions": (lambda _: pixels()[None], "the shape (1, 1, 21, 30, 3)"),
    "no image": (lambda _: pixels(0), "the shape (0, 21, 30, 3)"),
    "no pixel": (lambda _: pixels(2, 0), "the shape (2, 0, 30, 3)"),
    "empty list": (lambda _: [], "The list of images is empty: give at least one"),
    "missing folder": (lambda folder: folder / "none", "There is no folder or file"),
    "missing file": (lambda folder: str(folder / "9.png"), "9.png: give a folder of images, an .npz file or an image"),
    "missing npz": (lambda folder: folder / "none.npz", "There is no folder or file"),
    "missing file in a list": (lambda folder: [folder / "0.png", folder / "9.png"], "9.png, does not exist"),
    "folder in a list": (lambda folder: [folder], "is a folder: give it alone, without a list"),
    "fractions in a list": (lambda _: [pixels()[0] / 255], "Image 0 of the list is of float64"),
    "shape in a list": (lambda _: [pixels()[0], pixels()], "Image 1 of the list has the shape (1, 21, 30, 3)"),
    "number": (lambda _: 7, "cannot be read from a int"),
    "number in a list": (lambda _: [7], "Image 0 of the list is a int: give paths"),
    "nothing": (lambda _: None, "cannot be read from a NoneType: give a folder"),
    "tensor": (lambda _: torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "cannot be read from a Tensor"),
    "generator": (lambda folder: folder.glob("*"), "cannot be read from a"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused_with_what_to_do(model: Classifier, folder: Path, tmp_path: Path, what: str):
    given, words = REFUSED[what]
    for use in (model.predict, model.predict_proba):
        with pytest.raises(InputError, match=re.escape(words)):
            use(given(folder))
    with pytest.raises(InputError):
        model.predict(given(folder), out=tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
