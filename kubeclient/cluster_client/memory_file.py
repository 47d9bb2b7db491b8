"""A file in memory that has a path, for interfaces that take paths only, such as `ssl`.

A container's file system is often read-only, and a private key should not be written to a disk.
"""

import os
from contextlib import ExitStack


def memory_file(content: bytes, held: ExitStack) -> str:
    """Return the path of a file with that content, for this process only; closing `held` removes it."""
    file = held.enter_context(os.fdopen(os.memfd_create("headroom"), "wb"))
    file.write(content)
    file.flush()
    return f"/proc/self/fd/{file.fileno()}"
