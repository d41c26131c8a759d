"""A file that is there whole, or as it was before."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def opened_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends well, so that nobody ever reads half of it."""
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


def write_whole(path: Path, data: bytes) -> None:
    """Write a file at once, whatever happens meanwhile."""
    with opened_whole(path) as file:
        file.write(data)
