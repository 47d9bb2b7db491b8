"""The wire of training: a columnar batch of requests that ended. Little-endian; pure.

Method `/headroom.predictor.v1.Training/Add`, unary (the answer is `encode_added`), and `.../AddStream`, a
stream of batches with one such answer a batch.

Batch: magic `HPS1`, schema hash (8 bytes), WIDTH (u16), number of versions (u16), rows (u32); the versions,
each u8 length and ASCII; then the columns in the order of `SampleBatch`, each little-endian and without
padding.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.errors import SchemaMismatchError, WireError
from latency_contract.matrix import Matrix
from latency_contract.schema import SCHEMA_HASH, TARGETS, WIDTH

ADD_PATH: Final = "/headroom.predictor.v1.Training/Add"
ADD_STREAM_PATH: Final = "/headroom.predictor.v1.Training/AddStream"
#: Most rows of a batch; with it a batch stays below the transport's 4 MiB a message.
MAX_BATCH_ROWS: Final = 16_384
MAX_VERSIONS: Final = 64

_HEAD: Final = struct.Struct("<4s8sHHI")
_MAGIC: Final = b"HPS1"
_ADDED: Final = struct.Struct("<4sIII")
_ADDED_MAGIC: Final = b"HPD1"
_T: Final = len(TARGETS)


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Requests that ended, a row each."""

    versions: tuple[str, ...]
    """Bundles that the predictions came from; at most `MAX_VERSIONS`."""
    time_s: NDArray[np.float64]
    """float64[rows]: when each was picked, seconds since the epoch (in a simulation: of its clock)."""
    policy: NDArray[np.uint8]
    """uint8[rows]: `states.Policy`."""
    ended: NDArray[np.uint8]
    """uint8[rows]: `states.Ended`."""
    version: NDArray[np.uint8]
    """uint8[rows]: index into `versions`; 255: no prediction was had."""
    actual: NDArray[np.float32]
    """float32[rows, targets] seconds; NaN: not observed."""
    predicted: NDArray[np.float32]
    """float32[rows, targets, 2] seconds: median and upper bound that were predicted for the endpoint; or
    NaN."""
    matrix: Matrix
    """float32[rows, WIDTH]: the row of the endpoint that served, as it was when the request was picked."""

    def __len__(self) -> int:
        return len(self.time_s)


#: `SampleBatch.version` of a request that had no prediction.
NO_VERSION: Final = 255

#: Name, type and shape behind the rows of each column, in the order on the wire and in files.
COLUMNS: Final[tuple[tuple[str, str, tuple[int, ...]], ...]] = (
    ("time_s", "<f8", ()),
    ("policy", "u1", ()),
    ("ended", "u1", ()),
    ("version", "u1", ()),
    ("actual", "<f4", (_T,)),
    ("predicted", "<f4", (_T, 2)),
    ("matrix", "<f4", (WIDTH,)),
)
#: Bytes of one sample.
ROW_BYTES: Final = sum(np.dtype(kind).itemsize * int(np.prod(shape)) for _, kind, shape in COLUMNS)


def encode_batch(batch: SampleBatch) -> bytes:
    """Return the message of a batch. Raises ValueError when it exceeds a limit."""
    if len(batch) > MAX_BATCH_ROWS or len(batch.versions) > MAX_VERSIONS:
        msg = f"a batch of {len(batch)} rows and {len(batch.versions)} versions; send several"
        raise ValueError(msg)
    parts = [_HEAD.pack(_MAGIC, SCHEMA_HASH, WIDTH, len(batch.versions), len(batch))]
    for version in batch.versions:
        encoded = version.encode("ascii")
        parts.append(bytes((len(encoded),)) + encoded)
    parts += [np.ascontiguousarray(getattr(batch, name), dtype=kind).tobytes() for name, kind, _ in COLUMNS]
    return b"".join(parts)


def decode_batch(message: bytes) -> SampleBatch:
    """Return the batch; its arrays are read-only views of the message. Values are not checked here.

    Raises SchemaMismatchError for another schema hash, and WireError for what is no batch or exceeds a limit.
    """
    if len(message) < _HEAD.size or message[:4] != _MAGIC:
        msg = f"this is no batch of samples: {len(message)} bytes that begin with {message[:4]!r}"
        raise WireError(msg)
    _, schema, width, count, rows = _HEAD.unpack_from(message)
    if schema != SCHEMA_HASH or width != WIDTH:
        raise SchemaMismatchError(schema)
    if rows > MAX_BATCH_ROWS or count > MAX_VERSIONS:
        msg = f"a batch of {rows} rows and {count} versions; at most {MAX_BATCH_ROWS} and {MAX_VERSIONS}"
        raise WireError(msg)
    versions, at = _versions(message, count)
    if len(message) != at + rows * ROW_BYTES:
        msg = f"a batch of {len(message)} bytes whose head says {at + rows * ROW_BYTES}"
        raise WireError(msg)
    columns: dict[str, NDArray[np.generic]] = {}
    for name, kind, shape in COLUMNS:
        size = rows * int(np.prod(shape, dtype=int))
        columns[name] = np.frombuffer(message, kind, size, at).reshape(rows, *shape)
        at += columns[name].nbytes
    return SampleBatch(versions, **columns)  # type: ignore[arg-type]


def _versions(message: bytes, count: int) -> tuple[tuple[str, ...], int]:
    at = _HEAD.size
    versions = []
    for _ in range(count):
        size = message[at] if at < len(message) else 0
        name = message[at + 1 : at + 1 + size]
        if len(name) != size or not name.isascii():
            raise WireError("a batch of samples that ends in its versions, or has one that is not ASCII")
        versions.append(name.decode("ascii"))
        at += 1 + size
    return tuple(versions), at


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a batch."""

    accepted: int
    rejected: int
    """Rows with values outside their ranges."""
    shed: int
    """Rows dropped because more came than the trainer takes."""


def encode_added(added: Added) -> bytes:
    """Return the message of an answer."""
    return _ADDED.pack(_ADDED_MAGIC, added.accepted, added.rejected, added.shed)


def decode_added(message: bytes) -> Added:
    """Return the answer to a batch. Raises WireError."""
    if len(message) != _ADDED.size or message[:4] != _ADDED_MAGIC:
        msg = f"this is no answer to a batch of samples: {len(message)} bytes"
        raise WireError(msg)
    return Added(*_ADDED.unpack(message)[1:])
