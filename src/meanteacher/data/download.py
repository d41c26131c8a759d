"""Downloads of the data files: verified, complete or not at all, with clear errors for a machine without network."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from meanteacher.core import InputError, Progress
from meanteacher.files import atomic_file

FOLDER_VARIABLE = "MEANTEACHER_DATA"
DEFAULT_FOLDER = Path("~/.cache/meanteacher")

_PIECE = 1 << 20
_TRIES = 3
_OTHER_FOLDER = f"with --data DIR or the environment variable {FOLDER_VARIABLE}"


class _ServerError(Exception):
    """The server or the connection failed. Never an OSError, which here means that the local disk did."""

    def __init__(self, reason: str, *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


def data_folder(option: Path | None) -> Path:
    """The folder of the benchmarks' files: the option, else `MEANTEACHER_DATA`, else the user's cache.

    For a user without a home folder the cache is below the working folder.

    >>> data_folder(Path("images")).as_posix()
    'images'
    """
    # A variable that is set but empty means "not set": Path("") would silently be the working folder.
    folder = Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER) if option is None else option
    try:
        return folder.expanduser()
    except RuntimeError as error:  # there is no such home folder
        if folder == DEFAULT_FOLDER:
            return Path(*folder.parts[1:])
        raise InputError(
            f"{folder}: there is no home folder of that user. Give another folder {_OTHER_FOLDER}."
        ) from error


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Download `url` to `path`, which then holds either the verified file or what it held before.

    Temporary faults (no connection, a broken one, a server's 5xx) are retried after `pause` seconds, then after twice
    that. A wrong checksum is not: the server would send the same bytes again. Several processes may download the same
    file at once. A sha256 of None is for a file that is checked when it is read; `progress` is called with bytes after
    every piece, if the server states how many there are.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            digest, received = hashlib.sha256(), 0
            with atomic_file(path) as file:
                for piece, total in _pieces(url, timeout):
                    file.write(piece)
                    digest.update(piece)
                    received += len(piece)
                    if max_bytes is not None and received > max_bytes:
                        raise InputError(f"{url} has more than the {max_bytes:,} bytes that were expected.")
                    if progress is not None and total is not None:
                        progress(received, total)
                if sha256 is not None and digest.hexdigest() != sha256:
                    raise InputError(
                        f"{url} is not the file that was expected: its sha256 is {digest.hexdigest()} instead of "
                        f"{sha256}, so nothing was kept. It may have been replaced on the way. Get the official file "
                        f"by other means and put it at {path}."
                    )
            return
        except OSError as fault:
            raise InputError(
                f"Could not write {path}: {fault}. Free some space or make the folder writable, or give another one "
                f"{_OTHER_FOLDER}."
            ) from fault
        except _ServerError as fault:
            if attempt == _TRIES or not fault.retry:
                times = "once" if attempt == 1 else f"{attempt} times"
                raise InputError(
                    f"Could not download {url} (tried {times}): {fault}. Check the network connection and run again, "
                    f"or get the file by other means and put it at {path}. Another folder can be given {_OTHER_FOLDER}."
                ) from fault
        time.sleep(pause * 2 ** (attempt - 1))


def _pieces(url: str, timeout: float) -> Iterator[tuple[bytes, int | None]]:
    """The body piece by piece, each with the stated length of the whole."""
    request = urllib.request.Request(url, headers={"User-Agent": "meanteacher"})
    received = 0
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            total: int | None = response.length
            while piece := response.read(_PIECE):
                received += len(piece)
                yield piece, total
    except urllib.error.HTTPError as fault:
        fault.close()  # it holds the open response
        temporary = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
        retry = fault.code >= HTTPStatus.INTERNAL_SERVER_ERROR or fault.code in temporary
        raise _ServerError(f"the server answered {fault.code} {fault.reason}", retry=retry) from fault
    except urllib.error.URLError as fault:
        raise _ServerError(f"no connection ({fault.reason})") from fault
    except (OSError, http.client.HTTPException) as fault:
        raise _ServerError(f"the connection failed after {received} bytes ({fault!r})") from fault
    # Read in pieces, a connection that closes early looks like the end of the file.
    if total is not None and received < total:
        raise _ServerError(f"the connection was cut after {received} of {total} bytes")
