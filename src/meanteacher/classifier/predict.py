"""Any number of images through a model in constant memory, and predictions.csv."""

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from meanteacher.classifier.bundle import Bundle, ClassifierModule
from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import CPU, choose_device
from meanteacher.files import atomic_file
from meanteacher.passes import to_channels_last
from meanteacher.photos.decode import UnreadableError, decode, squeeze
from meanteacher.photos.duplicates import digest
from meanteacher.photos.find import EXTENSIONS, Photos, images_below, printable
from meanteacher.photos.tables import read_npz


def folded(network: nn.Module) -> nn.Module:
    """A network with the same output but for rounding, and the given one untouched.

    In evaluation a normalisation is a scale and a shift for each channel, which the convolution before it can do on
    the way. It can still where the largest of neighbours is taken between the two, if no scale is negative.
    """
    traced = fx.symbolic_trace(network)
    calls: dict[object, list[fx.Node]] = {}
    for node in traced.graph.nodes:
        calls.setdefault(node.target, []).append(node)
    for node in list(traced.graph.nodes):
        norm = _module(traced, node)
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_var is None:
            continue
        before = _only_input(node)
        if isinstance(_module(traced, before), nn.MaxPool2d) and not _turns_over(norm):
            before = _only_input(before)
        conv = _module(traced, before)
        if not isinstance(conv, nn.Conv2d) or before is None or len(calls[before.target]) > 1:
            continue
        merged = fuse_conv_bn_eval(conv, norm)
        merged.weight.data = to_channels_last(merged.weight.data)
        traced.set_submodule(str(before.target), merged)
        node.replace_all_uses_with(node.args[0])
        traced.graph.erase_node(node)
    traced.recompile()
    return traced.eval()


def _module(traced: fx.GraphModule, node: fx.Node | None) -> nn.Module | None:
    if node is None or node.op != "call_module":
        return None
    return traced.get_submodule(str(node.target))


def _only_input(node: fx.Node | None) -> fx.Node | None:
    """The node whose output goes here and nowhere else."""
    before = node.args[0] if node else None
    return before if isinstance(before, fx.Node) and len(before.users) == 1 else None


def _turns_over(norm: nn.BatchNorm2d) -> bool:
    """Whether it makes the largest value of some channel the smallest."""
    return norm.affine and bool((norm.weight < 0).any())


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


HEADER = "path,label,confidence,second,second_confidence,third,third_confidence,problem\n"
_N_GUESSES = 3
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_TO_QUOTE = frozenset(',"\r\n')

Progress = Callable[[int, int], None]
"""Told after every chunk: images so far, and images in all."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of predicting."""

    complete: bool
    """False where it was stopped; then there is no file."""
    n_images: int
    n_unreadable: int
    counts: Mapping[str, int]
    """class -> images that were given it"""


def cell(text: str) -> str:
    """The text as a cell of a table: printable, and never a formula to a spreadsheet.

    >>> cell("=1+1.jpg"), cell("a=b.jpg")
    ("'=1+1.jpg", 'a=b.jpg')
    """
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def prediction_rows(
    names: Sequence[str], probabilities: np.ndarray, class_names: Sequence[str], unreadable: Mapping[int, str]
) -> str:
    """The whole of predictions.csv.

    Args:
        names: of the images
        probabilities: [N, n_classes]
        class_names: in the order of the columns
        unreadable: row -> reason, for images that have no prediction
    """
    return HEADER + _rows(names, torch.from_numpy(probabilities), _cells(class_names), unreadable)


def predict(
    bundle: Bundle,
    photos: Path,
    out: Path,
    *,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Predict every image below `photos`, in the order of their names, and write `out`: whole or not at all.

    Raises:
        InputError: there is no image or no such device, or `out` is there already or cannot be written.
    """
    chosen = choose_device(device)
    if out.is_dir() or (out.exists() and not overwrite):
        raise InputError(f"{out} exists already. Replace it with --overwrite, or give another file with --out.")
    found = find_images(photos)
    classes = _cells(bundle.class_names)
    counts = torch.zeros(len(classes), dtype=torch.int64)
    done = n_unreadable = 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as file, closing(classify(bundle, found, device=chosen)) as chunks:
            file.write(HEADER.encode("utf-8"))
            for chunk in chunks:
                if should_stop():
                    raise _StoppedError
                names = found.names[done : done + len(chunk.index)]
                file.write(_rows(names, chunk.probabilities, classes, chunk.unreadable).encode("utf-8"))
                guesses = chunk.probabilities.argmax(1)
                readable = [row for row in range(len(names)) if row not in chunk.unreadable]
                counts += guesses[readable].bincount(minlength=len(classes))
                n_unreadable += len(chunk.unreadable)
                done += len(names)
                progress(done, len(found))
    except _StoppedError:
        return Summary(complete=False, n_images=done, n_unreadable=n_unreadable, counts={})
    except OSError as error:
        raise InputError(f"Cannot write {out} ({error}). Make room, or give another file with --out.") from error
    by_class = dict(zip(bundle.class_names, counts.tolist(), strict=True))
    return Summary(complete=True, n_images=done, n_unreadable=n_unreadable, counts=by_class)


class _StoppedError(Exception):
    """Leaves the file unwritten."""


def _rows(names: Sequence[str], probabilities: Tensor, classes: Sequence[str], unreadable: Mapping[int, str]) -> str:
    best = probabilities.topk(min(_N_GUESSES, len(classes)))
    guesses = [
        ",".join([f"{classes[k]},{p:.4f}" for k, p in zip(ks, ps, strict=True)])
        for ks, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    # With two classes there is no third guess.
    rest = ",," * (_N_GUESSES - min(_N_GUESSES, len(classes)))
    paths = _cells(names)
    rows = [f"{path},{guess}{rest},\n" for path, guess in zip(paths, guesses, strict=True)]
    for row, reason in unreadable.items():
        rows[row] = f"{paths[row]}{',,' * _N_GUESSES},{_cells([reason])[0]}\n"
    return "".join(rows)


def _cells(texts: Sequence[str]) -> list[str]:
    """Cells with quotes around what needs them."""
    safe = [cell(text) for text in texts]
    return [text if _TO_QUOTE.isdisjoint(text) else '"' + text.replace('"', '""') + '"' for text in safe]
