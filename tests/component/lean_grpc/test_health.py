"""grpc.health.v1 as grpcio's own health client sees it."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lean_grpc import Channel, HealthService, Server

STATES = health_pb2.HealthCheckResponse


@pytest.fixture
async def health() -> Any:
    service = HealthService()
    server = Server()
    service.install(server)
    port = await server.listen()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield service, health_pb2_grpc.HealthStub(channel), port
    await server.close()


async def test_check(health: Any) -> None:
    service, stub, _ = health
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == STATES.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(health_pb2.HealthCheckRequest(service="x"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    service.set("x", serving=False)
    assert (await stub.Check(health_pb2.HealthCheckRequest(service="x"))).status == STATES.NOT_SERVING
    service.set("x", serving=True)
    assert (await stub.Check(health_pb2.HealthCheckRequest(service="x"))).status == STATES.SERVING


async def test_watch_sends_every_change(health: Any) -> None:
    service, stub, _ = health
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="x"))
    assert (await watch.read()).status == STATES.SERVICE_UNKNOWN
    service.set("x", serving=True)
    assert (await watch.read()).status == STATES.SERVING
    service.shut_down()
    assert (await watch.read()).status == STATES.NOT_SERVING
    service.set("x", serving=True)
    service.set("other", serving=True)
    watch.cancel()
    assert (await stub.Check(health_pb2.HealthCheckRequest(service="other"))).status == STATES.NOT_SERVING


async def test_list(health: Any) -> None:
    service, stub, _ = health
    service.set("a.B", serving=False)
    listed = await stub.List(health_pb2.HealthListRequest())
    assert {name: entry.status for name, entry in listed.statuses.items()} == {
        "": STATES.SERVING,
        "a.B": STATES.NOT_SERVING,
    }


async def test_a_bad_payload_is_refused(health: Any) -> None:
    from lean_grpc import CallError, StatusCode

    async with Channel(f"127.0.0.1:{health[2]}") as channel:
        for method in ("Check", "Watch"):
            for payload in (b"\xff", b"\x0a\x7f", b"\x0b", b"\x0a\x01\xff"):
                with pytest.raises(CallError) as failed:
                    async with asyncio.timeout(20):
                        await channel.unary(f"/grpc.health.v1.Health/{method}", payload)
                assert failed.value.code is StatusCode.INVALID_ARGUMENT
