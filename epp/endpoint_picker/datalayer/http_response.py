"""A bounded reader of HTTP/1.1 responses to GET: bytes in, body out. No I/O.

It reads what metrics endpoints send (a length, chunks, or an end by closing) and refuses everything else.
"""

from typing import Final

#: Longest status line and header block, interim responses included.
MAX_HEAD: Final = 16_384
#: Longest chunk-size line or trailer block.
_MAX_LINE: Final = 1024
#: Most chunks of a body: each costs some microseconds, and the peer chooses how many there are.
MAX_CHUNKS: Final = 4096
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class ResponseError(Exception):
    """The peer sent something that is no usable response; the connection is of no further use."""


class RedirectError(ResponseError):
    """The peer redirects to another URL."""

    def __init__(self, location: str) -> None:
        super().__init__("redirect")
        self.location = location


class ResponseReader:
    """Reads one response after the other of a kept-alive connection."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_chunks_seen",
        "_head_seen",
        "_left",
        "_limit",
        "_need",
        "_size",
        "keep_alive",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """Longest body, bytes."""
        self._buffer = b""
        self._reset()

    def _reset(self) -> None:
        self._head_seen = False
        self._need: int | None = None
        """Length of the body; None: chunked, -1: the body ends when the connection closes."""
        self._left = 0
        """Bytes to come of the chunk under way, its line break included."""
        self._chunks: list[bytes] = []
        self._chunks_seen = 0
        self._size = 0
        self.keep_alive = True

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; return the body once it is complete, else None. Raises ResponseError."""
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        if not self._head_seen:
            rest = self._head(buffer)
            if rest is None:
                return None
            buffer = rest
        if self._need is None:
            return self._chunked(buffer)
        if self._need < 0:
            self._keep(buffer)
            return None
        return self._counted(buffer)

    def closed(self) -> bytes | None:
        """Note that the peer closed; return the body if the close ends it, else None."""
        if self._head_seen and self._need == -1:
            return b"".join(self._chunks)
        return None

    def _head(self, buffer: bytes) -> bytes | None:
        """Read the head; return what follows it, or None when it is not complete."""
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0 or end > MAX_HEAD:
                if len(buffer) > MAX_HEAD:
                    raise ResponseError("head too long")
                self._buffer = buffer
                return None
            lines = buffer[:end].split(b"\r\n")
            buffer = buffer[end + 4 :]
            status = _status(lines[0])
            if 100 <= status < 200:
                continue
            if status in _REDIRECTS:
                raise RedirectError(_location(lines))
            if status != 200:
                msg = f"status {status}"
                raise ResponseError(msg)
            self._headers(lines)
            self._head_seen = True
            return buffer

    def _headers(self, lines: list[bytes]) -> None:
        length: int | None = None
        chunked = False
        self.keep_alive = lines[0].startswith(b"HTTP/1.1")
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            name, value = name.strip().lower(), value.strip().lower()
            if name == b"content-length":
                if not value.isdigit() or len(value) > 12:
                    raise ResponseError("bad content-length")
                length = int(value)
            elif name == b"transfer-encoding":
                if value != b"chunked":
                    raise ResponseError("unknown transfer-encoding")
                chunked = True
            elif name == b"content-encoding" and value not in (b"", b"identity"):
                raise ResponseError("encoded body, although none was asked for")
            elif name == b"connection" and b"close" in value:
                self.keep_alive = False
        if length is not None and length > self._limit:
            raise ResponseError("body too long")
        self._need = None if chunked else length if length is not None else -1
        if self._need == -1:
            self.keep_alive = False

    def _counted(self, buffer: bytes) -> bytes | None:
        need = self._need or 0
        # Do not copy the usual case, the whole page in one piece.
        if not self._chunks and len(buffer) == need:
            return self._done(buffer)
        self._keep(buffer)
        if self._size < need:
            return None
        if self._size > need:
            raise ResponseError("more bytes than announced")
        return self._done(b"".join(self._chunks))

    def _chunked(self, buffer: bytes) -> bytes | None:
        at = 0
        while at < len(buffer):
            if self._left:
                # Keep each piece as it comes: joining it with the next would make a slow page quadratic.
                piece = buffer[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                self._keep_data(piece)
                continue
            line_end = buffer.find(b"\r\n", at, at + _MAX_LINE)
            if line_end < 0:
                if len(buffer) - at >= _MAX_LINE:
                    raise ResponseError("bad chunk size")
                self._buffer = buffer[at:]
                return None
            size = _chunk_size(buffer[at:line_end])
            if size == 0:
                return self._trailer(buffer, at, line_end)
            if self._size + size > self._limit:
                raise ResponseError("body too long")
            self._chunks_seen += 1
            if self._chunks_seen > MAX_CHUNKS:
                raise ResponseError("too many chunks")
            self._left = size + 2
            at = line_end + 2
        return None

    def _keep_data(self, piece: bytes) -> None:
        """Keep a piece of a chunk without the bytes of the line break that ends the chunk."""
        tail = 2 - self._left
        if tail > 0:
            tail = min(tail, len(piece))
            if piece[-tail:] != b"\r\n"[2 - self._left - tail : 2 - self._left]:
                raise ResponseError("bad chunk end")
            piece = piece[:-tail]
        if piece:
            self._keep(piece)

    def _trailer(self, buffer: bytes, at: int, line_end: int) -> bytes | None:
        """Read the end of a chunked body: trailers, if any, and an empty line."""
        end = buffer.find(b"\r\n\r\n", line_end)
        if end < 0:
            if len(buffer) - line_end > MAX_HEAD:
                raise ResponseError("trailer too long")
            self._buffer = buffer[at:]
            return None
        if end + 4 != len(buffer):
            raise ResponseError("more bytes than announced")
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return self._done(body)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise ResponseError("body too long")
        self._chunks.append(piece)

    def _done(self, body: bytes) -> bytes:
        keep_alive = self.keep_alive
        self._reset()
        self.keep_alive = keep_alive
        return body


def _status(line: bytes) -> int:
    words = line.split(b" ", 2)
    if len(words) < 2 or not line.startswith(b"HTTP/1.") or len(words[1]) != 3 or not words[1].isdigit():
        raise ResponseError("not HTTP/1")
    return int(words[1])


def _location(lines: list[bytes]) -> str:
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"location":
            return value.strip().decode("latin-1")
    raise ResponseError("redirect without location")


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 8 or not digits.isalnum():
        raise ResponseError("bad chunk size")
    try:
        return int(digits, 16)
    except ValueError:
        raise ResponseError("bad chunk size") from None
