"""What a service that processes requests implements, and the values that it answers with. No I/O.

The exchange owns the protocol. It calls the processor with the request's headers, with the complete request,
with the response as it passes, and at the end. The processor answers a complete request with `Forward` or
`Reply`, or with a `Waiting` when it cannot answer yet.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from ext_proc.body.encodings import Decoder
from ext_proc.head import Head, Names
from ext_proc.wire import Held

Late = TypeVar("Late")
"""What a processor is resumed with when its answer had to wait."""


class Ending(Enum):
    """Why an exchange ended. The value is a low-cardinality metric label."""

    COMPLETED = "completed"
    """The response went by to its end."""
    REFUSED = "refused"
    """The processor replied in place of a model server."""
    DISCONNECTED = "disconnected"
    """The proxy closed the stream early: client gone, upstream reset or time-out."""
    PROTOCOL_ERROR = "protocol-error"
    """The proxy sent what the protocol does not allow."""
    INTERNAL_ERROR = "internal-error"
    """The processor failed."""


class Edit(NamedTuple):
    """Replaces the bytes [start, end) of a body, or of what it holds when decoded."""

    start: int
    end: int
    text: bytes
    decoder: Decoder | None = None
    """Decodes the body, which goes on decoded; None: it is not encoded."""
    decoded_bytes: int = 0
    """Size of the decoded body."""

    def length(self, size: int) -> int:
        """Return the length of a body of this many bytes after the change."""
        return (size if self.decoder is None else self.decoded_bytes) + len(self.text) - self.end + self.start

    def applied(self, chunks: Iterator[Held]) -> Iterator[Held]:
        """Yield the body after the change, piece by piece as it is asked for."""
        at = 0
        for chunk in chunks if self.decoder is None else _decoded(self.decoder, chunks):
            size = len(chunk)
            if at <= self.start < at + size:
                yield chunk[: self.start - at]
                yield self.text
            elif at + size <= self.start:
                yield chunk
            if self.end < at + size:
                yield chunk[self.end - at :] if self.end > at else chunk
            at += size


def _decoded(decoder: Decoder, chunks: Iterator[Held]) -> Iterator[bytes]:
    for chunk in chunks:
        yield from decoder.feed(bytes(chunk))


class Forward:
    """The request goes on, with changed headers; `wire` encodes both parts."""

    __slots__ = ("edit", "metadata", "mutation")

    def __init__(self, mutation: bytes, metadata: bytes = b"") -> None:
        self.mutation = mutation
        """Entries of a HeaderMutation, one after the other: `wire.set_header`, `wire.remove_header`."""
        self.metadata = metadata
        """Dynamic metadata for the proxy: `wire.dynamic_metadata`, or nothing."""
        self.edit: Edit | None = None
        """The one change of the body; None: it goes on as it came."""


class Reply:
    """The proxy answers the client with this and does not forward the request."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        """The whole message: `wire.immediate_reply`."""


class Waiting(Protocol):
    """An answer that comes later, through `resume`."""

    def cancel(self) -> None:
        """Give the answer up: `resume` is not called any more. A second call does nothing."""
        ...


class Processor(Protocol[Late]):
    """Processes one exchange. Calls come in the order below; none may block.

    Times are of the clock that the exchange is driven with, in seconds. When the proxy replies by itself
    before the request is complete, `request` is not called, and perhaps not even `request_headers`.
    """

    names: ClassVar[Names]
    """The headers that it looks for in requests and responses: `Head.found` has these alone."""

    def request_headers(self, head: Head, now: float) -> bool:
        """Take the request's headers and the metadata beside them.

        Return whether the request is to be held until its body is whole. False: `request` follows at once,
        without the body, which goes on piece by piece.
        """
        ...

    def request_part(self, chunks: Sequence[Held], size: int) -> None:
        """Look at a body that is not whole yet: the pieces so far, the last of them new, and their bytes."""
        ...

    def request(
        self, body: Sequence[Held] | None, resume: Callable[[Late], None], now: float
    ) -> Forward | Reply | Waiting:
        """Answer the complete request.

        `body` has its pieces; those beyond the first `budget.HEAP_BYTES` may be memoryviews. It is None when
        the headers ended the request, when the proxy does not show request bodies, and when
        `request_headers` said that the body is not held.
        A processor that returns a Waiting calls `resume` later, at most once; `resumed` turns what it passes
        into the answer.
        """
        ...

    def resumed(self, late: Late, now: float) -> Forward | Reply | Waiting:
        """Answer the request whose answer had to wait, or have it wait for something else."""
        ...

    def evicted(self, late: Late, now: float) -> Reply:
        """Answer in place of the model server that has the request: it is taken back from there.

        Comes after `resumed` and before `response_headers`, at most once; `ended` follows.
        """
        ...

    def headers_too_large(self, fields: int, size: int, now: float) -> Reply:
        """Refuse a request with more header fields or bytes than this; follows `request_headers`."""
        ...

    def body_too_large(self, limit: int, now: float) -> Reply:
        """Refuse a request whose body exceeds `limit` bytes; comes in place of `request`."""
        ...

    def buffers_full(self, now: float) -> Reply:
        """Refuse a request whose body does not fit beside the others; comes in place of `request`."""
        ...

    def response_headers(self, head: Head, now: float) -> bytes:
        """Look at the response's headers and the metadata beside them.

        Return entries of a HeaderMutation for the response, b"" for none.
        """
        ...

    def response_body(self, piece: bytes, now: float) -> bytes | None:
        """Look at a piece of the response body; never empty.

        Return what goes to the client in its place, None for the piece as it is.
        """
        ...

    def response_rest(self) -> bytes:
        """Return the bytes that `response_body` has kept back; called when the body is over."""
        ...

    def response_complete(self, now: float) -> bytes:
        """Note that the response went by to its end; `ended` follows.

        Return dynamic metadata for the proxy, which goes along with the last reply, b"" for none.
        """
        ...

    def ended(self, ending: Ending, now: float) -> None:
        """Note the end: called exactly once, whatever ends the exchange, and after a failure as well."""
        ...
