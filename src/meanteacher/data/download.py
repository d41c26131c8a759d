"""Getting a benchmark's files: verified, all or nothing, and with a way out for a machine without network."""

import hashlib
import http.client
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

from meanteacher.core import InputError

Progress = Callable[[int, int | None], None]
"""Told after every piece: bytes so far, and bytes in all where the server says so."""

FOLDER_VARIABLE = "MEANTEACHER_DATA"
DEFAULT_FOLDER = Path("~/.cache/meanteacher")

_PIECE = 1 << 20
_WORTH_RETRYING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class _NoAnswerError(Exception):
    """The server's side failed. Never an OSError, which here means that our own disk did."""

    def __init__(self, reason: str, *, may_pass: bool = True) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


def data_folder(option: Path | None) -> Path:
    """The folder of the benchmarks' files: the option, else `MEANTEACHER_DATA`, else the user's cache.

    >>> data_folder(Path("images")).as_posix()
    'images'
    """
    if option is not None:
        return option.expanduser()
    # A variable that is set but empty means "not set": Path("") would silently be the working folder.
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).expanduser()


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str,
    progress: Progress | None = None,
    tries: int = 3,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Download `url` to `path`, which afterwards holds either the whole verified file or what it held before.

    A fault that may pass (no connection, a cut, a server's 5xx) is tried again after `pause` seconds, then
    after twice that. A wrong checksum is not: the server would send the same bytes again.
    """
    assert tries > 0
    for attempt in range(1, tries + 1):
        try:
            _download(url, path, sha256=sha256, progress=progress, timeout=timeout)
            return
        except _NoAnswerError as fault:
            if attempt == tries or not fault.may_pass:
                times = "once" if attempt == 1 else f"{attempt} times"
                raise InputError(
                    f"Could not download {url} (tried {times}): {fault}. Check the network connection and "
                    f"run again, or get the file by other means and put it at {path}. To use another folder, "
                    f"name it with --data DIR or the environment variable {FOLDER_VARIABLE}."
                ) from fault
        time.sleep(pause * 2 ** (attempt - 1))


def _download(url: str, path: Path, *, sha256: str, progress: Progress | None, timeout: float) -> None:
    # Beside the target, since only a rename within one file system is atomic; and under a name of its own,
    # since another process may be downloading the same file.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    digest = hashlib.sha256()
    received = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                for piece, total in _pieces(url, timeout):
                    file.write(piece)
                    digest.update(piece)
                    received += len(piece)
                    if progress is not None:
                        progress(received, total)
            if digest.hexdigest() != sha256:
                raise InputError(
                    f"{url} is not the file that was expected: its sha256 is {digest.hexdigest()} instead of "
                    f"{sha256}, so nothing was kept. Something between here and the server may have replaced "
                    f"it; get the official file by other means and put it at {path}."
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as fault:
        raise InputError(
            f"Could not write {path}: {fault}. Free some space or make the folder writable, or name another "
            f"one with --data DIR or the environment variable {FOLDER_VARIABLE}."
        ) from fault


def _pieces(url: str, timeout: float) -> Iterator[tuple[bytes, int | None]]:
    """The body, piece by piece, with its announced length. Whatever fails here is not our disk."""
    request = urllib.request.Request(url, headers={"User-Agent": "meanteacher"})
    received = 0
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            total: int | None = response.length
            while piece := response.read(_PIECE):
                received += len(piece)
                yield piece, total
    except urllib.error.HTTPError as fault:
        # It holds the open response.
        fault.close()
        raise _NoAnswerError(
            f"the server answered {fault.code} {fault.reason}",
            may_pass=fault.code >= HTTPStatus.INTERNAL_SERVER_ERROR or fault.code in _WORTH_RETRYING,
        ) from fault
    except urllib.error.URLError as fault:
        raise _NoAnswerError(f"no connection ({fault.reason})") from fault
    except (OSError, http.client.HTTPException) as fault:
        raise _NoAnswerError(f"the connection failed after {received} bytes ({fault!r})") from fault
    # A connection that closes early looks like the end of the file when it is read in pieces.
    if total is not None and received < total:
        raise _NoAnswerError(f"the connection was cut after {received} of {total} bytes")
