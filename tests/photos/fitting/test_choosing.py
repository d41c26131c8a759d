"""While a person labels, the next photos are chosen: unlike the labelled ones, like many others, unsure ones first."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from label_example import Window
from meanteacher.core import MissingBackboneError
from meanteacher.photos.fitting import choosing
from meanteacher.photos.fitting.choosing import keep_choosing
from meanteacher.photos.label.opening import open_session

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 60), "blue": (40, 60, 200)}
N = 12


@pytest.fixture
def window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Window:
    """Photos of three kinds, of which nothing is known but their colours: no network is installed."""
    noise = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for name, colour in COLOURS.items():
        for k in range(N):
            pixels = np.clip(np.array(colour) + noise.normal(0, 12, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"{name}-{k}.png")

    def missing(name: str) -> None:
        raise MissingBackboneError(name)

    monkeypatch.setattr(choosing, "find_backbone", missing)
    monkeypatch.setattr(choosing, "_PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)
    return Window(open_session(Path("photos")))


def choose(window: Window, rounds: int = 1) -> None:
    """Compute the features of all photos, and choose as often as there is something to choose."""
    asked: Iterator[int] = count()
    # It is asked twice in every round, and once for each part of the photos.
    keep_choosing(window.session, lambda: next(asked) > 2 * rounds + 3 * N // 8)


def kind(name: str | None) -> str:
    assert name is not None
    return name.partition("-")[0]


def test_the_first_photos_that_are_chosen_are_of_all_kinds(window: Window):
    choose(window)
    assert window.session.n_planned == choosing._AT_ONCE
    asked = [kind(window.answer("thing")) for _ in range(3)]
    assert sorted(asked) == sorted(COLOURS)
    assert {row.split(",")[2] for row in Path("labels.csv").read_text("utf-8").splitlines()[1:]} == {"diverse"}


def test_with_two_classes_a_kind_without_label_comes_first(window: Window):
    for _ in range(8):
        if kind(window.shown) == "blue":
            window.skip()
        else:
            window.answer(kind(window.shown))
    choose(window)
    planned = window.session._planned
    assert {each.chosen for each in planned} == {"next"}
    assert kind(window.session.photos.names[planned[0].index]) == "blue"


def test_the_guess_is_that_of_the_labels_so_far(window: Window):
    for _ in range(9):
        window.answer(kind(window.shown))
    choose(window)
    planned, names = window.session._planned, window.session.photos.names
    assert [each.guess for each in planned] == [kind(names[each.index]) for each in planned]
    assert all(each.confidence is not None and each.confidence > 1 / 3 for each in planned)


def test_questions_that_are_left_are_not_replaced(window: Window):
    choose(window)
    before = list(window.session._planned)
    choose(window)
    assert list(window.session._planned) == before
    while window.session.n_planned >= choosing._FEW:
        window.answer(kind(window.shown))
    choose(window)
    assert window.session.n_planned == choosing._AT_ONCE


def test_a_photo_that_cannot_be_read_is_not_chosen(window: Window):
    (Path("photos") / "green-0.png").write_bytes(b"no image")
    choose(window)
    assert window.session.photos.names.index("green-0.png") not in {each.index for each in window.session._planned}


def test_the_network_sees_what_it_was_trained_on(monkeypatch: pytest.MonkeyPatch):
    """The features are those of the network for its own size and normalisation."""
    import torch

    from meanteacher.photos.features.backbones import find_backbone

    size, look = choosing._look()
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    backbone = find_backbone("lite0")
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
    mean, deviation = (torch.tensor(each).view(1, 3, 1, 1) for each in (backbone.mean, backbone.deviation))
    with torch.inference_mode():
        expected = backbone.network()((pixels - mean) / deviation).numpy()
    np.testing.assert_allclose(look([image]), expected, atol=1e-3 * np.abs(expected).max())


def test_labelled_photos_are_looked_at_first_and_the_first_choice_comes_before_all_are(
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in {"_MOST_LABELLED": 3, "_MOST": 11, "_ENOUGH": 4, "_CHUNK": 2, "_PAUSE": 0.0}.items():
        monkeypatch.setattr(choosing, name, value)
    asked: list[tuple[int, int]] = []

    def decoded(path: int, size: int) -> np.ndarray | None:
        asked.append((path, size))
        return None if path % 7 == 0 else np.full((2, 2, 3), path, np.uint8)

    monkeypatch.setattr(choosing, "_decoded", decoded)
    monkeypatch.setattr(choosing, "_look", lambda: (2, lambda images: np.stack(images)[:, 0, 0].astype(np.float32)))
    labels = dict.fromkeys([29, 3, 8, 17, 22], "a")
    photos = type("Some", (), {"path": lambda self, k: k, "__len__": lambda self: 30})()
    session: Any = SimpleNamespace(photos=photos, labels=lambda: labels)
    parts = []
    for rows, features in choosing._looked_at(session, lambda: False):
        assert features[:, 0].tolist() == rows.tolist()
        parts.append((len(asked), rows.tolist()))
        if len(parts) == 5:
            break
    assert {size for _, size in asked} == {2}
    order = [path for path, _ in asked]
    assert len(order) == len(set(order)) == 11
    assert set(order[:3]) < labels.keys()
    assert not set(order[3:]) & labels.keys()
    assert order[3:] != sorted(order[3:]), "the first photos by name may all be of one day"
    # Three labelled ones and four others suffice for a choice. Then it is repeated, without another look.
    assert [n for n, _ in parts] == [8, 10, 11, 11, 11]
    assert [rows for _, rows in parts] == [[k for k in order[:n] if k % 7] for n, _ in parts]
    assert list(choosing._looked_at(session, lambda: True)) == []


def test_photos_of_no_class_are_known_but_teach_no_class():
    draws = np.random.default_rng(0)
    kinds = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    features = (5 * np.eye(3)[kinds] + draws.normal(size=(12, 3)) / 9).astype(np.float32)
    rows = 100 - np.arange(12)
    labels = {100: "zebra", 99: "ant", 98: "None of These", 96: "ant", 3: "elsewhere"}
    found = choosing._questions(labels, rows, features)
    assert {each.chosen for each in found} == {"next"}
    assert {each.guess for each in found} == {"ant", "zebra"}
    assert sorted(each.index for each in found) == sorted(set(rows.tolist()) - labels.keys())
    sure = {each.index: each for each in found}
    assert (sure[97].guess, sure[93].guess) == ("zebra", "ant")
    for each in found:
        assert each.confidence is not None
        assert 0.5 <= each.confidence <= 1
    few = choosing._questions({100: "zebra", 98: "none of these"}, rows, features)
    assert {(each.chosen, each.guess, each.confidence) for each in few} == {("diverse", "", None)}
    assert kinds[100 - few[0].index] == 1, "unlike both that have a label"
    assert {100, 98}.isdisjoint(each.index for each in few)


def test_without_a_network_the_features_are_colours_from_nought_to_one(window: Window):
    size, look = choosing._look()
    assert size == 8
    images = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), dtype=np.uint8)
    found = look(list(images))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, images.reshape(3, -1) / 255, rtol=1e-6)
