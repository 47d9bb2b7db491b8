"""Request and response headers: which the picker reads, and which it removes. Pure."""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from sys import intern
from typing import Final

from typing_extensions import override

from endpoint_picker.decision import BodyReading
from ext_proc.body import apis
from ext_proc.head import Head, Names, text_of
from inference_api.names import (
    DESTINATION_KEY,
    DESTINATION_SERVED_KEY,
    DESTINATION_SUBSET_KEY,
    OBJECTIVE_HEADER,
    OLD_OBJECTIVE_HEADER,
    REQUEST_ID_HEADER,
)

DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"

#: Headers by which a client could steer routing, claim a priority or point a sidecar at another host. All are
#: removed: the picker reads the objective here and takes the rest from the proxy's metadata.
STRIPPED: Final = frozenset(
    {
        OBJECTIVE_HEADER,
        OLD_OBJECTIVE_HEADER,
        DROPPED_REASON,
        "x-data-parallel-host-port",
        "x-encoder-hosts-ports",
        DESTINATION_KEY,
        "x-gateway-destination-endpoint-fallback",
        DESTINATION_SERVED_KEY,
        DESTINATION_SUBSET_KEY,
        "x-gateway-inference-fairness-id",
        "x-gateway-model-name-rewrite",
        "x-kv-cache-source-host-port",
        "x-llm-d-inference-fairness-id",
        "x-llm-d-model-name-rewrite",
        "x-llm-d-slo-tpot-ms",
        "x-llm-d-slo-ttft-ms",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-fps",
        "x-llm-d-video-resolution",
        "x-prefiller-host-port",
        "x-slo-tpot-ms",
        "x-slo-ttft-ms",
    }
)
#: The usual content types; they need no parsing.
_BARE_TYPES: Final = frozenset({"application/json", "text/event-stream"})
_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PREFER: Final = "prefer"
_IF_AVAILABLE: Final = "if-available"
#: Methods whose body has a meaning.
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_READ: Final = frozenset(
    {
        ":method",
        ":path",
        "content-encoding",
        "content-type",
        "expect",
        _PREFER,
        REQUEST_ID_HEADER,
        OBJECTIVE_HEADER,
        OLD_OBJECTIVE_HEADER,
    }
)
#: What the picker looks for in the headers of requests and responses.
NAMES: Final = Names({*_READ, *STRIPPED, ":status"})


class HeaderView(Mapping[str, str]):
    """All headers of a request, by lower-case name. A lookup searches the message; few requests need it."""

    __slots__ = ("_head",)

    def __init__(self, head: Head) -> None:
        self._head = head

    @override
    def __getitem__(self, name: str) -> str:
        for key, header in self._head.all():
            if key == name:
                return text_of(header)
        raise KeyError(name)

    def pick(self, names: AbstractSet[str]) -> dict[str, str]:
        """Return those of the names that there are, in one search; of a repeated header the first."""
        found: dict[str, str] = {}
        for key, header in self._head.all():
            if key in names and key not in found:
                found[key] = text_of(header)
        return found

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for key, _ in self._head.all()))

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


class RequestHeaders:
    """What the picker keeps of a request's headers."""

    __slots__ = (
        "all",
        "api",
        "boundary",
        "content_type",
        "encoding",
        "ends",
        "holds",
        "if_available",
        "method",
        "objective",
        "path",
        "remove",
        "request_id",
    )

    def __init__(self, head: Head) -> None:
        """`head` was read for NAMES."""
        self.all = HeaderView(head)
        self.ends = head.end_of_stream
        """The request has no body."""
        found = head.found
        self.remove = [] if STRIPPED.isdisjoint(found) else [name for name in found if name in STRIPPED]
        """Names among STRIPPED that the client sent; usually empty."""
        self.method = found.get(":method", "")
        self.path = found.get(":path", "").partition("?")[0]
        """Path without the query."""
        self.api = apis.api_of(self.path)
        """The known API that the path belongs to."""
        content_type = found.get("content-type", "")
        self.content_type = media_type(content_type)
        self.boundary = _boundary(content_type) if content_type.startswith("multipart/") else b""
        """What separates the parts of a multipart body."""
        self.encoding = found.get("content-encoding", "")
        """Content-encoding of the body; "" for none."""
        self.holds = self.method in WITH_BODY and "expect" not in found
        """The request waits for its body: not where a body has no meaning, or the client waits for a 100."""
        self.request_id = found.get(REQUEST_ID_HEADER, "")
        self.if_available = _PREFER in found and _prefers(found[_PREFER])
        """The client wants an answer only if the prompt is cached."""
        self.objective = found.get(OBJECTIVE_HEADER) or found.get(OLD_OBJECTIVE_HEADER, "")

    def share_texts(self) -> None:
        """Keep one copy of the texts that most requests have, for requests that are kept for long."""
        self.method, self.path = intern(self.method), intern(self.path)
        self.content_type = intern(self.content_type)

    @property
    def needs_model(self) -> bool:
        """The API demands a model."""
        return self.api is not None and self.api.needs_model

    def is_read(self, reading: BodyReading) -> bool:
        """Tell whether the body is read: of a known API, or of another path if it is JSON or may be."""
        api = self.api
        if api is not None:
            return api.parser in reading.parsers
        return reading.others and (not self.content_type or is_json(self.content_type))


def _boundary(content_type: str) -> bytes:
    found = _BOUNDARY.search(content_type)
    return (found[1] or found[2]).encode("latin-1", "replace") if found else b""


def _prefers(header: str) -> bool:
    """Tell whether a Prefer header (RFC 7240) has the preference if-available."""
    return any(each.partition(";")[0].strip().lower() == _IF_AVAILABLE for each in header.split(","))


class ResponseHeaders:
    """What the picker keeps of a response's headers."""

    __slots__ = ("content_type", "encoding", "status")

    def __init__(self, head: Head) -> None:
        """`head` was read for NAMES."""
        found = head.found.get
        text = found(":status", "")
        self.status = int(text) if len(text) == 3 and text.isascii() and text.isdigit() else 0
        self.content_type = media_type(found("content-type", ""))
        encoding = found("content-encoding", "")
        self.encoding = "" if encoding == "identity" else encoding
        """Content-Encoding; "" for none."""


def media_type(content_type: str) -> str:
    """Return the media type in lower case without its parameters."""
    if content_type in _BARE_TYPES:
        return content_type
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Tell whether a media type is JSON."""
    return content_type == "application/json" or content_type.endswith("+json")
