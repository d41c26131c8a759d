"""The process keeps the memory it has freed, because the next step needs as much again."""

import ctypes
import sys

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Ask the C library not to return freed memory to the system; a twelfth of a CPU step goes into asking for it back.

    A step frees every activation it made. As the library comes, large ones go back to the system at once, and the next
    step gets them anew page by page, each one cleared: 10,000 page faults a step (docs/decisions/0010). The peak stays
    what it was. Only glibc, which is most of Linux, can be asked. The process has to be ours: importing never does it.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            # What is larger is a mapping of its own, which goes back when it is freed.
            if not mallopt(_M_MMAP_THRESHOLD, 2**30):
                mallopt(_M_MMAP_THRESHOLD, 2**25)  # the most that glibc takes before 2.35
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
