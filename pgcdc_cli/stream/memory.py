"""What the C library does with memory that is freed."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, as malloc.h numbers them."""
_SINGLE = 32 << 20
"""Bytes from which on an allocation is by itself: the most that glibc takes."""
_KEPT = 64 << 20
"""Bytes that are kept free, at most; a run needs no more for that, as every batch takes them again."""


def keep_freed_memory() -> None:
    """Keep what a batch frees for the next one; does nothing where the C library isn't glibc.

    Else glibc gives arrays of some hundred kilobytes back to the kernel as soon as they are freed, and the
    kernel clears each page anew: a fifth of the time where values are large.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _SINGLE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
