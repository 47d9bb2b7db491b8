"""A small service for tests of lean_grpc, served alike by lean_grpc, grpc.aio and grpcio's threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from lean_grpc import CallError, Metadata, Server, ServerCall, StatusCode

Payloads = AsyncIterator[bytes]

REVERSE = "/test.Service/Reverse"
SLOW = "/test.Service/Slow"
FAIL = "/test.Service/Fail"
CRASH = "/test.Service/Crash"
ECHO = "/test.Service/Echo"
FLOOD = "/test.Service/Flood"

FLOOD_PART = bytes(50_000)
FAIL_TRAILERS = (("x-why", "because"), ("x-raw-bin", b"\0\xff"))
FAIL_MESSAGE = "no: 100 % wrong, ümlaut\n"


class EchoHandler:
    """Sends back each message; logs its callbacks."""

    def __init__(self, call: ServerCall, log: list[str]) -> None:
        self._call = call
        self._log = log

    def opened(self, metadata: Metadata) -> None:
        self._log.append("opened")
        self._call.set_initial_metadata([("x-initial", "yes")])
        self._call.compress = ("x-compress", "yes") in metadata
        self._trailers = [pair for pair in metadata if pair[0].startswith("x-")]

    def received(self, payload: bytes) -> None:
        self._call.send(payload)

    def ended(self) -> None:
        self._log.append("ended")
        self._call.finish(trailers=self._trailers)

    def aborted(self, code: StatusCode) -> None:
        self._log.append(f"aborted {code.name}")

    def writable(self) -> None:
        self._log.append("writable")


class FloodHandler:
    """Sends 100 parts, as long as `send` reports room; counts them."""

    def __init__(self, call: ServerCall, log: list[str]) -> None:
        self._call = call
        self._log = log
        self.sent = 0

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        self.writable()

    def ended(self) -> None:
        pass

    def aborted(self, code: StatusCode) -> None:
        self._log.append(f"aborted {code.name} after {self.sent}")

    def writable(self) -> None:
        while self.sent < 100:
            self.sent += 1
            self._log.append(f"sent {self.sent}")
            if not self._call.send(FLOOD_PART):
                return
        self._call.finish()


def reverse(payload: bytes, call: ServerCall) -> bytes:
    return payload[::-1]


async def slow(payload: bytes, call: ServerCall) -> bytes:
    await asyncio.sleep(30)
    return payload


def fail(payload: bytes, call: ServerCall) -> bytes:
    raise CallError(StatusCode.FAILED_PRECONDITION, FAIL_MESSAGE, FAIL_TRAILERS)


def crash(payload: bytes, call: ServerCall) -> bytes:
    raise ZeroDivisionError


def install(server: Server, log: list[str]) -> None:
    """Add the service to a lean_grpc server."""
    server.add_unary(REVERSE, reverse)
    server.add_unary(SLOW, slow)
    server.add_unary(FAIL, fail)
    server.add_unary(CRASH, crash)
    server.add(ECHO, lambda call: EchoHandler(call, log))
    server.add(FLOOD, lambda call: FloodHandler(call, log))


def aio_handlers() -> grpc.GenericRpcHandler:
    """Return the service for grpc.aio."""

    async def reverse_aio(payload: bytes, context: Any) -> bytes:
        return payload[::-1]

    async def slow_aio(payload: bytes, context: Any) -> bytes:
        await asyncio.sleep(30)
        return payload

    async def fail_aio(payload: bytes, context: Any) -> None:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            FAIL_MESSAGE,
            (("x-why", "because"), ("x-raw-bin", b"\0\xff")),
        )

    async def echo_aio(payloads: Payloads, context: Any) -> Payloads:
        await context.send_initial_metadata((("x-initial", "yes"),))
        async for payload in payloads:
            yield payload

    async def flood_aio(payloads: Payloads, context: Any) -> Payloads:
        for _ in range(100):
            yield FLOOD_PART

    return _handlers(reverse_aio, slow_aio, fail_aio, echo_aio, flood_aio)


def sync_handlers(stop: futures.Future[None]) -> grpc.GenericRpcHandler:
    """Return the service for grpcio's threads; `stop` ends what waits."""

    def reverse_sync(payload: bytes, context: Any) -> bytes:
        return payload[::-1]

    def slow_sync(payload: bytes, context: Any) -> bytes:
        stop.result(30)
        return payload

    def fail_sync(payload: bytes, context: Any) -> None:
        context.set_trailing_metadata(FAIL_TRAILERS)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, FAIL_MESSAGE)

    def echo_sync(payloads: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.send_initial_metadata((("x-initial", "yes"),))
        yield from payloads

    def flood_sync(payloads: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for _ in range(100):
            yield FLOOD_PART

    return _handlers(reverse_sync, slow_sync, fail_sync, echo_sync, flood_sync)


def _handlers(*methods: Callable[..., object]) -> grpc.GenericRpcHandler:
    reverse_any, slow_any, fail_any, echo_any, flood_any = methods
    return grpc.method_handlers_generic_handler(
        "test.Service",
        {
            "Reverse": grpc.unary_unary_rpc_method_handler(reverse_any),
            "Slow": grpc.unary_unary_rpc_method_handler(slow_any),
            "Fail": grpc.unary_unary_rpc_method_handler(fail_any),
            "Echo": grpc.stream_stream_rpc_method_handler(echo_any),
            "Flood": grpc.stream_stream_rpc_method_handler(flood_any),
        },
    )
