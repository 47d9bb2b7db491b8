"""grpc.health.v1 on a server: Check, Watch and List. Its few messages are read and written by hand."""

from typing import Final

from lean_grpc.aio.server import Server
from lean_grpc.calls.metadata import Metadata
from lean_grpc.calls.server_call import ServerCall
from lean_grpc.status import CallError, StatusCode

SERVICE: Final = "/grpc.health.v1.Health/"

UNKNOWN: Final = 0
SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

MAX_LISTED: Final = 100
"""Services that List returns; a server with more answers RESOURCE_EXHAUSTED, as the protocol says."""


class HealthService:
    """The states of a server's services; the empty name stands for the server as a whole."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {"": SERVING}
        self._watchers: dict[str, set[_Watch]] = {}
        self._down = False

    def install(self, server: Server) -> None:
        """Serve the three methods on `server`; one service may be installed on several servers."""
        server.add_unary(SERVICE + "Check", self._check)
        server.add_unary(SERVICE + "List", self._list)
        server.add(SERVICE + "Watch", lambda call: _Watch(call, self))

    def set(self, service: str, *, serving: bool) -> None:
        """Set the state of a service and send it to its watchers. After `shut_down` it is NOT_SERVING."""
        self._put(service, SERVING if serving and not self._down else NOT_SERVING)

    def shut_down(self) -> None:
        """Set every service to NOT_SERVING for good: the first step of a drain."""
        self._down = True
        for service in list(self._states):
            self._put(service, NOT_SERVING)

    def state(self, service: str) -> int:
        """Return the state of a service, SERVICE_UNKNOWN if it was never set."""
        return self._states.get(service, SERVICE_UNKNOWN)

    def watch(self, service: str, watcher: "_Watch") -> None:
        """Send changes to `watcher` until `unwatch`."""
        self._watchers.setdefault(service, set()).add(watcher)

    def unwatch(self, service: str, watcher: "_Watch") -> None:
        """Forget a watcher."""
        watchers = self._watchers.get(service)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[service]

    def _put(self, service: str, state: int) -> None:
        if self._states.get(service) == state:
            return
        self._states[service] = state
        for watcher in list(self._watchers.get(service, ())):
            watcher.tell(state)

    def _check(self, payload: bytes, call: ServerCall) -> bytes:
        state = self.state(read_service(payload))
        if state == SERVICE_UNKNOWN:
            raise CallError(StatusCode.NOT_FOUND, "unknown service")
        return write_state(state)

    def _list(self, payload: bytes, call: ServerCall) -> bytes:
        if len(self._states) > MAX_LISTED:
            raise CallError(StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_LISTED} services")
        return b"".join(_entry(name.encode(), write_state(state)) for name, state in self._states.items())


class _Watch:
    """One Watch call. A slow reader misses states in between, never the last one."""

    __slots__ = ("_call", "_health", "_room", "_service", "_unsent")

    def __init__(self, call: ServerCall, health: HealthService) -> None:
        self._call = call
        self._health = health
        self._service: str | None = None
        self._room = True
        self._unsent: int | None = None

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        if self._service is not None:
            self._stop()
            self._call.finish(StatusCode.INVALID_ARGUMENT, "Watch takes one message")
            return
        try:
            self._service = read_service(payload)
        except CallError as error:
            self._call.finish(error.code, error.message)
            return
        self._health.watch(self._service, self)
        self.tell(self._health.state(self._service))

    def ended(self) -> None:
        if self._service is None:
            self._call.finish(StatusCode.INVALID_ARGUMENT, "Watch takes one message, and none came")

    def aborted(self, code: StatusCode) -> None:
        self._stop()

    def writable(self) -> None:
        self._room = True
        if self._unsent is not None:
            state, self._unsent = self._unsent, None
            self.tell(state)

    def tell(self, state: int) -> None:
        """Send a state, or keep it until there is room."""
        if self._room:
            self._room = self._call.send(write_state(state))
        else:
            self._unsent = state

    def _stop(self) -> None:
        if self._service is not None:
            self._health.unwatch(self._service, self)


def read_service(payload: bytes) -> str:
    """Return field 1, a string, of a HealthCheckRequest.

    Raises:
        CallError: INVALID_ARGUMENT: the payload is not such a message.
    """
    service = b""
    at = 0
    while at < len(payload):
        key, at = _varint(payload, at)
        wire = key & 7
        if wire == 2:
            size, at = _varint(payload, at)
            value = payload[at : at + size]
            if len(value) != size:
                raise _bad_request()
            at += size
            if key >> 3 == 1:
                service = value
        elif wire == 0:
            _, at = _varint(payload, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise _bad_request()
    try:
        return service.decode()
    except UnicodeDecodeError:
        raise _bad_request() from None


def write_state(state: int) -> bytes:
    """Return a HealthCheckResponse: field 1, an enum; the zero value is left out."""
    return bytes((0x08, state)) if state else b""


def _entry(name: bytes, response: bytes) -> bytes:
    """Return one entry of HealthListResponse's map: field 1 with key and value inside."""
    inner = b"\x0a" + _encode_varint(len(name)) + name + b"\x12" + _encode_varint(len(response)) + response
    return b"\x0a" + _encode_varint(len(inner)) + inner


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(payload) and shift < 64:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _bad_request()


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bad_request() -> CallError:
    return CallError(StatusCode.INVALID_ARGUMENT, "the payload is no HealthCheckRequest")
