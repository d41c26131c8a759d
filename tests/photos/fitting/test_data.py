"""What a fit learns from: which photos, and what must be unchanged to resume it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from meanteacher.core import InputError
from meanteacher.photos.fitting.data import FitData, read_photos
from meanteacher.photos.folder.find import Photos

LABELS = np.array([1, -1, 0, 1, -1, 0, -1])


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    names = tuple(f"{name}.png" for name in "gacfbed")
    draws = np.random.default_rng(0)
    for name in names:
        Image.fromarray(draws.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(tmp_path / name)
    return Photos(tmp_path, names, LABELS, ("ant", "bee"), None, none_of_these=frozenset({4}))


def read(photos: Photos, folder: Path, size: int = 8) -> FitData:
    work: Any = SimpleNamespace(cache=folder, reading=lambda: lambda done, n: None)
    return read_photos(photos, work, size, taken=np.full(len(photos), np.nan), group_by="folder")


def test_photos_that_cannot_be_read_or_have_no_class_are_left_out(photos: Photos, tmp_path: Path):
    photos.path(3).write_bytes(b"no image")
    photos.path(6).write_bytes(b"no image")
    data = read(photos, tmp_path / "cache")
    assert data.left_out == {3: "not an image", 6: "not an image", 4: "none of these"}
    assert data.labels.tolist() == [1, -1, 0, -1, -1, 0, -1]
    assert photos.labels.tolist() == LABELS.tolist(), "those of the folder have changed"
    assert data.labelled.tolist() == [0, 2, 5]
    assert data.usable.tolist() == [0, 1, 2, 5]
    assert (data.size, data.group_by) == (8, "folder")
    assert data.decoded.images.shape == (7, 3, 8, 8)


def test_a_class_without_a_readable_photo_is_named(photos: Photos, tmp_path: Path):
    for k in (2, 5):
        photos.path(k).write_bytes(b"no image")
    with pytest.raises(InputError, match="No labelled image of ant can be read"):
        read(photos, tmp_path / "cache")


def test_whatever_a_fit_learns_from_is_in_its_fingerprint(photos: Photos, tmp_path: Path):
    data = read(photos, tmp_path / "cache")
    digests = data.duplicates.digests
    assert len(set(digests)) == 7
    changed = {
        "same": data,
        "labels": replace(data, photos=replace(photos, labels=LABELS[::-1].copy())),
        "names": replace(data, photos=replace(photos, names=("G.png", *photos.names[1:]))),
        "classes": replace(data, photos=replace(photos, class_names=("ant", "wasp"))),
        "none of these": replace(data, photos=replace(photos, none_of_these=frozenset({4, 6}))),
        "pixels": replace(data, duplicates=replace(data.duplicates, digests=digests[::-1])),
    }
    found = {what: each.fingerprint() for what, each in changed.items()}
    assert len(set(found.values())) == len(found)
    assert read(photos, tmp_path / "other").fingerprint() == found["same"]
    assert {what for what, each in changed.items() if each.pixels_digest() != data.pixels_digest()} == {"pixels"}
