"""From a folder of photos to tar shards of WebDataset's format, which training reads in any order."""

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image

from meanteacher.core import UNLABELLED, InputError, Interrupted, Progress
from meanteacher.data.dataset import BrokenImages
from meanteacher.data.shards.index import ShardIndex, file_sha256, index_path, load_index, make_index
from meanteacher.files import LOCK, atomic_file, locked_folder
from meanteacher.files.images import UnreadableError, as_jpeg_or_png
from meanteacher.files.limits import MAX_BYTES
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.seeding import generator

_EXTENSIONS = {"jpg": ("jpg", "jpeg"), "png": ("png",)}


@dataclass(frozen=True, slots=True)
class Packed:
    """What `pack` wrote."""

    shards: tuple[Path, ...]
    n_images: int
    n_labelled: int
    class_names: tuple[str, ...]
    n_bytes: int
    """Size of all shards together."""
    not_packed: tuple[tuple[str, str], ...]
    """Photos that cannot be read, and why."""


def pack(
    photos: Path | str,
    shards: Path | str,
    *,
    labels: Path | str | None = None,
    images_per_shard: int | None = None,
    megabytes: float = 500,
    max_broken: int = 100,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Packed:
    """Write the images of a folder to tar shards, as `meanteacher pack` does.

    JPEG and PNG files are copied byte by byte. Images of other formats and those of an .npz file become PNG, without
    loss. An image keeps its path as its name, a .cls member beside it has the number of its class, and unlabelled
    images have none. Beside each shard lies its index: names, places, labels, and the shard's sha256.

    Images are in random order, the same for the same photos, so that every shard has images of every class. The same
    photos become the same bytes.

    Args:
        photos: a folder with one folder per class and one named `unlabelled`; any folder, with `labels`; or an .npz
        shards: the folder to write to. Its name begins those of the shards: train/train-000000.tar
        labels: CSV file of path,label
        images_per_shard: begin another shard after so many images
        megabytes: begin another shard before it would become larger, if `images_per_shard` is not given
        max_broken: how many photos may be left out because they cannot be read
        overwrite: replace shards in the folder
        resume: keep the complete shards of an interrupted call and write the others; a shard is written again if one
            of its photos has another label, size or time of change than before
        progress: called with the number of images so far and in all
        should_stop: called after every image; True stops

    Raises:
        InputError: an argument is wrong, or too many photos cannot be read.
        Interrupted: `should_stop` returned True. Complete shards are kept.

    >>> from tempfile import mkdtemp
    >>> from PIL import Image
    >>> photos = Path(mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (photos / name).mkdir()
    ...     Image.new("RGB", (8, 8), name == "cat" and "red" or "blue").save(photos / name / "1.png")
    >>> packed = pack(photos, mkdtemp())
    >>> packed.n_images, packed.class_names
    (2, ('cat', 'dog'))
    """
    out = Path(shards)
    if images_per_shard is not None and images_per_shard < 1:
        raise InputError(f"images_per_shard={images_per_shard}: a shard has at least one image.")
    if not megabytes > 0:
        raise InputError(f"megabytes={megabytes:g}: give a size above 0.")
    found = find_photos(Path(photos), None if labels is None else Path(labels), min_classes=0)
    packer = _Packer(found, _keys(found.names), BrokenImages(max_broken), progress, should_stop)
    try:
        with locked_folder(out, "packing into"):
            _check_folder(out, overwrite=overwrite, resume=resume)
            indexes = {}
            for number, group in enumerate(_groups(found, images_per_shard, int(megabytes * 1e6))):
                path = out / f"{out.absolute().name}-{number:06}.tar"
                indexes[path] = packer.shard(path, group)
            for path in _written(out)[len(indexes) :]:  # of an earlier call with more of them
                _remove(path)
    except OSError as error:
        raise InputError(f"Cannot write to {out} ({error}). Make room, or give another folder.") from error
    return Packed(
        shards=tuple(indexes),
        n_images=sum(map(len, indexes.values())),
        n_labelled=sum(label != UNLABELLED for index in indexes.values() for label in index.labels),
        class_names=found.class_names,
        n_bytes=sum(index.n_bytes for index in indexes.values()),
        not_packed=tuple(photo for index in indexes.values() for photo in index.not_packed),
    )


def _check_folder(out: Path, *, overwrite: bool, resume: bool) -> None:
    if overwrite:
        for path in _written(out):
            _remove(path)
    elif not resume and any(path.name != LOCK for path in out.iterdir()):
        raise InputError(
            f"{out} is not empty. Give another folder; or --resume to go on with an interrupted call, or --overwrite "
            "to replace the shards in it."
        )


def _written(out: Path) -> list[Path]:
    """The shards in a folder, in their order. Other files are none of ours."""
    pattern = re.compile(re.escape(out.absolute().name) + r"-\d{6,}\.tar")
    return sorted(path for path in out.iterdir() if pattern.fullmatch(path.name))


def _remove(shard: Path) -> None:
    index_path(shard).unlink(missing_ok=True)
    shard.unlink()


def _groups(photos: Photos, images_per_shard: int | None, n_bytes: int) -> Iterator[list[int]]:
    """Positions of the photos of each shard, by their number or by the sizes of their files."""
    group: list[int] = []
    size = 0
    for position in torch.randperm(len(photos), generator=generator(0, "pack/order")).tolist():
        # Its header, the label's member, and the bytes that fill up blocks.
        member = _size(photos, position) + 4 * tarfile.BLOCKSIZE
        if group and (size + member > n_bytes if images_per_shard is None else len(group) == images_per_shard):
            yield group
            group, size = [], 0
        group.append(position)
        size += member
    yield group


def _size(photos: Photos, position: int) -> int:
    if photos.arrays is not None:
        return int(photos.arrays[position].nbytes)
    try:
        return photos.path(position).stat().st_size
    except OSError:
        return 0  # a broken link, which is reported when it is read


@dataclass(slots=True, eq=False)
class _Packer:
    """Writes one shard after the other."""

    photos: Photos
    keys: Sequence[str]
    broken: BrokenImages
    progress: Progress
    should_stop: Callable[[], bool]
    done: int = 0

    def shard(self, path: Path, group: Sequence[int]) -> ShardIndex:
        index = self._complete(path, group)
        if index is None:
            return self._write(path, group)
        for photo in index.not_packed:
            self.broken.note(*photo)
        self.done += len(group)
        self.progress(self.done, len(self.photos))
        return index

    def _complete(self, path: Path, group: Sequence[int]) -> ShardIndex | None:
        """The index of an undamaged shard that an earlier call wrote of the same photos."""
        if not path.exists() or not index_path(path).exists():
            return None
        index = load_index(index_path(path))
        same = index.packed_from == self._packed_from(group) and index.sha256 == file_sha256(path)
        return index if same else None

    def _packed_from(self, group: Sequence[int]) -> str:
        """Digest of the photos of a shard.

        A photo counts as changed if its size or the time of its last change is another one. An image of an .npz file
        counts by its pixels.
        """
        digest = hashlib.sha256(repr(self.photos.class_names).encode())
        for position in group:
            if self.photos.arrays is not None:
                version = hashlib.sha256(self.photos.arrays[position].tobytes()).hexdigest()
            else:
                version = _version(self.photos.path(position))
            digest.update(repr((self.keys[position], int(self.photos.labels[position]), version)).encode())
        return digest.hexdigest()

    def _write(self, path: Path, group: Sequence[int]) -> ShardIndex:
        not_packed = []
        packed_from = self._packed_from(group)  # before the photos are read: they may change meanwhile
        index_path(path).unlink(missing_ok=True)
        with atomic_file(path) as file, tarfile.open(fileobj=file, mode="w", encoding="utf-8") as tar:
            for position in group:
                if self.should_stop():
                    raise Interrupted("Packing was interrupted; the complete shards are kept.")
                try:
                    content, extension = self._encoded(position)
                except UnreadableError as error:
                    not_packed.append((self.photos.names[position], str(error)))
                    self.broken.note(*not_packed[-1])
                else:
                    _add(tar, f"{self.keys[position]}.{extension}", content)
                    label = int(self.photos.labels[position])
                    if label != UNLABELLED:
                        _add(tar, f"{self.keys[position]}.cls", str(label).encode())
                self.done += 1
                self.progress(self.done, len(self.photos))
        index = make_index(path)
        index.sha256, index.packed_from = file_sha256(path), packed_from
        index.class_names, index.modified, index.not_packed = self.photos.class_names, 0, not_packed
        index.save(index_path(path))
        return index

    def _encoded(self, position: int) -> tuple[bytes, str]:
        if self.photos.arrays is not None:
            file = BytesIO()
            Image.fromarray(self.photos.arrays[position]).save(file, "PNG")
            return file.getvalue(), "png"
        content, kind = as_jpeg_or_png(self.photos.path(position))
        if len(content) > MAX_BYTES:
            raise UnreadableError(f"too large: {len(content):,} bytes")
        own = self.photos.names[position].rpartition(".")[2]
        return content, own if own.lower() in _EXTENSIONS[kind] else kind


def _version(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""  # a broken link
    return f"{status.st_size} {status.st_mtime_ns}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # with neither time nor owner, so that the same photos become the same bytes
    member.size = len(content)
    tar.addfile(member, BytesIO(content))


def _keys(names: Sequence[str]) -> list[str]:
    """The name of each image's members up to their extension: its path, changed if that would be ambiguous.

    >>> _keys(["daisy/a.jpg", "daisy/a.png", "daisy/b.c.jpg", "../d"])
    ['daisy/a', 'daisy/a_2', 'daisy/b_c', 'd']
    """
    keys: dict[str, None] = {}
    for name in names:
        *folders, last = name.split("/")
        stem, dot, _ = last.rpartition(".")
        # WebDataset takes what follows the first dot for the extension.
        last = (stem if dot else last).replace(".", "_") or "image"
        # The names in an .npz file can be anything, and somebody may extract the shard.
        stem = "/".join([*(folder for folder in folders if folder.strip(".")), last])
        key, copy = stem, 1
        while key in keys:
            copy += 1
            key = f"{stem}_{copy}"
        keys[key] = None
    return list(keys)
