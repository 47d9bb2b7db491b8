"""grpc.health.v1 for the picker: Check, List and Watch. State and handlers; opens no socket.

Liveness means that the process answers. Everything else follows the pool: synced, and not draining. The
messages have one field each, so their bytes are written here.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from endpoint_picker.transport.seam import Metadata, Routes, Status, StatusCode, Stream
from inference_api.names import EXT_PROC_SERVICE, HEALTH_SERVICE

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
#: Names of the endpoint picker protocol, of the manifests in use ("inference-extension") and "" for all.
SERVICES: Final = ("", LIVENESS, READINESS, HEALTH_SERVICE, EXT_PROC_SERVICE)
#: Longest request that is read; a service name is short.
_MAX_REQUEST: Final = 4096


class Serving(IntEnum):
    """HealthCheckResponse.ServingStatus."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """What the picker says of itself."""

    __slots__ = ("_draining", "_synced", "_watchers")

    def __init__(self) -> None:
        self._synced = False
        self._draining = False
        self._watchers: set[Callable[[], None]] = set()

    @property
    def ready(self) -> bool:
        """The pool is known and the picker is not on its way out."""
        return self._synced and not self._draining

    @property
    def draining(self) -> bool:
        """The picker is on its way out."""
        return self._draining

    def synced(self) -> None:
        """Note that the pool's endpoints are known, be it that there are none."""
        self._synced = True
        self._tell()

    def drain(self) -> None:
        """Note that the picker is shutting down."""
        self._draining = True
        self._tell()

    def of(self, service: str) -> Serving:
        """Return the state of one service name."""
        if service not in SERVICES:
            return Serving.SERVICE_UNKNOWN
        if service == LIVENESS or self.ready:
            return Serving.SERVING
        return Serving.NOT_SERVING

    def watch(self, told: Callable[[], None]) -> Callable[[], None]:
        """Have `told` called after each change; return what ends it."""
        self._watchers.add(told)
        return lambda: self._watchers.discard(told)

    def _tell(self) -> None:
        for told in tuple(self._watchers):
            told()


def _requested_service(payload: bytes) -> str | None:
    """Decode HealthCheckRequest; None when it is none."""
    if not payload:
        return ""
    if len(payload) > _MAX_REQUEST or payload[0] != 0x0A or len(payload) < 2:
        return None
    length, start = payload[1], 2
    if length >= 0x80:
        if len(payload) < 3:
            return None
        length, start = length & 0x7F | payload[2] << 7, 3
    name = payload[start : start + length]
    if len(name) != length:
        return None
    return name.decode("utf-8", "replace")


def _response(state: Serving) -> bytes:
    return bytes((0x08, state))


_NO_REQUEST: Final = Status(StatusCode.INVALID_ARGUMENT, "the message is no HealthCheckRequest")
_UNKNOWN: Final = Status(StatusCode.NOT_FOUND, "unknown service")


def _check(health: Health, payload: bytes) -> bytes | Status:
    """Answer HealthCheckRequest."""
    service = _requested_service(payload)
    if service is None:
        return _NO_REQUEST
    state = health.of(service)
    return _UNKNOWN if state is Serving.SERVICE_UNKNOWN else _response(state)


def _list(health: Health, _payload: bytes) -> bytes | Status:
    """Answer HealthListRequest: a map of service name to HealthCheckResponse."""
    entries = []
    for service in SERVICES:
        name = service.encode()
        entry = b"\x0a" + bytes((len(name),)) + name + b"\x12\x02" + _response(health.of(service))
        entries.append(b"\x0a" + bytes((len(entry),)) + entry)
    return b"".join(entries)


class _Unary:
    """One call with one request and one answer."""

    __slots__ = ("_answer", "_health", "_stream")

    def __init__(
        self, stream: Stream, health: Health, answer: Callable[[Health, bytes], bytes | Status]
    ) -> None:
        self._stream = stream
        self._health = health
        self._answer = answer

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        answer = self._answer(self._health, payload)
        if isinstance(answer, Status):
            self._stream.finish(answer)
        else:
            self._stream.send(answer)
            self._stream.finish()

    def ended(self) -> None:
        """Refuse a call without a request; after an answer this does nothing."""
        self._stream.finish(_NO_REQUEST)

    def aborted(self, code: StatusCode) -> None:
        pass

    def writable(self) -> None:
        pass


class _Watch:
    """One Watch call: the state now, then each change of it."""

    __slots__ = ("_health", "_last", "_service", "_stream", "_unwatch")

    def __init__(self, stream: Stream, health: Health) -> None:
        self._stream = stream
        self._health = health
        self._service = ""
        self._last: Serving | None = None
        self._unwatch: Callable[[], None] = lambda: None

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        self._unwatch()
        service = _requested_service(payload)
        if service is None:
            self._stream.finish(_NO_REQUEST)
            return
        self._service = service
        self._unwatch = self._health.watch(self._changed)
        self._changed()

    def ended(self) -> None:
        """Watch on: a client closes its side after its one request."""

    def aborted(self, code: StatusCode) -> None:
        self._unwatch()

    def writable(self) -> None:
        pass

    def _changed(self) -> None:
        state = self._health.of(self._service)
        if state is not self._last:
            self._last = state
            self._stream.send(_response(state))


def health_routes(health: Health) -> Routes:
    """Return the methods of grpc.health.v1 on the given state."""
    return {
        "/grpc.health.v1.Health/Check": lambda stream: _Unary(stream, health, _check),
        "/grpc.health.v1.Health/List": lambda stream: _Unary(stream, health, _list),
        "/grpc.health.v1.Health/Watch": lambda stream: _Watch(stream, health),
    }
