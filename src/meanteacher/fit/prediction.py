"""A label for every image of a folder: predictions.csv."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from meanteacher.core import InputError
from meanteacher.devices import choose_device
from meanteacher.fit.bundle import Bundle
from meanteacher.fit.classify import classify, find_images
from meanteacher.fit.photos import printable
from meanteacher.fit.whole import opened_whole

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
        with opened_whole(out) as file, closing(classify(bundle, found, device=chosen)) as chunks:
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
