"""Metadata and the fields that gRPC reserves: encoding, decoding, validation. No stream, no clock."""

import binascii
import re
from collections.abc import Iterable
from typing import Final

from lean_grpc.http2.fields import Field

Metadata = tuple[tuple[str, str | bytes], ...]
"""Pairs in order of arrival; a key that ends in `-bin` has bytes for its value, others text."""

_KEY: Final = re.compile(r"[0-9a-z_.\-]+").fullmatch
_TEXT: Final = re.compile(r"[\x20-\x7e]*").fullmatch
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])").fullmatch
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LARGEST_AMOUNT: Final = 99_999_999
_ESCAPE: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")
_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_RESERVED: Final = frozenset((b"te", b"content-type", b"user-agent", b"content-length"))


def decode(fields: Iterable[Field]) -> Metadata:
    """Return the metadata among `fields`, without pseudo-header and reserved ones.

    Raises:
        ValueError: A value of a `-bin` key is no base64.
    """
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name[:1] == b":" or name[:5] == b"grpc-" or name in _RESERVED:
            continue
        key = name.decode("ascii")
        if key.endswith("-bin"):
            found += [(key, _from_base64(part)) for part in value.split(b",")]
        else:
            found.append((key, value.decode("latin-1")))
    return tuple(found)


def encode(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[Field, ...]:
    """Return the fields for `metadata`.

    Raises:
        ValueError: A key has other characters than 0-9 a-z _ . - or is reserved, or a value does not fit.
    """
    fields: list[Field] = []
    for key, value in metadata:
        name = key.encode("ascii", "replace")
        if not _KEY(key) or name in _RESERVED or key.startswith("grpc-"):
            msg = f"metadata key {key!r} is reserved or has other characters than 0-9 a-z _ . -"
            raise ValueError(msg)
        if key.endswith("-bin"):
            if not isinstance(value, bytes):
                msg = f"metadata key {key!r} takes bytes"
                raise ValueError(msg)
            fields.append((name, binascii.b2a_base64(value, newline=False).rstrip(b"=")))
        elif isinstance(value, str) and _TEXT(value) and value == value.strip():
            fields.append((name, value.encode("ascii")))
        else:
            msg = f"metadata key {key!r} takes printable ASCII text without outer spaces"
            raise ValueError(msg)
    return tuple(fields)


def decode_timeout(value: bytes) -> float:
    """Return a `grpc-timeout` in seconds.

    Raises:
        ValueError: It is not one to eight digits and a unit.
    """
    match = _TIMEOUT(value)
    if match is None:
        raise ValueError("grpc-timeout is not one to eight digits and a unit")
    return int(match[1]) * _UNITS[match[2]]


def encode_timeout(seconds: float) -> bytes:
    """Return `seconds` as a `grpc-timeout`, in the finest unit that holds it, never longer than asked for.

    More than 99,999,999 hours, infinity included, is sent as that.
    """
    for unit in (b"u", b"m", b"S"):
        amount = seconds / _UNITS[unit]
        if amount < _LARGEST_AMOUNT:
            return b"%d%s" % (max(int(amount), 0), unit)
    return b"%dH" % min(seconds / 3600, _LARGEST_AMOUNT)


def decode_message(value: bytes) -> str:
    """Return a `grpc-message`; broken escapes stay as they are, as gRPC asks."""
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), value).decode("utf-8", "replace")


def encode_message(text: str) -> bytes:
    """Return `text` percent-encoded as gRPC's HTTP/2 protocol defines it."""
    return _ESCAPE.sub(lambda match: b"%%%02X" % match[0][0], text.encode("utf-8", "replace"))


def _from_base64(value: bytes) -> bytes:
    value = value.strip()
    return binascii.a2b_base64(value + b"=" * (-len(value) % 4), strict_mode=True) if value else b""
