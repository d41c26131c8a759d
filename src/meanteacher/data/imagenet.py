"""ImageNet (ILSVRC 2012) from folders of files, one per class, decoded when they are needed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.data.dataset import TrainTest
from meanteacher.data.encoded import EncodedDataset
from meanteacher.data.split import read_label_list
from meanteacher.files import read_regular
from meanteacher.files.limits import MAX_BYTES
from meanteacher.formats import listed

_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, kw_only=True)
class ImageNet:
    """1,281,167 training and 50,000 validation photos in 1,000 classes, the validation photos to test on.

    They lie in imagenet/train/CLASS/ and imagenet/val/CLASS/ below the data folder, as JPEG or PNG files. A class is
    called like its folder, for instance n01440764. Nothing is downloaded, since the licence forbids it, and nothing is
    copied. For other photos in the same layout, say how many there are.
    """

    n_classes: int = 1000
    n_train: int = 1_281_167
    n_test: int = 50_000
    resize: int = 256
    """The shorter side of the image of which evaluation sees the centre."""
    size: int = 224
    """Height and width of what training and evaluation see."""
    label_list: str | None = None
    """File below imagenet/ with the training images that keep their label, one "name class" per line. The authors
    have such lists of 10 % of the labels. All other labels are hidden; `n_labelled=None` takes all listed ones."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """List the files, or raise an InputError if they are not what the fields say. Reads no image."""
        root = folder / "imagenet"
        for part in ("train", "val"):
            if not (root / part).is_dir():
                raise InputError(
                    f"{root / part} is not a folder. Expected {root}/train/CLASS/*.JPEG and {root}/val/CLASS/*.JPEG. "
                    "ImageNet's licence does not allow an automatic download: get it from image-net.org and unpack or "
                    "link it there, or give another folder with --data DIR."
                )
        names = tuple(_classes(root / "train"))
        self._check("classes", root / "train", len(names), "n_classes")
        others = set(_classes(root / "val")) ^ set(names)
        if others:
            raise InputError(
                f"{root / 'train'} and {root / 'val'} need folders of the same names, one per class, but only one of "
                f"them has {listed(sorted(others), most=3)}."
            )
        train, test = self._part(root / "train", names, "n_train"), self._part(root / "val", names, "n_test")
        if self.label_list is not None:
            labelled = read_label_list(
                root / self.label_list, names=train.files.names, labels=train.labels, class_names=names
            ).labelled
            labels = torch.full_like(train.labels, UNLABELLED)
            labels[labelled] = train.labels[labelled]
            train = replace(train, labels=labels)
        return TrainTest(train=train, test=test)

    def _part(self, root: Path, names: Sequence[str], field: str) -> EncodedDataset:
        found = [_images(root, name) for name in names]
        empty = [name for name, files in zip(names, found, strict=True) if not files]
        if empty:
            raise InputError(
                f"{root} has no image ({', '.join(_SUFFIXES)}) in {listed(empty, most=3)}: "
                "every class needs at least one."
            )
        files = [file for of_class in found for file in of_class]
        self._check("images", root, len(files), field)
        labels = [torch.full((len(of_class),), label) for label, of_class in enumerate(found)]
        return EncodedDataset(
            FolderFiles(root, tuple(name for name, _ in files), tuple(size for _, size in files)),
            torch.cat(labels),
            tuple(names),
            resize=self.resize,
            size=self.size,
        )

    def _check(self, what: str, root: Path, found: int, field: str) -> None:
        expected = getattr(self, field)
        if found != expected:
            raise InputError(
                f"{root} has {found:,} {what}, expected {expected:,}. Complete it, or if these are the ones to use, "
                f"set data.source.{field}={found}."
            )


@dataclass(frozen=True, eq=False)
class FolderFiles:
    """Files below a folder."""

    root: Path
    names: tuple[str, ...]
    """Relative to the folder, with a slash on every system."""
    sizes: tuple[int, ...]

    def read(self, position: int) -> bytes:
        return read_regular(self.root / self.names[position], MAX_BYTES)

    def where(self, position: int) -> str:
        return str(self.root / self.names[position])


def _classes(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(root: Path, name: str) -> list[tuple[str, int]]:
    """The images of one class and their sizes in bytes, in the order of their names."""
    with os.scandir(root / name) as entries:
        return sorted(
            (f"{name}/{entry.name}", entry.stat().st_size)
            for entry in entries
            if entry.name.lower().endswith(_SUFFIXES) and not entry.name.startswith(".") and entry.is_file()
        )
