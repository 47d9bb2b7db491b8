"""The wire of prediction: a packed matrix goes in, packed seconds come out. Little-endian; pure.

Method `/headroom.predictor.v1.Prediction/Predict`, unary; the messages are these bytes, no protobuf.

Request: magic `HPQ1`, schema hash (8 bytes), targets (u8, bit `1 << Target`), number of quantiles (u8), WIDTH
(u16), rows (u32); quantiles float32[q], ascending; matrix float32[rows, WIDTH].

Answer: magic `HPA1`, state (u8), targets (u8), number of quantiles (u8), 0 (u8), rows (u32), version (40
bytes, ASCII, padded with NUL); untrusted uint8[rows], 1 where the row's regime is degraded; padding to a
multiple of 4; seconds float32[targets, quantiles, rows], targets in ascending order, NaN where the bundle has
no such model. A server without a bundle answers state `WARMING` and NaN.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.errors import SchemaMismatchError, WireError
from latency_contract.matrix import Matrix
from latency_contract.schema import SCHEMA_HASH, TARGETS, WIDTH, Target
from latency_contract.states import State

PREDICT_PATH: Final = "/headroom.predictor.v1.Prediction/Predict"
#: Most rows of a request; a larger pool sends several.
MAX_ROWS: Final = 16_384
MAX_QUANTILES: Final = 8
VERSION_BYTES: Final = 40

_REQUEST: Final = struct.Struct("<4s8sBBHI")
_ANSWER: Final = struct.Struct(f"<4sBBBBI{VERSION_BYTES}s")
_REQUEST_MAGIC: Final = b"HPQ1"
_ANSWER_MAGIC: Final = b"HPA1"


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """What is asked of a prediction server."""

    targets: tuple[Target, ...]
    """Ascending."""
    quantiles: tuple[float, ...]
    """Ascending, each within (0, 1); rounded to float32 on the wire."""
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction server's answer."""

    state: State
    version: str
    """Of the bundle; "" without one."""
    targets: tuple[Target, ...]
    untrusted: NDArray[np.uint8]
    """uint8[rows]; 1 where the row's regime is degraded."""
    seconds: NDArray[np.float32]
    """float32[targets, quantiles, rows]; NaN: no such model."""


def encode_request(matrix: Matrix, targets: Sequence[Target], quantiles: Sequence[float]) -> bytes:
    """Return the message. `matrix` is C-contiguous float32[rows, WIDTH], `targets` and `quantiles` ascend."""
    head = _REQUEST.pack(_REQUEST_MAGIC, SCHEMA_HASH, _bits(targets), len(quantiles), WIDTH, len(matrix))
    return b"".join((head, np.asarray(quantiles, dtype="<f4").tobytes(), matrix.tobytes()))


def decode_request(message: bytes) -> PredictionRequest:
    """Return the request; the matrix is a read-only view of the message.

    Raises SchemaMismatchError for another schema hash, and WireError for what is no request or exceeds a
    limit.
    """
    head = _head(_REQUEST, message, _REQUEST_MAGIC, "prediction request")
    _, schema, bits, count, width, rows = head
    if schema != SCHEMA_HASH or width != WIDTH:
        raise SchemaMismatchError(schema)
    if rows > MAX_ROWS:
        msg = f"{rows} rows in one prediction request; at most {MAX_ROWS}: send several"
        raise WireError(msg)
    targets = _targets(bits)
    if not 1 <= count <= MAX_QUANTILES:
        msg = f"{count} quantiles in a prediction request; 1 to {MAX_QUANTILES}"
        raise WireError(msg)
    begin = _REQUEST.size + 4 * count
    _exact(message, begin + 4 * rows * WIDTH, "prediction request")
    quantiles = np.frombuffer(message, "<f4", count, _REQUEST.size).tolist()
    if not (all(0 < q < 1 for q in quantiles) and sorted(set(quantiles)) == quantiles):
        raise WireError("the quantiles of a prediction request must ascend within (0, 1)")
    matrix = np.frombuffer(message, "<f4", rows * WIDTH, begin).reshape(rows, WIDTH)
    return PredictionRequest(targets, tuple(quantiles), matrix)


def encode_answer(answer: Prediction) -> bytes:
    """Return the message of an answer. Raises ValueError for a version that does not fit."""
    version = answer.version.encode("ascii")
    if len(version) > VERSION_BYTES:
        msg = f"version {answer.version[:60]!r} has more than {VERSION_BYTES} bytes"
        raise ValueError(msg)
    _, quantiles, rows = answer.seconds.shape
    head = _ANSWER.pack(_ANSWER_MAGIC, answer.state, _bits(answer.targets), quantiles, 0, rows, version)
    values = np.ascontiguousarray(answer.seconds, dtype="<f4")
    return b"".join((head, answer.untrusted.tobytes(), bytes(-rows % 4), values.tobytes()))


def decode_answer(message: bytes) -> Prediction:
    """Return the answer; its arrays are read-only views of the message. Raises WireError."""
    head = _head(_ANSWER, message, _ANSWER_MAGIC, "prediction")
    _, state, bits, quantiles, _, rows, version = head
    targets = _targets(bits)
    begin = _ANSWER.size + rows + -rows % 4
    _exact(message, begin + 4 * len(targets) * quantiles * rows, "prediction")
    try:
        known, name = State(state), version.rstrip(b"\0").decode("ascii")
    except ValueError as error:  # UnicodeDecodeError is one
        msg = f"a prediction with the state {state} and the version {version!r}"
        raise WireError(msg) from error
    untrusted = np.frombuffer(message, np.uint8, rows, _ANSWER.size)
    values = np.frombuffer(message, "<f4", len(targets) * quantiles * rows, begin)
    return Prediction(known, name, targets, untrusted, values.reshape(len(targets), quantiles, rows))


def _bits(targets: Sequence[Target]) -> int:
    return sum(1 << target for target in targets)


def _targets(bits: int) -> tuple[Target, ...]:
    targets = tuple(target for target in TARGETS if bits & 1 << target)
    if not targets or bits != _bits(targets):
        msg = f"targets {bits:#x}: name at least one, and none that is unknown"
        raise WireError(msg)
    return targets


def _head(layout: struct.Struct, message: bytes, magic: bytes, what: str) -> tuple[Any, ...]:
    if len(message) < layout.size or message[:4] != magic:
        msg = f"this is no {what}: {len(message)} bytes that begin with {message[:4]!r}"
        raise WireError(msg)
    return layout.unpack_from(message)


def _exact(message: bytes, size: int, what: str) -> None:
    if len(message) != size:
        msg = f"a {what} of {len(message)} bytes whose head says {size}"
        raise WireError(msg)
