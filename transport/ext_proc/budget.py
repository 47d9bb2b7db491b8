"""Bounds on requests: their header fields, and the bodies that are held. Pure; shared by all streams."""

from typing import Final

#: Largest request body, in bytes, that is held whole.
MAX_REQUEST_BYTES: Final = 256 * 1024 * 1024
#: Bytes of a body that are held in the heap; what comes beyond goes into segments.
HEAP_BYTES: Final = 4 * 1024 * 1024
#: Bytes of request bodies held over all streams at one time.
MAX_BUFFERED_BYTES: Final = 1024 * 1024 * 1024
#: Header fields of a request, as vLLM takes them: their number, and the bytes of names and values together.
MAX_HEADER_FIELDS: Final = 256
MAX_HEADER_BYTES: Final = 4 * 1024 * 1024
#: Bytes of a field in a message of the proxy, at least: tags, lengths and one letter.
_LEAST_FIELD_BYTES: Final = 5


class BodyBudget:
    """Counts the bytes of held bodies and says when there is no more room."""

    __slots__ = (
        "held_bytes",
        "max_header_bytes",
        "max_header_fields",
        "max_held_bytes",
        "max_request_bytes",
        "small_headers",
    )

    def __init__(
        self,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        max_held_bytes: int = MAX_BUFFERED_BYTES,
        max_header_fields: int = MAX_HEADER_FIELDS,
        max_header_bytes: int = MAX_HEADER_BYTES,
    ) -> None:
        self.max_request_bytes = max_request_bytes
        self.max_held_bytes = max_held_bytes
        self.max_header_fields = max_header_fields
        self.max_header_bytes = max_header_bytes
        self.small_headers = min(max_header_bytes, _LEAST_FIELD_BYTES * max_header_fields)
        """Bytes of a message up to which its header fields need no counting: they are within the limits."""
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes more, or return False when they do not fit."""
        if self.held_bytes + size > self.max_held_bytes:
            return False
        self.held_bytes += size
        return True

    def give(self, size: int) -> None:
        """Give back bytes that were taken."""
        self.held_bytes -= size
