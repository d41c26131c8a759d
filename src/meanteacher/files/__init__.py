"""Files: opening an untrusted one, the one atomic write, and the one lock.

Reads only regular files up to a size limit, because a device never ends and a pipe blocks. Writes through no link, so
that nothing outside the folder changes.
"""

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from meanteacher.core import InputError

LOCK = ".lock"
"""Name of the lock file of an output folder."""
PARTS = ".*.????????.part"
"""Matches the names of files that `atomic_file` has not finished."""
_TAIL_BYTES = 8192
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_SPECIAL = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags of every opened file: a pipe does not block, Windows changes no bytes, no child process inherits it."""


class HeldError(Exception):
    """Another process holds the lock."""


def open_regular(path: Path, *, follow: bool = True, buffering: int = -1) -> IO[bytes]:
    """Open a regular file to read its bytes, or raise an OSError. A link may lead to it, unless `follow` is False."""
    return _opened(path, os.O_RDONLY | (0 if follow else _NO_FOLLOW), "rb", buffering)


def append_to(path: Path) -> IO[bytes]:
    """Open a regular file, or a new one, to append bytes to it. A link raises an OSError."""
    return _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_FOLLOW, "ab")


def _opened(path: Path, flags: int, mode: str, buffering: int = -1) -> IO[bytes]:
    descriptor = os.open(path, flags | _SPECIAL, 0o666)
    try:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, mode, buffering)


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """The content of a regular file, or an OSError if it has more than `most` bytes, before any of them is read."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes, at most {most:,} are read", str(path))
        return file.read(size)


def last_lines(path: Path) -> list[str]:
    """The lines at the end of a regular file, the last one first; none if the file cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()[::-1]
    except OSError:
        return []


def make_own(folder: Path) -> Path:
    """Create a folder inside an output folder if it is missing. Returns it. A link raises an OSError."""
    if folder.is_symlink():  # files would be written elsewhere through it
        raise OSError(errno.ELOOP, "A link, which is not followed", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove(path: Path) -> None:
    """Remove a file, a link (and not its target), or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path`, whose folder exists, for a `with` block.

    The system releases the lock when the process ends in any way. The file that remains locks nothing.

    A HeldError is raised if another process still holds the lock after `wait` seconds, an OSError if the file cannot be
    created or is a link, or if the file system has no locks.
    """
    if not path.parent.is_dir():
        # filelock would make it.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if path.is_symlink() or (path.exists() and not path.is_file()):
        # Some versions of filelock would empty what it leads to.
        raise OSError(errno.ELOOP, "A link or a special file, which is no lock", str(path))
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=wait)
    except Timeout as error:
        raise HeldError(str(path)) from error
    except NotImplementedError as error:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(path)) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_folder(path: Path, doing: str, *, wait: float = 0.0) -> Iterator[None]:
    """Make an output folder and hold its lock for a `with` block, so that one process at a time writes there.

    Also deletes the unfinished files of processes that were killed. An InputError says that another process is `doing`
    something there, for instance "training in", that the folder cannot be written, or that it is a link, which somebody
    else may have put there.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link. Give the folder that it leads to, {path.resolve()}, with --out.")
    with ExitStack() as held:
        try:
            path.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(path / LOCK, wait=wait))
            for part in path.glob(PARTS):
                part.unlink(missing_ok=True)
        except HeldError as error:
            raise InputError(
                f"Another process is {doing} {path}. Wait for it, or give another folder with --out."
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"Cannot write to {path} ({reason}). Give another folder with --out.") from error
        yield


def is_left_over(path: Path) -> bool:
    """Whether a file of an output folder is a lock, or an unfinished file of a killed process."""
    return path.name == LOCK or path.match(PARTS)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when the block ends without an error, so that nobody reads half of it."""
    # Beside the target, since only a rename within one file system is atomic. Shortened, since a name has 255 bytes.
    part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new folder that replaces `path` when the block ends without an error.

    Also removes the remains of processes that were killed while they wrote it. The previous folder is removed last: if
    a process is killed between the two renames, it is the only complete one.
    """
    part, old, lock = _beside(path, secrets.token_hex(4))
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_killed(path, before=False)
    try:
        # A held lock shows others that this process is at work. They hold it for a moment to look.
        with locked(lock, wait=1.0):
            try:
                part.mkdir()
                yield part
                if path.exists():  # a folder cannot take the name of one with content
                    path.rename(old)
                part.rename(path)
            finally:
                with suppress(OSError):
                    remove(part)
    finally:
        lock.unlink(missing_ok=True)
    _clear_killed(path, before=True)


def _beside(path: Path, token: str) -> tuple[Path, Path, Path]:
    """The new folder, the previous one, and the lock of both."""
    part, old, lock = (path.with_name(f".{kind}-{path.name}-{token}") for kind in ("writing", "old", "lock"))
    return part, old, lock


def _clear_killed(path: Path, *, before: bool) -> None:
    """Remove the unfinished folders of killed processes, and with `before` also the previous ones."""
    ours = re.compile(rf"\.(?:writing|old|lock)-{re.escape(path.name)}-([0-9a-f]{{8}})")
    for token in {found[1] for other in path.parent.iterdir() if (found := ours.fullmatch(other.name))}:
        part, old, lock = _beside(path, token)
        with suppress(OSError, HeldError):
            with locked(lock):
                remove(part)
                if before:
                    remove(old)
            lock.unlink(missing_ok=True)


@contextmanager
def reporting_full_disk(path: Path) -> Iterator[None]:
    """Turn the OSError of a disk that is full or not writable into an InputError that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Could not write {path}: {error.strerror or error}. What was saved before is intact: free some space and "
            "resume."
        ) from error


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write the whole file, or leave it as it was. Returns the path."""
    with atomic_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def write_json(path: Path, value: object) -> Path:
    """Write a value as JSON, the whole file or nothing. Returns the path."""
    return write_atomic(path, json.dumps(value, indent=1))
