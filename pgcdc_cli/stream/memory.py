"""Tell the C library what to do with freed memory."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, with their numbers in malloc.h."""
_SINGLE = 32 << 20
"""Bytes from which on an allocation is mapped by itself: the largest threshold that glibc takes."""
_KEPT = 64 << 20
"""Bytes of freed memory kept at most; this adds nothing to a run's peak, since every batch reuses them."""


def keep_freed_memory() -> None:
    """Keep the memory that a batch frees for the next one; does nothing if the C library isn't glibc.

    By default glibc returns arrays of some hundred kilobytes to the kernel as soon as they are freed, and the
    kernel must clear each page anew: a fifth of the time if values are large.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _SINGLE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
