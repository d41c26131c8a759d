"""The one lock: a folder or a file that one process at a time may write."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
