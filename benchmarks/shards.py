"""Tar shards: how fast images are read and decoded, by threads and by processes, and in how much memory.

python -m benchmarks --only shards
"""

import io
import multiprocessing
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.images import write_photos
from benchmarks.timing import Compare, ratio
from meanteacher.data import EncodedDataset, Fixed, ImageStream, make_split
from meanteacher.data.shards import Shards
from meanteacher.photos.folder.packing import pack
from meanteacher.seeding import generator
from meanteacher.views import Chain

_ROLES = ("student", "teacher")
_ROWS = 64
_WORKERS = 2
_OTHERS = 200
"""Rows of a batch that are drawn from all images."""


def rates(compare: Compare, *, n_photos: int = 500) -> dict[str, Any]:
    """Images per second with two workers, for photos of 640x480 pixels: two crops of 224x224 of each.

    Read from random places of a shard and in their order; decoded by threads, as training does, and by processes,
    which send back pixels.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder / "photos", n_photos)
        pack(folder / "photos", folder / "shards", megabytes=10)
        with _decoding(folder) as (dataset, pool):
            order = torch.randperm(n_photos, generator=generator(0, "bench"))
            step = count()

            def rows() -> list[int]:
                return [int(order[(next(step) * _ROWS + k) % n_photos]) for k in range(_ROWS)]

            timings = compare(
                {
                    "read in order": lambda: [dataset.files.read(k % n_photos) for k in range(_ROWS)],
                    "read at random": lambda: [dataset.files.read(k) for k in rows()],
                    "threads": lambda: _crops(dataset, rows()),
                    "processes": lambda: list(pool.map(_crops_of_part, np.array_split(rows(), 2 * _WORKERS))),
                }
            )
    numbers = {f"{name.replace(' ', '_')}_per_second": _ROWS / timing.median for name, timing in timings.items()}
    return {**numbers, "processes_by_threads": ratio(timings, "processes", "threads")}


@contextmanager
def _decoding(folder: Path) -> Iterator[tuple[EncodedDataset, ProcessPoolExecutor]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_WORKERS, context, initializer=_open, initargs=(folder, 1)) as pool:
        yield _dataset(folder, _WORKERS), pool


def _dataset(folder: Path, threads: int) -> EncodedDataset:
    pattern = str(folder / "shards" / "*.tar")
    dataset = Shards(train=pattern, test=pattern).load(folder).train
    assert isinstance(dataset, EncodedDataset)
    return replace(dataset, threads=threads)


_opened: EncodedDataset
"""In a process that decodes."""


def _open(folder: Path, threads: int) -> None:
    global _opened  # noqa: PLW0603 - a process that decodes has one data set
    _opened = _dataset(folder, threads)


def _crops(dataset: EncodedDataset, rows: list[int]) -> dict[str, Tensor]:
    draws = {role: generator(0, role) for role in _ROLES}
    return dataset.begin_crops(torch.tensor(rows), draws)()[1]


def _crops_of_part(rows: "np.ndarray[Any, np.dtype[np.int64]]") -> dict[str, "np.ndarray[Any, Any]"]:
    return {role: crops.numpy() for role, crops in _crops(_opened, rows.tolist()).items()}


def memory(*, n_images: int = 200_000, n_shards: int = 20) -> dict[str, Any] | None:
    """By how many MB the resident memory grows while an epoch of that many small images is streamed, labelled in part.

    From before the index is made to the largest value after any step.
    """
    if not Path("/proc/self/statm").exists():
        return None
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_shards(folder / "few", 2000, 2)
        _write_shards(folder / "many", n_images, n_shards)
        first = _stream(folder, "few")
        for step in range(10):  # threads have their memory, and everything is imported
            first[step]
        start = _resident()
        stream = _stream(folder, "many")
        loaded = most = _resident()
        seen = torch.zeros(n_images, dtype=torch.bool)
        for step in range(n_images // _OTHERS):
            seen[stream[step].index] = True
            most = max(most, _resident())
        return {
            "images": n_images,
            "images_seen": int(seen.sum()),
            "grown_mb_by_loading": loaded - start,
            "grown_mb_in_all": most - start,
        }


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6


def _stream(folder: Path, name: str) -> ImageStream:
    data = Shards(train=f"{name}/*.tar", test="few/*.tar", resize=16, size=16, max_broken=2000).load(folder)
    split = make_split(data.train.labels, n_classes=data.train.n_classes, n_labelled=None, seed=0)
    sampler = Fixed(size=_OTHERS + 2, labelled=2, unlabelled_pool="all").sampler(split, 0)
    return ImageStream(data.train, sampler, views=dict.fromkeys(_ROLES, Chain()), normalise=Tensor.float, seed=0)


def _write_shards(folder: Path, n_images: int, n_shards: int) -> None:
    """Every image has a member of its own, every tenth a label."""
    folder.mkdir()
    image = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(image, "JPEG")
    for shard in range(n_shards):
        with (folder / f"{shard:06}.tar").open("wb") as tar:
            for k in range(shard, n_images, n_shards):
                members = {"jpg": image.getvalue()}
                if k % 10 == 0:
                    members["cls"] = str(k // 10 % 10).encode()
                for extension, content in members.items():
                    member = tarfile.TarInfo(f"{k % 100}/image-{k:08}.{extension}")
                    member.size = len(content)
                    tar.write(member.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE))
            tar.write(bytes(2 * tarfile.BLOCKSIZE))
