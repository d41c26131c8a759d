"""Files: the one atomic write, and the one lock."""

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout


class HeldError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` for a `with` block.

    The system gives the lock back when the process ends, in whatever way: the file that stays behind locks nothing.

    Args:
        path: is made where it is missing, its folder is not.
        wait: seconds for which another process may still hold it.

    Raises:
        HeldError: another process holds it.
        OSError: the file cannot be made, or the file system has no locks.
    """
    if not path.parent.is_dir():
        # filelock would make it.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
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
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends without an error, so that nobody reads half of it."""
    # Beside the target, since only a rename within one file system is atomic.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write the whole file, or leave it as it was. Returns the path."""
    with atomic_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def write_json(path: Path, value: object) -> Path:
    """Write a value as JSON, the whole file or nothing. Returns the path."""
    return write_atomic(path, json.dumps(value, indent=1))
