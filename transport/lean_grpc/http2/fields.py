"""Validation of header lists (RFC 9113, 8.2, 8.3). No HPACK."""

import re
from enum import IntEnum
from typing import Final

Field = tuple[bytes, bytes]

# RFC 9113, 8.2.1: a name is a token without upper-case letters; a value has no NUL, CR, LF or outer blanks.
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z").search
_DIGITS: Final = re.compile(rb"[0-9]{1,19}").fullmatch
_STATUS: Final = re.compile(rb"[1-9][0-9][0-9]").fullmatch

_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)


class Kind(IntEnum):
    """The role of a header block, which decides the pseudo-header fields that it may have."""

    REQUEST = 0
    RESPONSE = 1
    TRAILERS = 2


_PSEUDO: Final = (
    frozenset((b":method", b":scheme", b":path", b":authority")),
    frozenset((b":status",)),
    frozenset[bytes](),
)


class Head:
    """One decoded header block.

    `malformed` is the reason if the list breaks the RFC, else None. `oversized` is true if the list exceeds
    `Limits.max_header_list`. `parsed` is a cache for the layer above: the decoder returns the same `Head` for
    the same bytes, so values derived from it can be kept there.
    """

    __slots__ = ("content_length", "fields", "malformed", "oversized", "parsed", "pseudo")

    def __init__(self, fields: tuple[Field, ...], kind: Kind, limit: int) -> None:
        self.fields = fields
        self.pseudo: dict[bytes, bytes] = {}
        self.content_length: int | None = None
        self.parsed: object = None
        self.oversized = sum(len(name) + len(value) + 32 for name, value in fields) > limit
        self.malformed = self._check(kind)

    def _check(self, kind: Kind) -> str | None:
        allowed = _PSEUDO[kind]
        regular = False
        for name, value in self.fields:
            if _BAD_VALUE(value):
                return "a field value holds a forbidden character"
            if name[:1] == b":":
                if regular or name not in allowed or name in self.pseudo:
                    return "a pseudo-header field is unknown, repeated or out of place"
                self.pseudo[name] = value
                continue
            regular = True
            if (reason := self._check_regular(name, value)) is not None:
                return reason
        return self._check_pseudo(kind)

    def _check_regular(self, name: bytes, value: bytes) -> str | None:
        if not _NAME(name):
            return "a field name holds a forbidden character"
        if name in _CONNECTION_SPECIFIC:
            return "a field belongs to HTTP/1 connections"
        if name == b"te" and value.lower() != b"trailers":
            return "te is not trailers"
        if name == b"content-length":
            if not _DIGITS(value) or self.content_length not in (None, int(value)):
                return "content-length is not a number, or two of them differ"
            self.content_length = int(value)
        return None

    def _check_pseudo(self, kind: Kind) -> str | None:
        pseudo = self.pseudo
        if kind is Kind.REQUEST:
            if pseudo.get(b":method") == b"CONNECT":
                if b":authority" in pseudo and len(pseudo) == 2:
                    return None
                return "CONNECT must have :method and :authority only"
            if not (pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")):
                return ":method, :scheme and :path must be present"
        elif kind is Kind.RESPONSE and not _STATUS(pseudo.get(b":status", b"")):
            return ":status must be present and of three digits"
        return None

    @property
    def informational(self) -> bool:
        """Tell whether this is a 1xx response, which the final one follows."""
        return self.pseudo.get(b":status", b"")[:1] == b"1"
