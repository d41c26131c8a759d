"""Images in files, and tar shards of them, made up in a moment."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog")
Members = Sequence[tuple[str, bytes]]


def picture(k: int, side: int = 12, kind: str = "PNG") -> bytes:
    """Another image for each k, of noise, which does not compress."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(k).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file, kind)
    return file.getvalue()


def truncated(k: int) -> bytes:
    """The first half of an image: its header is intact."""
    whole = picture(k)
    return whole[: len(whole) // 2]


class InMemory:
    """Files of images that are in memory, and what has been read of them."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        self.contents, self.read_positions = contents, list[int]()
        self.names, self.sizes = [f"{k}.png" for k in range(len(contents))], [len(content) for content in contents]

    def read(self, position: int) -> bytes:
        self.read_positions.append(position)
        return self.contents[position]

    def where(self, position: int) -> str:
        return self.names[position]


def write_tar(path: Path, members: Members, tar_format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def numbered(
    start: int, n: int, *, n_labelled: int | None = None, broken: Sequence[int] = ()
) -> list[tuple[str, bytes]]:
    """Members of n examples: labelled alternately with the two classes, the last ones unlabelled."""
    members = []
    for k in range(start, start + n):
        members.append((f"{k:04}.png", truncated(k) if k in broken else picture(k)))
        if n_labelled is None or k - start < n_labelled:
            members.append((f"{k:04}.cls", CLASSES[k % 2].encode()))
    return members


def write_shards(folder: Path, *, n_train: int = 40, n_labelled: int = 16, broken: Sequence[int] = ()) -> Path:
    """The data folder: two shards of training images, and one of test images."""
    half = n_train // 2
    for number, start in enumerate((0, half)):
        members = numbered(start, half, n_labelled=n_labelled // 2, broken=broken)
        write_tar(folder / f"train-{number}.tar", members)
    write_tar(folder / "test-0.tar", numbered(1000, 8, broken=broken))
    return folder
