"""Methods of one request and one answer, as a plain or coroutine function; only the latter costs a task."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lean_grpc.calls.handler import Handler
from lean_grpc.calls.metadata import Metadata
from lean_grpc.calls.server_call import ServerCall
from lean_grpc.status import CallError, StatusCode

UnaryFunction = Callable[[bytes, ServerCall], bytes | Awaitable[bytes]]
"""Takes the request and the call, returns the answer; raises `CallError` for another status than OK."""

_log = logging.getLogger("lean_grpc.server")


def unary_handler(function: UnaryFunction) -> Callable[[ServerCall], Handler]:
    """Return a factory of handlers that serve calls with `function`."""

    def make(call: ServerCall) -> Handler:
        return _UnaryHandler(call, function)

    return make


class _UnaryHandler:
    """Collects the request, calls the function, sends its answer."""

    __slots__ = ("_call", "_function", "_payload", "_task")

    def __init__(self, call: ServerCall, function: UnaryFunction) -> None:
        self._call = call
        self._function = function
        self._payload: bytes | None = None
        self._task: asyncio.Future[bytes] | None = None

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        if self._payload is not None:
            self._call.finish(StatusCode.INTERNAL, "a unary method takes one message")
            return
        self._payload = payload

    def ended(self) -> None:
        if self._payload is None:
            self._call.finish(StatusCode.INTERNAL, "a unary method takes one message, and none came")
            return
        try:
            answer = self._function(self._payload, self._call)
        except CallError as error:
            self._call.finish(error.code, error.message, error.trailers)
            return
        if isinstance(answer, bytes):
            self._answer(answer)
        else:
            self._task = asyncio.ensure_future(answer)
            self._task.add_done_callback(self._finished)

    def aborted(self, code: StatusCode) -> None:
        if self._task is not None:
            self._task.cancel()

    def writable(self) -> None:
        pass

    def _answer(self, answer: bytes) -> None:
        self._call.send(answer)
        self._call.finish()

    def _finished(self, task: asyncio.Future[bytes]) -> None:
        try:
            try:
                self._answer(task.result())
            except asyncio.CancelledError:
                self._call.finish(StatusCode.CANCELLED, "the handler was cancelled")
            except CallError as error:
                self._call.finish(error.code, error.message, error.trailers)
        except Exception:
            _log.exception("a handler of %s failed", self._call.path)
            self._call.finish(StatusCode.UNKNOWN, "the handler failed")
