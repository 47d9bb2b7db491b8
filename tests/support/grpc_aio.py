"""The picker's handlers on grpc.aio, as lean_grpc serves them: the reference that tests and benchmarks use.

grpc.aio often reports a reset call as the end of its input before it cancels it. Its handler then gets
`ended` where another transport calls `aborted`; it gets one of the two, once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
import grpc.aio

from endpoint_picker.transport import LIMITS, HandlerFactory, Metadata, Routes, StatusCode

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else two pickers could share an address, and split its calls
    ("grpc.max_concurrent_streams", LIMITS.max_concurrent_streams),
    ("grpc.max_receive_message_length", LIMITS.max_receive_message),
    ("grpc.max_send_message_length", LIMITS.max_send_message),
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Headroom's own proxy pings twice a second, to notice a frozen picker; grpc would take that for abuse.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

_GONE: Final = (grpc.aio.BaseError, asyncio.InvalidStateError)

_log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]
CredentialsFactory = Callable[[], grpc.ServerCredentials]


class _Call:
    """One call: the stream given to its handler, and the coroutine that moves its messages."""

    __slots__ = (
        "_blocked",
        "_context",
        "_drain",
        "_handler",
        "_message",
        "_outbox",
        "_queued",
        "_status",
        "_task",
        "_woken",
        "_writing",
    )

    def __init__(self, factory: HandlerFactory, context: _Context) -> None:
        self._context = context
        self._outbox: deque[bytes] = deque()
        self._queued = 0
        self._blocked = False
        self._status: StatusCode | None = None
        self._message = ""
        self._drain: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = False
        """Whether `_write_all` cancelled the reader to end the call; else the peer reset it."""
        self._writing = False
        """A task is in `_write_outbox`; grpc.aio refuses a second write beside the first."""
        self._handler = factory(self)

    def send(self, *payloads: bytes) -> bool:
        if self._status is not None:
            return False
        self._outbox.extend(payloads)
        self._queued += sum(map(len, payloads))
        self._have_written()
        self._blocked = self._queued > LIMITS.stream_send_high
        return not self._blocked

    def finish(self, status: StatusCode = StatusCode.OK, message: str = "") -> None:
        if self._status is None:
            self._status, self._message = status, message
            self._have_written()

    def _have_written(self) -> None:
        """Begin a task that writes and ends the call, unless one does so already: this one or the reader."""
        if self._drain is None and not self._writing and self._task is not asyncio.current_task():
            self._drain = asyncio.ensure_future(self._write_all())

    def cancel(self) -> None:
        self._outbox.clear()
        self._queued = 0
        self.finish(StatusCode.CANCELLED, "cancelled by the server")

    async def serve(self) -> None:
        """Run the call to its end. The reader itself writes the replies to its messages: no second task."""
        self._task = asyncio.current_task()
        try:
            self._handler.opened(cast("Metadata", self._context.invocation_metadata() or ()))
            await self._flush()
            while self._status is None:
                payload = await self._context.read()
                if payload is grpc.aio.EOF:
                    await self._end_of_input()
                else:
                    self._handler.received(payload)
                    await self._flush()
        except asyncio.CancelledError:
            if not self._woken:
                self._close(StatusCode.CANCELLED)
                raise
        except _GONE:
            self._close(StatusCode.CANCELLED)
            return
        except Exception:
            _log.exception("a stream handler failed")
            self._close(StatusCode.UNKNOWN)
        if self._status:
            await self._context.abort(_CODES[self._status], self._message)

    async def _end_of_input(self) -> None:
        self._handler.ended()
        await self._flush()
        if self._status is None:
            await asyncio.Event().wait()  # until finish() or a reset by the peer cancels it

    def _close(self, code: StatusCode) -> None:
        if self._status is None:
            self._status = code
            self._handler.aborted(code)
        if self._drain is not None:
            self._drain.cancel()

    async def _flush(self) -> None:
        if self._drain is not None:
            await self._drain
        await self._write_outbox()

    async def _write_outbox(self) -> None:
        self._writing = True
        try:
            while self._outbox:
                payload = self._outbox.popleft()
                await self._context.write(payload)
                self._queued -= len(payload)
                if self._blocked and not self._outbox and self._status is None:
                    self._blocked = False
                    self._handler.writable()
        finally:
            self._writing = False

    async def _write_all(self) -> None:
        """Write messages sent outside the reader's task, then cancel the reader if the call has to end."""
        try:
            await self._write_outbox()
        except _GONE:
            return  # the peer has gone, which the reader's own read reports
        finally:
            self._drain = None
        if self._status is not None and self._task is not None:
            self._woken = True
            self._task.cancel()


def _method(factory: HandlerFactory, calls: set[_Call]) -> "grpc.RpcMethodHandler[Any, Any]":
    """Serve a method of any arity as a stream of bytes both ways: on the wire they are the same."""

    async def serve(_requests: object, context: _Context) -> None:
        call = _Call(factory, context)
        calls.add(call)
        try:
            await call.serve()
        finally:
            calls.discard(call)

    return grpc.stream_stream_rpc_method_handler(cast("Any", serve))


def _services(routes: Routes, calls: set[_Call]) -> list[grpc.GenericRpcHandler]:
    methods: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for path, factory in routes.items():
        service, _, method = path.removeprefix("/").partition("/")
        methods.setdefault(service, {})[method] = _method(factory, calls)
    return [grpc.method_handlers_generic_handler(name, found) for name, found in methods.items()]


class GrpcAioServer:
    """A gRPC server of the given routes on one address, plaintext or TLS."""

    def __init__(self, routes: Routes, credentials: grpc.ServerCredentials | None = None) -> None:
        self._calls: set[_Call] = set()
        self._server = grpc.aio.server(
            handlers=_services(routes, self._calls), options=_OPTIONS, maximum_concurrent_rpcs=None
        )
        self._credentials = credentials

    @property
    def open_calls(self) -> int:
        """Calls that are open now."""
        return len(self._calls)

    async def start(self, address: str) -> int:
        """Listen on "ip:port" (port 0: any) and return the port. OSError when it cannot be bound."""
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            message = f"cannot listen on {address}"
            raise OSError(message)
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give the open ones `grace_s` seconds, then reset them."""
        await self._server.stop(grace_s)
