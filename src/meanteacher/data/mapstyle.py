"""Data sets of other libraries: any object with a length and rows of an image and a label, without their libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from meanteacher.core import LOCATION, UNLABELLED, InputError, Progress
from meanteacher.data.dataset import Dataset, TrainTest

_IMAGES = ("image", "img", "images", "pixel_values", "x")
_LABELS = ("label", "labels", "fine_label", "target", "y")
"""Names of columns, in the order in which they are looked for."""


class Rows(Protocol):
    """A map-style data set, as PyTorch calls it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class MapStyle:
    """A map-style data set as the source of a recipe: of torchvision, of Hugging Face, or of your own.

    A row is an image and a label, as a pair or by names. An image is a PIL image, an array or a tensor; all have one
    size. A label is a whole number; -1 or None is unknown. The data are read into memory once per run, and the record
    of a run has their fingerprint.

    >>> rows = [(np.full((4, 4, 3), value, dtype=np.uint8), value % 2) for value in range(6)]
    >>> data = MapStyle(name="mine", train=rows, test=rows[:2]).load(Path())
    >>> data.train.images.shape, data.train.class_names
    (torch.Size([6, 3, 4, 4]), ('0', '1'))
    """

    name: str
    """Stands for the data in the description of a recipe."""
    train: Rows = field(metadata=LOCATION)
    test: Rows = field(metadata=LOCATION)
    class_names: tuple[str, ...] = ()
    """If not given, those that the data set itself has, or numbers."""
    image: str | None = None
    """Name of the column of images, if it is not found by itself."""
    label: str | None = None
    """Name of the column of labels."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Read all rows; the arguments are those of `Source`."""
        columns = {"image": self.image, "label": self.label}
        parts = [_read(part, rows, columns, progress) for part, rows in (("train", self.train), ("test", self.test))]
        names = self.class_names or _class_names(self.train, self.label)
        names = names or tuple(map(str, range(1 + max(int(labels.max()) for _, labels in parts))))
        train, test = (Dataset(images, labels, names) for images, labels in parts)
        return TrainTest(train=train, test=test)


def _read(part: str, rows: Rows, columns: Mapping[str, str | None], progress: Progress | None) -> tuple[Tensor, Tensor]:
    if not len(rows):
        raise InputError(f"The {part} data set is empty: give at least one row.")
    images, labels = [], []
    for index in range(len(rows)):
        image, label = example(rows[index], **columns)
        tensor = as_image(image)
        images.append(tensor[None] if tensor.ndim == 2 else tensor)
        labels.append(UNLABELLED if label is None else int(label))
        if (images[-1].shape, images[-1].dtype) != (images[0].shape, images[0].dtype):
            first, other = (f"{list(image.shape)} in {image.dtype}" for image in (images[0], images[-1]))
            raise InputError(
                f"Images of a data set have one size and type, but {part} image {index} is {other} and the first one "
                f"is {first}. Let a transform of the data set resize and convert them."
            )
        if progress is not None:
            progress(index + 1, len(rows))
    return torch.stack(images), torch.tensor(labels)


def example(row: Any, *, image: str | None = None, label: str | None = None) -> tuple[Any, Any]:
    """Image and label of a row, or images and labels of a batch: a pair, a mapping, or images alone.

    >>> example({"img": "picture", "fine_label": 3, "coarse_label": 1})
    ('picture', 3)
    >>> example(("picture", None)), example(torch.zeros(2))
    (('picture', None), (tensor([0., 0.]), None))
    """
    if isinstance(row, Mapping):
        names = [image or next((name for name in _IMAGES if name in row), "image")]
        names += [label or next((name for name in _LABELS if name in row), "")]
        if names[0] not in row or (label and label not in row):
            raise InputError(
                f"A row has no column {names[0] if names[0] not in row else label!r}. It has: "
                f"{', '.join(map(str, row))}. Name the columns: image=..., label=..."
            )
        return row[names[0]], row.get(names[1])
    if isinstance(row, tuple | list):
        if len(row) != 2:
            raise InputError(f"A row or batch is a pair (images, labels), got {len(row)} parts. Leave out the others.")
        return row[0], row[1]
    return row, None


def as_image(image: Any) -> Tensor:
    """A PIL image, an array or a tensor as a tensor [C, H, W]: bytes, or float32; rows of a table stay as they are.

    The channels of a tensor come first. Those of an array come last if there are 1 or 3 of them there.

    >>> as_image(np.zeros((4, 5, 3), dtype=np.uint8)).shape, as_image(np.zeros(7)).dtype
    (torch.Size([3, 4, 5]), torch.float32)
    """
    if isinstance(image, Tensor):
        tensor = image
    else:
        convert: Callable[[str], Any] | None = getattr(image, "convert", None)  # of PIL
        array = np.array(image if convert is None or image.mode in ("L", "RGB") else convert("RGB"))
        tensor = torch.from_numpy(array)
        if tensor.ndim == 2 and convert is not None:
            tensor = tensor[None]  # a grey image; an array may be a series
        elif tensor.ndim == 3 and tensor.shape[-1] in (1, 3):
            tensor = tensor.permute(2, 0, 1).contiguous()
    if tensor.is_floating_point():
        return tensor.float()
    if tensor.dtype != torch.uint8:
        raise InputError(f"Images are bytes (uint8) or floating point, got {tensor.dtype}. Convert them first.")
    return tensor


def _class_names(rows: Rows, label: str | None) -> tuple[str, ...]:
    """As torchvision (`classes`) or Hugging Face (`features`) has them; else none."""
    features = getattr(rows, "features", None)
    if isinstance(features, Mapping):
        column = label or next((name for name in _LABELS if name in features), "")
        return tuple(getattr(features.get(column), "names", None) or ())
    return tuple(map(str, getattr(rows, "classes", ())))
