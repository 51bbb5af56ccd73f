"""Keep freed memory for the next step, where the C library would give it back to the system.

A step makes and frees hundreds of megabytes in tensors of some megabytes each. glibc returns such memory as soon as it
is free, and then every page of the next step's tensors is a fault of its own, which may cost as much as what is written
there. Nothing is lost: what a step needed, the next one needs too.
"""

from __future__ import annotations

import ctypes
import platform

# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER = -1


def keep_memory() -> bool:
    """Take no block from the system by itself and give none back until the process ends; whether that could be set.

    For the whole process, and only with glibc; elsewhere nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, NEVER))
