"""Frames between the trainer's two processes: a kind, a length, bytes. Pure."""

import struct
from enum import IntEnum
from typing import BinaryIO, Final

HEAD: Final = struct.Struct("<BI")
#: Longest frame; a batch is below 4 MiB.
MAX_FRAME: Final = 64 << 20


class Kind(IntEnum):
    """What a frame holds."""

    BATCH = 1
    """Samples as on the wire."""
    FLUSH = 2
    """Forget all samples; the models stay."""
    ROLLBACK = 3
    """Take the newest bundle back."""
    SEED = 4
    """Serve a bundle that another program published; its version in ASCII."""
    STATUS = 5
    """From the learning process: JSON."""
    RESTORE = 6
    """Samples of another trainer, as on the wire: they calibrate nothing."""


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return HEAD.pack(kind, len(payload)) + payload


def read_frame(stream: BinaryIO) -> tuple[Kind, bytes] | None:
    """Return the next frame of a blocking stream; None at its end. Raises ValueError for what is no frame."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, size = HEAD.unpack(head)
    if size > MAX_FRAME:
        msg = f"a frame of {size} bytes"
        raise ValueError(msg)
    payload = stream.read(size)
    return (Kind(kind), payload) if len(payload) == size else None
