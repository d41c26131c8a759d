"""Arrays in files: .npz without pickle and without unpacking disproportionately many bytes, .npy of a known shape."""

import io
import math
import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import InputError
from meanteacher.files import open_regular
from meanteacher.formats import escape_name

Kind = TypeVar("Kind", bound=np.generic)
_FREE_BYTES, _MOST_UNPACKED = 1 << 26, 100
"""An .npz may unpack to a hundred times its size, and a small one to so many bytes."""


def read_arrays(
    path: Path, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, NDArray[np.generic]]:
    """Read only the named arrays of an .npz file; an InputError if it is damaged or a required one is missing."""
    try:
        with open_regular(path) as opened:
            _check_unpacked(opened)
            with np.load(opened, allow_pickle=False) as file:
                there = file.files
                arrays = {name: file[name] for name in (*required, *optional) if name in there}
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}: give a folder of images, or an .npz file.") from error
    # A damaged archive makes the reader fail in many ways: BadZipFile, EOFError, zlib.error, ValueError ...
    except Exception as error:
        raise InputError(
            f"{path} cannot be read ({str(error)[:200]}): write it with numpy.savez, from arrays of numbers or of str."
        ) from error
    for name in required:
        if name not in arrays:
            shown = escape_name(", ".join(there)[:200])
            raise InputError(f"{path} contains {shown or 'nothing'} but no array named {name}: add it.")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(f"{path}: {name} is no array: write the file with numpy.savez.")
    return arrays


def _check_unpacked(file: IO[bytes]) -> None:
    """Refuse a file that unpacks to disproportionately many bytes, before any is unpacked."""
    n_bytes = file.seek(0, 2)
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(_FREE_BYTES, _MOST_UNPACKED * n_bytes):
        raise ValueError(f"its {n_bytes:,} bytes unpack to {unpacked:,}")
    file.seek(0)


def array_header(shape: tuple[int, ...], kind: type[np.generic]) -> bytes:
    """The beginning of an .npy file that holds such an array."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(kind))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def mapped_array(path: Path, shape: tuple[int, ...], kind: type[Kind], mode: Literal["r+", "c"]) -> NDArray[Kind]:
    """An .npy file of exactly this shape and type, mapped into memory; a ValueError is raised for any other file.

    The header is compared and not read: a damaged one may name any shape, and numpy enlarges a file to what it names.
    """
    header = array_header(shape, kind)
    n_bytes = len(header) + math.prod(shape) * np.dtype(kind).itemsize
    with open_regular(path, follow=False) as file:
        if os.fstat(file.fileno()).st_size != n_bytes or file.read(len(header)) != header:
            raise ValueError(f"{path} is not an array of {shape} values of {np.dtype(kind)}")
    return np.memmap(path, kind, mode, offset=len(header), shape=shape)
