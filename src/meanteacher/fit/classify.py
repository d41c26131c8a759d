"""Any number of images through a model, in constant memory: read, decoded and judged a chunk at a time."""

import copy
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import CPU
from meanteacher.fit.bundle import Bundle, ClassifierModule
from meanteacher.fit.decode import UnreadableError, decode, squeeze
from meanteacher.fit.duplicates import digest
from meanteacher.fit.folding import folded
from meanteacher.fit.npz import read_npz
from meanteacher.fit.photos import Photos
from meanteacher.fit.walk import EXTENSIONS, images_below

_CHUNK = 128
"""A network on a CPU gains nothing from more, and a person sees progress."""
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """What the model says of a chunk of images."""

    index: Sequence[int]
    """Their positions among the photos."""
    probabilities: Tensor
    """[n, n_classes]; meaningless where unreadable."""
    unreadable: dict[int, str]
    """Row of the chunk -> reason."""
    digests: Sequence[bytes]
    """Of the pixels; empty unless asked for."""


def find_images(photos: Path) -> Photos:
    """The images of a folder or an .npz file, all unlabelled, whatever their folders are called.

    Raises:
        InputError: there is none.
    """
    if photos.suffix.lower() == ".npz" and not photos.is_dir():
        content = read_npz(photos)
        names, arrays, n_ignored = content.names, content.images, 0
    else:
        found, n_ignored = images_below(photos)
        names, arrays = tuple(found), None
    if not names:
        raise InputError(f"There is no image in {photos}: give a folder with images ({', '.join(sorted(EXTENSIONS))}).")
    return Photos(photos, names, np.full(len(names), UNLABELLED), (), arrays, n_ignored)


def classify(
    bundle: Bundle,
    photos: Photos,
    index: Sequence[int] | None = None,
    *,
    device: torch.device = CPU,
    with_digests: bool = False,
) -> Generator[Classified, None, None]:
    """Judge the images at these positions, or all, in their order.

    Each thread decodes a chunk and then takes it through the network alone. So no thread waits for another within a
    layer, decoding and computing overlap, and two cores are twice as fast as one. A GPU computes for all of them.
    """
    index = range(len(photos)) if index is None else index
    size = bundle.size
    classifier = ClassifierModule(bundle.normalise, folded(bundle.network), bundle.temperature).eval()
    # A copy, because a module is moved in place, and the folded network has layers in common with the bundle's.
    classifier = copy.deepcopy(classifier).to(device)

    def work(chunk: Sequence[int]) -> Classified:
        # The channels of a pixel stay side by side: the network is fastest with them last.
        pixels = np.zeros((len(chunk), size, size, 3), np.uint8)
        unreadable = {}
        for row, k in enumerate(chunk):
            try:
                pixels[row] = _pixels(photos, k, size)
            except UnreadableError as error:
                unreadable[row] = str(error)
        with torch.inference_mode():
            images = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2)
            digests = [digest(image.transpose(2, 0, 1)) for image in pixels] if with_digests else []
            return Classified(chunk, classifier(images).cpu(), unreadable, digests)

    length = max(1, min(_CHUNK, _CHUNK_BYTES // (3 * size * size)))
    with _threads() as (pool, n_threads):
        waiting: deque[Future[Classified]] = deque()
        for start in range(0, len(index), length):
            waiting.append(pool.submit(work, index[start : start + length]))
            # One more for each thread than it works on, so that none runs dry.
            if len(waiting) == 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _pixels(photos: Photos, k: int, size: int) -> NDArray[np.uint8]:
    if photos.arrays is None:
        return decode(photos.path(k), size)
    return np.asarray(squeeze(Image.fromarray(photos.arrays[k]), size))


@contextmanager
def _threads() -> Iterator[tuple[ThreadPoolExecutor, int]]:
    """As many threads as torch would take for one network, each with a network to itself."""
    n = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                yield pool, n
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        torch.set_num_threads(n)
