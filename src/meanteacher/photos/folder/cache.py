"""The decoded images of a folder in one file, mapped into memory and valid until an image file changes."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.files import locked_folder, make_own, remove, write_atomic
from meanteacher.files.arrays import array_header, mapped_array
from meanteacher.files.images import UnreadableError, decode, header
from meanteacher.files.typed import Count, FileName, read_json
from meanteacher.photos.folder.find import Photos

Stamp = tuple[int, int] | None
"""A file's size in bytes and the nanosecond of its last change; None if the file could not be read."""

_VERSION = 1
"""Version of the decoded pixels: increase it when decoding changes, and every cache is made again."""

_MAX_LIST_BYTES = 1 << 28
_MAX_HEADERS = 20_000
_CHUNK = 256
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """All images at one size."""

    images: NDArray[np.uint8]
    """[N, 3, size, size], mapped from the file; zeros if unreadable."""
    unreadable: dict[int, str]
    """index -> reason"""


@dataclass(frozen=True, slots=True, eq=False)
class _Cache(Decoded):
    """The images of an earlier call, and the state of their files at that time."""

    names: tuple[str, ...]
    stamps: tuple[Stamp, ...]


def decode_all(photos: Photos, size: int, folder: Path, *, progress: Progress | None = None) -> Decoded:
    """Decode the images that `folder` does not contain yet, or whose files have changed since."""
    progress = progress or (lambda done, total: None)
    file = folder / f"images-{size}.npy"
    try:
        with locked_folder(make_own(folder), "decoding images into"):
            stamps = _stamps(photos)
            old = _read_cache(file, photos.root, size)
            if old is not None and old.names == photos.names and old.stamps == stamps:
                progress(len(photos), len(photos))
            else:
                needed, free = len(photos) * (3 * size * size + 100), shutil.disk_usage(folder).free
                if needed > free:
                    raise InputError(
                        f"The decoded images need {needed / 1e9:.2f} GB in {folder}, but {free / 1e9:.2f} GB are free: "
                        "make room, or give another folder."
                    )
                _write(file, photos, size, stamps, old, progress)
                old = _read_cache(file, photos.root, size)
                assert old is not None
    except OSError as error:
        raise InputError(f"Cannot write decoded images to {folder} ({error.strerror}): give another folder.") from error
    return old


def read_headers(photos: Photos) -> NDArray[np.float64]:
    """Width and height as displayed, and the time of the shot in seconds, of each image [N, 3]; NaN if unknown.

    Of more than 20,000 images those with a label are read, and as many from first to last.
    """
    n = len(photos)
    found = np.full((n, 3), np.nan)
    if photos.arrays is not None:
        found[:, :2] = photos.arrays.shape[2], photos.arrays.shape[1]
        return found
    spread = np.linspace(0, n - 1, min(n, _MAX_HEADERS)).round().astype(int)
    for k in np.union1d(spread, np.flatnonzero(photos.labels != UNLABELLED)[:_MAX_HEADERS]).tolist():
        with suppress(UnreadableError):
            read = header(photos.path(k))
            found[k] = read.width, read.height, read.taken
    return found


def _stamps(photos: Photos) -> tuple[Stamp, ...]:
    if photos.arrays is not None:
        return (_stamp(photos.root),) * len(photos)
    return tuple(_stamp(photos.path(k)) for k in range(len(photos)))


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """The JSON file beside the decoded images: each image's name, size in bytes, time and why it is unreadable."""

    version: int
    root: FileName
    images: list[tuple[FileName, Count | None, Count | None, str | None]]


def _read_cache(file: Path, root: Path, size: int) -> _Cache | None:
    """The cache, if it is complete and of these images."""
    try:
        about = read_json(file.with_suffix(".json"), _About, most=_MAX_LIST_BYTES)
        names = tuple(name for name, *_ in about.images)
        # Not "r": torch takes no array that is read-only.
        images = mapped_array(file, (len(names), 3, size, size), np.uint8, "c")
        stamps = tuple(
            None if n_bytes is None or time is None else (n_bytes, time) for _, n_bytes, time, _ in about.images
        )
        unreadable = {k: reason for k, (*_, reason) in enumerate(about.images) if reason is not None}
        is_ours = about.version == _VERSION and about.root == str(root.resolve())
    # Whatever is wrong, the cache can be made again.
    except (OSError, ValueError):
        return None
    return _Cache(images, unreadable, names, stamps) if is_ours else None


def _write(
    file: Path, photos: Photos, size: int, stamps: tuple[Stamp, ...], old: _Cache | None, progress: Progress
) -> None:
    about = file.with_suffix(".json")
    # Not files.atomic_file: the part has the same name at every attempt, so that the next one overwrites what a killed
    # process left, and the list must be deleted between flushing the pixels to disk and renaming them.
    part = file.with_name(f".writing-{file.name}")
    remove(part)
    try:
        with part.open("xb") as out:
            out.write(array_header((len(photos), 3, size, size), np.uint8))
            out.flush()
            failed = _fill(part, out.tell(), photos, size, stamps, old, progress)
            os.fsync(out.fileno())
        # The list says that the pixels are complete: it is deleted first and written last.
        about.unlink(missing_ok=True)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    rows = []
    for k, (name, stamp) in enumerate(zip(photos.names, stamps, strict=True)):
        reason, is_lasting = failed.get(k, (None, True))
        n_bytes, time = stamp if stamp is not None and is_lasting else (None, None)
        rows.append((name, n_bytes, time, reason))
    content = {"version": _VERSION, "root": str(photos.root.resolve()), "images": rows}
    write_atomic(about, json.dumps(content).encode())


def _fill(
    out: Path, start: int, photos: Photos, size: int, stamps: tuple[Stamp, ...], old: _Cache | None, progress: Progress
) -> dict[int, tuple[str, bool]]:
    """Write all pixels after the header, several chunks at a time. Returns index -> (reason, whether it is lasting)."""
    n, n_bytes = len(photos), 3 * size * size
    rows = {} if old is None else {name: k for k, name in enumerate(old.names) if k not in old.unreadable}

    def copy_or_decode(k: int, image: NDArray[np.uint8]) -> None:
        row = rows.get(photos.names[k])
        if old is not None and row is not None and old.stamps[row] == stamps[k]:
            image[:] = old.images[row]
        else:
            image[:] = decode(photos.picture(k), size).transpose(2, 0, 1)

    def work(chunk: range) -> dict[int, tuple[str, bool]]:
        failed = {}
        block = np.zeros((len(chunk), 3, size, size), np.uint8)
        for image, k in zip(block, chunk, strict=True):
            try:
                copy_or_decode(k, image)
            except UnreadableError as error:
                failed[k] = (str(error), error.lasting)
        # Opened for each chunk: threads that share a file would share its position, and Windows has no pwrite.
        with out.open("r+b") as file:
            file.seek(start + chunk.start * n_bytes)
            file.write(block.data)
        return failed

    # Small enough to show progress and to need little memory, large enough to make the overhead per chunk small.
    length = max(1, min(_CHUNK, _CHUNK_BYTES // n_bytes, n // 50))
    chunks = [range(first, min(first + length, n)) for first in range(0, n, length)]
    failed: dict[int, tuple[str, bool]] = {}
    done = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            running = {pool.submit(work, chunk): len(chunk) for chunk in chunks}
            for future in as_completed(running):
                failed |= future.result()
                done += running[future]
                progress(done, n)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return failed
