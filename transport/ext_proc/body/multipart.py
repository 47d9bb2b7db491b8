"""Reads multipart/form-data in bounded steps: short fields are kept, of files a digest. Pure."""

import json
import re
from collections import deque
from collections.abc import Mapping
from typing import Final

from xxhash import xxh3_128

from ext_proc.body.brackets import WINDOW_BYTES
from ext_proc.body.material import DIGEST
from ext_proc.body.scan import NotReadError, Span
from ext_proc.wire import Held

#: Most parts of a body, and most bytes of a part's headers.
MAX_PARTS: Final = 256
_MAX_HEADERS: Final = 8192
#: Longest boundary, in bytes (RFC 2046, 5.1.1).
MAX_BOUNDARY: Final = 70
_NAME: Final = re.compile(rb'content-disposition:[^\r\n]*?;\s*name="([^"\r\n]{1,256})"', re.IGNORECASE)
_IS_FILE: Final = re.compile(rb"content-disposition:[^\r\n]*?;\s*filename\*?=", re.IGNORECASE)
_HEADERS_END: Final = b"\r\n\r\n"


class MultipartScanner:
    """Reads one body; a `reading.FieldScanner`. Values are kept as JSON strings, files as digests."""

    __slots__ = (
        "_buffer",
        "_delimiter",
        "_digest",
        "_ended",
        "_in_headers",
        "_limits",
        "_name",
        "_offset",
        "_parts",
        "_pieces",
        "_start",
        "_value",
        "done",
        "error",
        "fields",
    )

    def __init__(self, limits: Mapping[str, int], boundary: bytes) -> None:
        """`limits` has the most bytes kept of each field; `boundary` is that of the content type."""
        self._limits = limits
        self._delimiter = b"\r\n--" + boundary
        self.fields: dict[str, Span] = {}
        self.done = False
        self.error: NotReadError | None = None
        self._pieces: deque[Held] = deque()
        self._ended = False
        # The first delimiter has no line before it.
        self._buffer = b"\r\n"
        self._offset = -2  # of the buffer's first byte in the body
        self._parts = -1  # -1: before the first delimiter
        self._in_headers = False
        self._name = ""
        self._value: bytearray | None = None
        self._digest: xxh3_128 | None = None
        self._start = 0
        if not boundary or len(boundary) > MAX_BOUNDARY:
            self._over(NotReadError("multipart without a boundary in its content-type"))

    def feed(self, piece: Held) -> None:
        """Take the next bytes."""
        if piece and not self.done:
            self._pieces.append(piece)

    def end(self) -> None:
        """Note that there are no more bytes."""
        self._ended = True

    @property
    def starved(self) -> bool:
        """`advance` has nothing to do until more bytes come."""
        return not self.done and not self._pieces and not self._ended

    def advance(self) -> None:
        """Look at the next window."""
        if self.done or self.starved:
            return
        try:
            if not self._pieces:
                raise NotReadError("multipart that ends within a part")
            piece = self._pieces.popleft()
            if len(piece) > WINDOW_BYTES:
                self._pieces.appendleft(piece[WINDOW_BYTES:])
                piece = piece[:WINDOW_BYTES]
            self._buffer += bytes(piece)
            while self._step():
                pass
        except NotReadError as error:
            self._over(error)

    def _over(self, error: NotReadError | None) -> None:
        self.done, self.error = True, error
        self._pieces.clear()
        self._buffer = b""

    def _step(self) -> bool:
        """Go on by a part's headers or content; return False when more bytes are needed."""
        return self._headers() if self._in_headers else self._content()

    def _take(self, count: int) -> bytes:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self._offset += count
        return taken

    def _content(self) -> bool:
        """Take content up to the delimiter; without one, up to where one may begin."""
        delimiter = self._delimiter
        at = self._buffer.find(delimiter)
        if at < 0:
            safe = len(self._buffer) - len(delimiter) - 2
            if safe > 0:
                self._keep(self._take(safe))
            return False
        behind = at + len(delimiter)
        if len(self._buffer) < behind + 2:
            self._keep(self._take(at))
            return False
        self._keep(self._take(at))
        self._close()
        last = self._buffer[len(delimiter) : len(delimiter) + 2] == b"--"
        self._take(len(delimiter))
        if last:
            self._over(None)
            return False
        self._parts += 1
        if self._parts >= MAX_PARTS:
            raise NotReadError(f"multipart of more than {MAX_PARTS} parts")
        self._in_headers = True
        return True

    def _headers(self) -> bool:
        at = self._buffer.find(_HEADERS_END)
        if at < 0:
            if len(self._buffer) > _MAX_HEADERS:
                raise NotReadError("multipart with a part whose headers do not end")
            return False
        head = self._take(at + len(_HEADERS_END))
        self._in_headers = False
        found = _NAME.search(head)
        name = "" if found is None else found[1].decode("utf-8", "replace")
        self._start = self._offset
        self._name = ""
        if name in self._limits:
            self._name = name
            if _IS_FILE.search(head):
                self._digest = xxh3_128()
            else:
                self._value = bytearray()
        return True

    def _keep(self, data: bytes) -> None:
        if self._digest is not None:
            self._digest.update(data)
        elif self._value is not None:
            room = self._limits[self._name] + 1 - len(self._value)
            self._value += data[: max(0, room)]

    def _close(self) -> None:
        if not self._name:
            return
        if self._digest is not None:
            raw, whole = b'"' + DIGEST + self._digest.hexdigest().encode() + b'"', True
        else:
            value = bytes(self._value or b"")
            limit = self._limits[self._name]
            whole = len(value) <= limit
            raw = json.dumps(value[:limit].decode("utf-8", "replace"), ensure_ascii=False).encode()
        self.fields[self._name] = Span(raw, whole, self._start, self._offset)
        self._name, self._value, self._digest = "", None, None
