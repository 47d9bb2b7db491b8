"""A request head read as gRPC: method, metadata, timeout, encodings, or the reason to refuse it."""

from typing import Final

from lean_grpc.calls import metadata as md
from lean_grpc.calls.metadata import Metadata
from lean_grpc.http2.fields import Head
from lean_grpc.status import StatusCode

_CONTENT: Final = b"application/grpc"
_KNOWN_ENCODINGS: Final = (None, b"identity", b"gzip")


class CallRequest:
    """What a request head says. It depends on the head's bytes alone, so equal heads share one."""

    __slots__ = ("accepts_gzip", "encoding", "http_refusal", "metadata", "path", "refusal", "timeout")

    def __init__(self, head: Head) -> None:
        self.path = head.pseudo.get(b":path", b"").decode("latin-1")
        self.metadata: Metadata = ()
        self.timeout: float | None = None
        self.encoding: bytes | None = None
        self.accepts_gzip = False
        self.refusal: tuple[StatusCode, str] | None = None
        self.http_refusal = b""
        fields = dict(head.fields)
        content = fields.get(b"content-type", b"")
        if head.pseudo.get(b":method") != b"POST":
            self.http_refusal = b"405"
        elif not content.startswith(_CONTENT) or content[len(_CONTENT) :][:1] not in (b"", b"+", b";"):
            self.http_refusal = b"415"
        elif head.oversized:
            self.refusal = (StatusCode.RESOURCE_EXHAUSTED, "the metadata is larger than SETTINGS allow")
        else:
            self._read(fields, head)

    def _read(self, fields: dict[bytes, bytes], head: Head) -> None:
        self.encoding = fields.get(b"grpc-encoding")
        self.accepts_gzip = b"gzip" in fields.get(b"grpc-accept-encoding", b"").replace(b" ", b"").split(b",")
        if self.encoding not in _KNOWN_ENCODINGS:
            self.refusal = (StatusCode.UNIMPLEMENTED, "grpc-encoding must be gzip or identity")
            return
        try:
            if (timeout := fields.get(b"grpc-timeout")) is not None:
                self.timeout = md.decode_timeout(timeout)
            self.metadata = md.decode(head.fields)
        except ValueError as error:
            self.refusal = (StatusCode.INTERNAL, str(error))


def read_request(head: Head) -> CallRequest:
    """Return the request in `head`, derived once per decoded block."""
    request = head.parsed
    if not isinstance(request, CallRequest):
        request = CallRequest(head)
        head.parsed = request
    return request
