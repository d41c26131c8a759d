"""A folder that others write to as the source of an on-line run."""

import errno
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError, check_choice
from meanteacher.files import atomic_file, read_regular
from meanteacher.files.images import UnreadableError, decode
from meanteacher.online.arrivals import Arrived, Position, check_batch_size, joined, to_images, to_labels

After = Literal["keep", "delete", "move"]
WhenFull = Literal["say", "drop"]
_NO_CLASS, _DONE = "unlabelled", "done"
_INCOMPLETE = (".part", ".tmp")
_ARRAYS = ".npz"

Signature = tuple[int, int]
"""Size and time of change: a file that was replaced is another file."""


@dataclass(slots=True)
class _Place:
    """The position: files that were read, files that cannot be read, and the rows used of the one that was begun."""

    seen: dict[str, Signature] = field(default_factory=dict)
    broken: dict[str, Signature] = field(default_factory=dict)
    begun: str = ""
    begun_as: Signature = (0, 0)
    rows: int = 0

    def waits(self, name: str, signature: Signature) -> bool:
        return signature not in (self.seen.get(name), self.broken.get(name))


class SpoolFolder:
    """A folder that others write to. Each file is read once, in the order of the file names.

    A file is an .npz with the arrays `images` [N, ...] and, optionally, `labels` [N], -1 where unknown; or an image
    file in a folder CLASS/ or unlabelled/. Whoever writes it gives it a name that sorts in the order of time, and
    another name, with a dot in front or .part or .tmp at the end, until it is complete: `put` does both. Only regular
    files are read, no links and no devices. What cannot be read is named and skipped, and read again if it changes.

    One file is in memory at a time. Where the writers are faster than the training the folder grows: `backlog` says
    how many files wait, and `limit` is the number from which the reader says so, or drops files.

    Args:
        path: of the folder
        shape: of one image; image files are squeezed into squares, shape (3, side, side)
        class_names: a label is a position in it; they are also the names of the folders
        batch_size: examples per batch, across files; fewer in the last one
        after: what happens to files that were read, once a checkpoint says so; "move" puts them into done/
        wait: seconds without a new file after which the stream ends; `math.inf` for a stream without end
        poll: seconds between two looks into the folder
        limit: files that may wait
        when_full: where more wait, "say" announces it, "drop" leaves out the oldest files that have no label
        max_bytes: of a file and of its arrays; a larger one is skipped
        should_stop: asked before every file, after every batch and while waiting; True ends the stream
        announce: called with one sentence on every file that is skipped, and when too many wait

    >>> from tempfile import mkdtemp
    >>> spool = SpoolFolder(mkdtemp(), shape=(2,), class_names=("cat", "dog"), batch_size=8)
    >>> path = spool.put(np.zeros((3, 2), np.float32), labels=np.array([0, 1, -1]))
    >>> next(spool.read()).labels
    tensor([ 0,  1, -1])
    """

    def __init__(
        self,
        path: Path | str,
        *,
        shape: tuple[int, ...],
        class_names: Sequence[str],
        batch_size: int,
        after: After = "keep",
        wait: float = 0.0,
        poll: float = 0.2,
        limit: int | None = None,
        when_full: WhenFull = "say",
        max_bytes: int = 1 << 28,
        should_stop: Callable[[], bool] = lambda: False,
        announce: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        check_batch_size(batch_size)
        check_choice("after", after, get_args(After))
        check_choice("when_full", when_full, get_args(WhenFull))
        names = tuple(class_names)
        if not names or len(set(names)) < len(names) or {_NO_CLASS, _DONE} & set(names):
            raise InputError(
                f"Give each class a name of its own, other than {_NO_CLASS!r} and {_DONE!r}; got {', '.join(names)}."
            )
        self.path, self.shape, self.class_names = Path(path), tuple(shape), names
        if not self.path.is_dir():
            raise InputError(f"{self.path} is not a folder. Make it before anyone writes to it.")
        self.batch_size, self.after, self.wait, self.poll = batch_size, after, wait, poll
        self.limit, self.when_full, self.max_bytes = limit, when_full, max_bytes
        self.should_stop, self.announce = should_stop, announce
        self.skipped: list[tuple[str, str]] = []
        """(name, reason) of what could not be read, in this process."""
        self.dropped: list[str] = []
        """Files left out because too many waited, in this process."""
        self._place = _Place()
        self._taken: dict[str, Signature] = {}
        self._said_full = False

    def put(self, images: Any, labels: Any = None, *, name: str | None = None) -> Path:
        """Write examples for the reader, the whole file or nothing. Returns its path.

        Args:
            images: [N, ...]
            labels: [N], -1 where unknown; None where all are
            name: without .npz; the time if not given
        """
        path = self.path / f"{name or f'{time.time_ns():020d}'}{_ARRAYS}"
        with atomic_file(path) as file:
            if labels is None:
                np.savez(file, images=np.asarray(images))
            else:
                np.savez(file, images=np.asarray(images), labels=np.asarray(labels))
        return path

    def backlog(self) -> int:
        """How many files wait: those of which not all rows have been handed out in a batch."""
        return len(self._waiting())

    def read(self, position: Position = None) -> Iterator[Arrived]:
        """The batches of the files that wait at this position, and of those that are written meanwhile."""
        place = self._place = _restored(position)
        self._taken = {}
        images: list[Tensor] = []
        labels: list[Tensor] = []
        complete: dict[str, Signature] = {}
        for name, signature, file_images, file_labels in self._contents():
            start = place.rows if (name, signature) == (place.begun, place.begun_as) else 0
            while start < len(file_labels):
                end = start + self.batch_size - sum(map(len, labels))
                images.append(file_images[start:end])
                labels.append(file_labels[start:end])
                start = min(end, len(file_labels))
                if start == len(file_labels):
                    complete[name] = signature
                if sum(map(len, labels)) == self.batch_size:
                    place.seen |= complete
                    begun = start < len(file_labels)
                    place.begun, place.begun_as, place.rows = (name, signature, start) if begun else ("", (0, 0), 0)
                    yield Arrived(joined(images), torch.cat(labels), asdict(place))
                    images, labels, complete = [], [], {}
                    if self.should_stop():
                        return
        if labels and not self.should_stop():
            place.seen |= complete
            place.begun, place.begun_as, place.rows = "", (0, 0), 0
            yield Arrived(joined(images), torch.cat(labels), asdict(place))

    def release(self, position: Position) -> None:
        """Delete or move the files that were read before this position, if that is wanted. Broken files stay."""
        if self.after == "keep":
            return
        for name, signature in _restored(position).seen.items():
            path = self.path / name
            with suppress(FileNotFoundError):
                if _signature(path.lstat()) != signature:
                    continue  # another file of the same name, which was not read yet
                if self.after == "delete":
                    path.unlink()
                else:
                    target = self.path / _DONE / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)

    def _contents(self) -> Iterator[tuple[str, Signature, Tensor, Tensor]]:
        """The files that wait, one after the other, and after the last one those that come within `wait` seconds."""
        heard = time.monotonic()
        while not self.should_stop():
            due = self._within_limit([file for file in self._waiting() if self._taken.get(file[0]) != file[1]])
            # With a limit, it is looked after between two files.
            for name, signature in due[:1] if self.limit is not None else due:
                if self.should_stop():
                    return
                self._taken[name] = signature
                try:
                    images, labels = self._file(name)
                except UnreadableError as error:
                    self._place.broken[name] = signature
                    self._skip(name, str(error))
                else:
                    yield name, signature, images, labels
                heard = time.monotonic()
            if not due:
                left = heard + self.wait - time.monotonic()
                if left <= 0:
                    return
                time.sleep(min(self.poll, left))

    def _waiting(self) -> list[tuple[str, Signature]]:
        """The files that wait, in the order of their names, whatever their folder; one that was begun is the first."""
        there, place = dict(self._listed()), self._place
        # Names that are gone need not be remembered.
        place.seen = {name: signature for name, signature in place.seen.items() if name in there}
        place.broken = {name: signature for name, signature in place.broken.items() if name in there}
        waiting = [(name, signature) for name, signature in there.items() if place.waits(name, signature)]
        return sorted(waiting, key=lambda file: (file[0] != place.begun, file[0].rpartition("/")[2], file[0]))

    def _listed(self) -> Iterator[tuple[str, Signature]]:
        for entry in _entries(self.path):
            if entry.is_dir(follow_symlinks=False):
                if entry.name in (*self.class_names, _NO_CLASS):
                    for image in _entries(self.path / entry.name):
                        yield from self._regular(image, f"{entry.name}/{image.name}")
                elif entry.name != _DONE:
                    self._skip(f"{entry.name}/", "no class has this name")
            elif entry.name.endswith(_ARRAYS) or not entry.is_file(follow_symlinks=False):
                yield from self._regular(entry, entry.name)
            else:
                self._skip(entry.name, f"neither {_ARRAYS} nor in the folder of a class")

    def _regular(self, entry: "os.DirEntry[str]", name: str) -> Iterator[tuple[str, Signature]]:
        if entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                yield name, _signature(entry.stat(follow_symlinks=False))
        else:
            self._skip(name, "a link" if entry.is_symlink() else "not a regular file")

    def _within_limit(self, waiting: list[tuple[str, Signature]]) -> list[tuple[str, Signature]]:
        excess = 0 if self.limit is None else len(waiting) - self.limit
        if excess <= 0:
            self._said_full = False
            return waiting
        drops: list[tuple[str, Signature]] = []
        if self.when_full == "drop":
            for name, signature in waiting:
                if len(drops) < excess and name != self._place.begun and self._has_no_label(name):
                    drops.append((name, signature))
            self._place.seen |= dict(drops)
            self.dropped += [name for name, _ in drops]
        if drops or not self._said_full:
            left_out = f"; the oldest {len(drops):,} without a label are left out" if drops else ""
            self.announce(
                f"{len(waiting):,} files wait in {self.path}, more than {self.limit:,}: they are written faster than "
                f"they are trained on{left_out}."
            )
        self._said_full = True
        return [file for file in waiting if file not in drops]

    def _has_no_label(self, name: str) -> bool:
        if not name.endswith(_ARRAYS):
            return name.startswith(f"{_NO_CLASS}/")
        try:
            return bool((self._file(name)[1] == UNLABELLED).all())
        except UnreadableError:
            return False  # it is named when its turn comes

    def _file(self, name: str) -> tuple[Tensor, Tensor]:
        """Images and labels of a file.

        Raises:
            UnreadableError: says why in a few words.
        """
        data = _read(self.path / name, self.max_bytes)
        if name.endswith(_ARRAYS) and "/" not in name:
            return self._arrays(data)
        side = self.shape[-1]
        if self.shape != (3, side, side):
            raise UnreadableError(f"an image file is of shape (3, side, side), the examples are {self.shape}")
        folder = name.partition("/")[0]
        label = UNLABELLED if folder == _NO_CLASS else self.class_names.index(folder)
        pixels = torch.from_numpy(decode(data, side).copy()).permute(2, 0, 1).contiguous()
        return pixels[None], torch.tensor([label])

    def _arrays(self, data: bytes) -> tuple[Tensor, Tensor]:
        try:
            with zipfile.ZipFile(BytesIO(data)) as archive:
                if sum(member.file_size for member in archive.infolist()) > self.max_bytes:
                    raise UnreadableError(f"its arrays are larger than {self.max_bytes:,} bytes")
            with np.load(BytesIO(data), allow_pickle=False) as arrays:
                images = to_images(arrays["images"])
                labels = to_labels(arrays["labels"] if "labels" in arrays.files else None, len(images))
        except (UnreadableError, InputError) as error:
            raise UnreadableError(str(error)) from error
        # A damaged file fails in many ways.
        except Exception as error:
            raise UnreadableError(f"damaged or incomplete ({type(error).__name__})") from error
        if images.shape[1:] != self.shape or len(images) == 0:
            raise UnreadableError(f"images of shape {tuple(images.shape)}, expected [N, *{self.shape}]")
        if not bool(torch.isfinite(images).all()):
            raise UnreadableError("NaN or infinite values")
        if int(labels.min()) < UNLABELLED or int(labels.max()) >= len(self.class_names):
            raise UnreadableError(f"labels from {labels.min()} to {labels.max()}, of {len(self.class_names)} classes")
        return images, labels

    def _skip(self, name: str, reason: str) -> None:
        if (name, reason) not in self.skipped:
            self.skipped.append((name, reason))
            self.announce(f"{self.path / name} is skipped: {reason}.")


def _restored(position: Position) -> _Place:
    """A copy: the position stays as it is. JSON has made lists of its tuples, if it was there."""
    place = _Place(**(position or {}))
    for part in ("seen", "broken"):
        setattr(place, part, {name: (size, changed) for name, (size, changed) in getattr(place, part).items()})
    place.begun_as = (place.begun_as[0], place.begun_as[1])
    return place


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    """What is in the folder, without what is being written."""
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".") and not entry.name.endswith(_INCOMPLETE)]


def _signature(found: os.stat_result) -> Signature:
    return found.st_size, found.st_mtime_ns


def _read(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file, whatever its name has become since it was listed."""
    try:
        data = read_regular(path, max_bytes, follow=False)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UnreadableError(f"larger than {max_bytes:,} bytes") from error
        reason = (error.strerror or type(error).__name__).lower()
        raise UnreadableError(reason, lasting=error.errno == errno.EINVAL) from error
    if not data:
        raise UnreadableError("empty")
    return data
