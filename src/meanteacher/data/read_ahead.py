"""Rows of a file that is mapped into memory, asked for before they are needed."""

import ctypes
import mmap
from functools import cache

from torch import Tensor


def read_ahead(images: Tensor, index: Tensor) -> None:
    """Let the system read these rows from the disk while something else is computed.

    It takes microseconds a row, and no thread that would take time from the step. Rows that are in memory
    already, or on a system that knows no such request, stay as they are.

    Args:
        images: [N, ...], contiguous, on the CPU
        index: [B], which of them
    """
    if not hasattr(mmap, "MADV_WILLNEED"):
        return
    advise = _advise()
    n_bytes = images[0].numel() * images.element_size()
    for row in index.tolist():
        start = images.data_ptr() + row * n_bytes
        page = start - start % mmap.PAGESIZE
        advise(page, start + n_bytes - page, mmap.MADV_WILLNEED)


@cache
def _advise() -> "ctypes._NamedFuncPointer":
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
