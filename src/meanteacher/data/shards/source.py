"""Tar shards of WebDataset's format, local or downloaded once, whose images are read one by one from their places."""

import hashlib
import re
from array import array
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.data.dataset import BrokenImages, TrainTest
from meanteacher.data.download import fetch
from meanteacher.data.encoded import EncodedDataset
from meanteacher.data.shards.index import (
    MAX_BROKEN,
    MAX_INDEX_BYTES,
    Names,
    ShardIndex,
    file_sha256,
    index_path,
    load_index,
    make_index,
)
from meanteacher.files import open_regular, write_atomic

_FOLDER = "shards"
"""Below the data folder: shards from the web, and indexes of shards that have none."""
_MAX_SHARDS = 100_000
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SHARD_NAME = re.compile(r"[\w.+=@~-]+\.tar", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Images in tar shards, as `meanteacher pack` or WebDataset's ShardWriter writes them.

    The fields name shards: by the path of a folder or of files, absolute or below the data folder, with the wildcards
    `*` and `?` in the file name; or by a URL (http, https) of shards that `pack` wrote, which are downloaded once and
    verified. Either may have a range: "https://host/train-{000000..000127}.tar".

    An image can be read at any time, so the order of training is that of any other source: a function of the seed.
    Memory holds 40 bytes per image and its name.
    """

    train: str
    """Labelled and unlabelled images."""
    test: str
    """Labelled images."""
    unlabelled: str = ""
    """More training images, whose labels are ignored."""
    resize: int = 256
    """The shorter side of the image of which evaluation sees the centre."""
    size: int = 224
    """Height and width of what training and evaluation see."""
    max_broken: int = 100
    """How many training images, and how many test images, may be broken. They are left out; the record counts and
    names them."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_broken <= MAX_BROKEN:
            raise InputError(f"max_broken={self.max_broken}: give a number of images from 0 to {MAX_BROKEN:,}.")

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Read or make the index of every shard, and no image. An InputError names a missing or damaged shard."""
        train, test = _Part(self.max_broken), _Part(self.max_broken)
        try:
            for path in _local(self.train, folder, progress):
                train.add(path, _index(path, folder))
            for path in _local(self.unlabelled, folder, progress) if self.unlabelled else []:
                train.add(path, _index(path, folder), hide_labels=True)
            for path in _local(self.test, folder, progress):
                test.add(path, _index(path, folder), need_labels=True)
        except OSError as error:
            raise InputError(f"A shard or its index cannot be read ({error}). Make it readable.") from error
        class_names = train.class_names()
        if not class_names:
            raise InputError(f"No image in {self.train} has a label: there is nothing to learn the classes from.")
        if not len(test.labels):
            raise InputError(f"No image in {self.test} has a label: there is nothing to measure an error on.")
        return TrainTest(
            train=train.dataset(class_names, resize=self.resize, size=self.size),
            test=test.dataset(class_names, resize=self.resize, size=self.size),
        )


@dataclass(eq=False)
class ShardFiles:
    """The images of many shards. Each read opens its shard, so there may be any number of shards and of threads."""

    shards: list[Path] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The number of images up to the end of each shard."""
    names: Names = field(default_factory=Names)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def read(self, position: int) -> bytes:
        size = self.sizes[position]
        with open_regular(self._shard(position), buffering=0) as file:
            file.seek(self.offsets[position])
            content = file.read(size)
        if len(content) < size:
            raise OSError(f"the shard is truncated: {size - len(content):,} bytes of this image are missing")
        return content

    def where(self, position: int) -> str:
        return f"{self.names[position]!r} in {self._shard(position)}"

    def _shard(self, position: int) -> Path:
        return self.shards[bisect_right(self.ends, position)]


class _Part:
    """The training images, or the test images, put together shard by shard."""

    def __init__(self, max_broken: int) -> None:
        self.files, self.labels = ShardFiles(), array("q")
        self.broken = BrokenImages(max_broken)
        self._numbers: dict[str, int] = {}
        self._has_names: bool | None = None

    def add(self, path: Path, index: ShardIndex, *, hide_labels: bool = False, need_labels: bool = False) -> None:
        for name, reason in index.broken:
            self.broken.note(f"{name!r} in {path}", reason)
        known = self._known(path, index) if not hide_labels else {}
        labels = array("q", (known.get(label, UNLABELLED) for label in index.labels))
        if need_labels and UNLABELLED in labels:
            kept = ShardIndex(index.n_bytes)
            for row in zip(index.names, index.offsets, index.sizes, labels, strict=True):
                if row[3] == UNLABELLED:
                    self.broken.note(f"{row[0]!r} in {path}", "no label")
                else:
                    kept.add(*row)
            index, labels = kept, kept.labels
        self.files.shards.append(path)
        self.files.names.extend(index.names)
        self.files.offsets.extend(index.offsets)
        self.files.sizes.extend(index.sizes)
        self.files.ends.append(len(self.files.offsets))
        self.labels.extend(labels)

    def _known(self, path: Path, index: ShardIndex) -> dict[int, int]:
        """Label in this shard -> label in this part."""
        used = set(index.labels) - {UNLABELLED}
        if not used and not index.class_names:
            return {}
        has_names = index.class_names is not None
        if self._has_names not in (None, has_names):
            raise InputError(
                f"{path} has {'names' if has_names else 'numbers'} of classes as labels, but the shards before it have "
                f"{'numbers' if has_names else 'names'}. Shards that were packed have their names in .index.jsonl "
                "files beside them: copy those, too."
            )
        self._has_names = has_names
        names = index.class_names or [str(number) for number in range(max(used) + 1)]
        return {label: self._numbers.setdefault(name, len(self._numbers)) for label, name in enumerate(names)}

    def class_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._numbers) if self._has_names else self._numbers)

    def dataset(self, class_names: tuple[str, ...], *, resize: int, size: int) -> EncodedDataset:
        place = {name: number for number, name in enumerate(class_names)}
        strange = sorted(name for name in self._numbers if name not in place)
        if strange:
            raise InputError(
                f"{self.files.shards[0].parent} has images of the class {strange[0]!r}, which the training images do "
                "not have. Pack both with the same classes."
            )
        to_place = torch.tensor([*(place[name] for name in self._numbers), UNLABELLED])  # the last one is at -1
        labels = to_place[torch.from_numpy(np.array(self.labels))]
        return EncodedDataset(self.files, labels, class_names, resize=resize, size=size, broken=self.broken)


def _index(shard: Path, folder: Path) -> ShardIndex:
    """The index beside the shard, or the one that was made for it earlier, or a new one."""
    status = shard.stat()
    beside = index_path(shard)
    if beside.exists():
        index = load_index(beside)
        if index.n_bytes != status.st_size:
            raise InputError(
                f"{shard} has {status.st_size:,} bytes, but by its index it has {index.n_bytes:,}. Copy both again; "
                f"or if the shard is right, delete {beside}."
            )
        _verify(shard, index, folder)
        return index
    made = _cached(shard, folder, ".index.jsonl")
    if made.exists():
        index = load_index(made)
        if (index.n_bytes, index.modified) == (status.st_size, status.st_mtime_ns):
            return index
    index = make_index(shard)
    with suppress(OSError):  # it only saves time
        made.parent.mkdir(parents=True, exist_ok=True)
        index.save(made)
    return index


def _verify(shard: Path, index: ShardIndex, folder: Path) -> None:
    """Refuse a shard whose sha256 is not the one in its index.

    It is computed once, and again after the size or the time of change of the shard has changed.
    """
    status = shard.stat()
    version = f"{index.sha256} {status.st_size} {status.st_mtime_ns}\n"
    noted = _cached(shard, folder, ".verified")
    with suppress(OSError, ValueError):
        if noted.read_text(encoding="utf-8") == version:
            return
    if index.sha256 and (found := file_sha256(shard)) != index.sha256:
        raise InputError(
            f"{shard} is not the shard of its index: its sha256 is {found} instead of {index.sha256}. Copy both "
            f"again; or if the shard is right, delete {index_path(shard)}."
        )
    with suppress(OSError):  # it only saves time
        noted.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(noted, version)


def _cached(shard: Path, folder: Path, ending: str) -> Path:
    """The place of a file about a shard below the data folder."""
    return folder / _FOLDER / f"{shard.stem[:40]}-{_digest(str(shard.absolute()))}{ending}"


def _local(pattern: str, folder: Path, progress: Progress | None) -> list[Path]:
    """The shards that a pattern names, in the order of their names, downloaded if they are on the web."""
    if pattern.startswith(("http://", "https://")):
        return [_downloaded(url, folder, progress) for url in _expanded(pattern)]
    if pattern.startswith("file:"):
        pattern = unquote(urlsplit(pattern).path)
    found = []
    for path in _expanded(pattern):
        whole = folder / Path(path).expanduser()
        if whole.is_dir():
            whole /= "*.tar"
        matches = sorted(whole.parent.glob(whole.name.replace("[", "[[]")))
        if not matches:
            raise InputError(
                f"There is no shard {whole}. Give an absolute path or one below the data folder {folder}; write "
                "shards with `meanteacher pack PHOTOS --shards DIR`."
            )
        found += matches
    return found


def _expanded(pattern: str) -> list[str]:
    """The names that a range {first..last} stands for.

    >>> _expanded("train-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    if not 0 <= int(last) - int(first) < _MAX_SHARDS:
        raise InputError(f"{pattern}: a range goes from a number to a larger one, at most {_MAX_SHARDS:,} in all.")
    numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
    return [
        name for number in numbers for name in _expanded(pattern[: match.start()] + number + pattern[match.end() :])
    ]


def _downloaded(url: str, folder: Path, progress: Progress | None) -> Path:
    """The local copy of a shard. Its index is downloaded first, with the expected size and sha256."""
    place, _, name = url.rpartition("/")
    if not _SHARD_NAME.fullmatch(name):
        raise InputError(f"{url} does not name a shard: its URL ends in NAME.tar, and NAME has no special characters.")
    shard = folder / _FOLDER / _digest(place) / name
    index = index_path(shard)
    if not index.exists():
        try:
            fetch(f"{place}/{index.name}", index, sha256=None, max_bytes=MAX_INDEX_BYTES)
        except InputError as error:
            raise InputError(
                f"{error} A shard on the web needs the index that `meanteacher pack` writes beside it; shards without "
                "one can be downloaded by other means and given by their path."
            ) from error
    expected = load_index(index)
    if not shard.exists() or shard.stat().st_size != expected.n_bytes:
        fetch(url, shard, sha256=expected.sha256, progress=progress)
    return shard


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
