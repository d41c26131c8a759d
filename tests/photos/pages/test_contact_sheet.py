"""The contact sheet shows every photo with its guess, and the unsure ones apart."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meanteacher.photos.pages import contact_sheet as module
from meanteacher.photos.pages.contact_sheet import contact_sheet, thumbnail
from photo_support import picture, save

NAMES = ("a.jpg", "<b>.jpg", "c.jpg", "caf\udce9.jpg", "broken.jpg")
GUESSES = ("rose", "rose", "tulip", "<i>", "")
CONFIDENCE = np.array([0.9, 0.5, 0.79999, 0.99999, np.nan])


def page(pictures: Callable[[int], Image.Image] = picture, **options: object) -> str:
    return contact_sheet(NAMES, GUESSES, CONFIDENCE, pictures, title="my <photos>", **options)


def order(text: str) -> list[str]:
    return re.findall(r'alt="The photo (.*?)"', text)


def test_photos_are_shown_by_class_the_least_sure_first():
    text = page(problems=[("broken.jpg", "not an image")])
    assert order(text) == ["caf\\xe9.jpg", "&lt;b&gt;.jpg", "a.jpg", "c.jpg"]
    assert text.count("data:image/jpeg;base64,") == 4
    assert "my &lt;photos&gt;" in text
    assert "over 99.9 %" in text
    assert "<bdi>broken.jpg</bdi>: not an image" in text
    assert "Unsure" not in text


def test_unsure_photos_come_first_and_apart():
    text = page(unsure_below=0.8)
    assert text.index("<h2>Unsure</h2>") < text.index("<h2>Sure</h2>")
    unsure, sure = text.split("<h2>Sure</h2>")
    assert order(unsure) == ["&lt;b&gt;.jpg", "c.jpg"]
    assert order(sure) == ["caf\\xe9.jpg", "a.jpg"]
    assert "below 80\N{NO-BREAK SPACE}%" in unsure
    assert "2 unsure" in unsure


def test_each_photo_is_read_once():
    read = []
    page(lambda k: read.append(k) or picture(k), unsure_below=0.8)
    assert sorted(read) == [0, 1, 2, 3]


def test_of_many_photos_the_least_sure_ones_are_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "N_PICTURES", 2)
    text = page()
    assert order(text) == ["&lt;b&gt;.jpg", "c.jpg"]
    assert "2 photos that the model is surest of are not shown" in text
    assert "2 photos, 1 shown" in text


def test_the_page_asks_nobody_for_anything():
    text = page()
    assert not re.search(r"https?://|<script", text)
    assert "default-src 'none'" in text


def test_a_photo_that_is_gone_has_no_thumbnail(tmp_path: Path):
    assert thumbnail(save(tmp_path / "a.png")).startswith("data:image/jpeg;base64,")
    assert thumbnail(tmp_path / "gone.png") == ""
