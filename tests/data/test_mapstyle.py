"""Data sets of other libraries as sources of recipes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data import MapStyle
from meanteacher.experiment import DataSpec, run
from meanteacher.experiment.describe import describe, fingerprint
from support import MadeUp, recipe

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 3), dtype=np.uint8)
LABELS = [2, 0, None, 1, 1, -1, 0]


class Torchvision:
    """Pairs of a PIL image and a label, and `classes`; no iteration of its own."""

    classes = ("bee", "ant", "cow")

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return Image.fromarray(PIXELS[index]), LABELS[index]


class HuggingFace:
    """Mappings with PIL images, and `features`."""

    features: Mapping[str, Any] = {"img": object(), "fine_label": SimpleNamespace(names=["bee", "ant", "cow"])}

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"coarse": 9, "img": Image.fromarray(PIXELS[index]), "fine_label": LABELS[index]}


def sets() -> Iterator[Any]:
    yield Torchvision()
    yield HuggingFace()
    yield [(pixels, label) for pixels, label in zip(PIXELS, LABELS, strict=True)]
    yield [(torch.from_numpy(pixels).permute(2, 0, 1), label) for pixels, label in zip(PIXELS, LABELS, strict=True)]


@pytest.mark.parametrize("rows", [*sets()], ids=["torchvision", "hugging-face", "arrays", "tensors"])
def test_rows_of_every_kind_give_the_same_data(rows: Any, tmp_path: Path):
    shown: list[tuple[int, int]] = []
    data = MapStyle(name="mine", train=rows, test=rows).load(tmp_path, lambda done, total: shown.append((done, total)))
    assert torch.equal(data.train.images, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert data.train.labels.tolist() == [2, 0, UNLABELLED, 1, 1, UNLABELLED, 0]
    named = isinstance(rows, Torchvision | HuggingFace)
    assert data.test.class_names == (("bee", "ant", "cow") if named else ("0", "1", "2"))
    assert shown[-1] == (7, 7)
    assert data.official is None


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA"])
def test_pictures_of_every_mode_are_grey_or_coloured_bytes(mode: str, tmp_path: Path):
    picture = Image.fromarray(PIXELS[0]).convert(mode)
    rows = [(picture, 0), (picture, 1)]
    images = MapStyle(name="mine", train=rows, test=rows).load(tmp_path).train.images
    assert images.shape == (2, 1 if mode == "L" else 3, 5, 4)
    assert images.dtype == torch.uint8


def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path):
    def load(rows: Any, **more: Any) -> None:
        MapStyle(name="mine", train=rows, test=rows, **more).load(tmp_path)

    with pytest.raises(InputError, match=r"train image 1 is \[3, 2, 4\] .* and the first one is \[3, 5, 4\]"):
        load([(PIXELS[0], 0), (PIXELS[1][:2], 0)])
    with pytest.raises(InputError, match=r"no column 'image'. It has: picture, kind. Name the columns"):
        load([{"picture": PIXELS[0], "kind": 1}])
    with pytest.raises(InputError, match=r"no column 'kinds'. It has: picture, kind"):
        load([{"picture": PIXELS[0], "kind": 1}], image="picture", label="kinds")
    with pytest.raises(InputError, match="got 3 parts"):
        load([(PIXELS[0], 1, "more")])
    with pytest.raises(InputError, match=r"got torch.int64. Convert them first"):
        load([(PIXELS[0].astype(np.int64), 1)])
    with pytest.raises(InputError, match="train data set is empty"):
        load([])


def test_recipe_on_such_a_data_set_trains_what_the_same_tensors_train(tmp_path: Path):
    whole = MadeUp().load(tmp_path)
    rows = {
        part: [{"image": image, "label": int(label)} for image, label in zip(data.images, data.labels, strict=True)]
        for part, data in (("train", whole.train), ("test", whole.test))
    }
    source = MapStyle(name="stripes", **rows, class_names=whole.train.class_names)
    original = recipe(steps=10)
    borrowed = original.varied(data=DataSpec(source=source, n_labelled=9, validation=0.1))
    first, second = (
        run(one, seed=0, out=tmp_path / name, data=one.data.source.load(tmp_path)).record
        for name, one in (("ours", original), ("theirs", borrowed))
    )
    assert first is not None
    assert second is not None
    assert first.errors == second.errors
    assert second.data.fingerprint == first.data.fingerprint
    # The rows are no part of the description, their name is.
    assert describe(source) == {
        "is": "meanteacher.MapStyle",
        "name": "stripes",
        "class_names": ["left", "middle", "right"],
        "image": None,
        "label": None,
    }
    assert fingerprint(borrowed) != fingerprint(original)
