"""The end of a picker, as proxies that are connected to it see it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import envoy_messages as wire
from counting_router import CountingRouter
from endpoint_picker.eds import STREAM_METHOD
from endpoint_picker.observability.metrics import PoolFigures
from endpoint_picker.servers import PickerServers
from endpoint_picker.settings import parse
from ext_proc.handler import PROCESS_METHOD
from lean_grpc import Channel, StatusCode

FLAGS = ("--pool-name=p", "--bind-address=127.0.0.1", "--no-secure-serving", "--drain-timeout=60s")
ZERO = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")


@pytest.fixture
async def servers() -> AsyncIterator[PickerServers]:
    found = PickerServers(parse([*FLAGS, *ZERO]), CountingRouter("10.0.0.1:8000"), lambda: PoolFigures(1))
    await found.start()
    found.pool_synced()
    await found.serve()
    yield found
    await found.stop()


async def test_open_exchanges_end_in_peace_and_discovery_moves_on(servers: PickerServers) -> None:
    address = f"127.0.0.1:{servers.grpc_port}"
    async with Channel([address]) as channel, asyncio.timeout(40):
        async with channel.stream(STREAM_METHOD) as discovery, channel.stream(PROCESS_METHOD) as exchange:
            await discovery.send(b"")
            assert await anext(discovery)
            await exchange.send(wire.request_headers(end=True, method="GET"))
            assert wire.kinds([await anext(exchange)]) == ["request_headers"]

            draining = asyncio.create_task(servers.drain())
            async for _ in discovery:
                pass
            assert not draining.done()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", servers.grpc_port)

            await exchange.send(wire.response_headers(end=True))
            assert wire.kinds([await anext(exchange)]) == ["response_headers"]
            exchange.end()
            assert [each async for each in exchange] == []
            status = exchange.status
            assert status is not None
            assert status.code is StatusCode.OK
        await draining
    assert servers.metrics.open_exchanges == 0


async def test_a_picker_without_exchanges_is_not_held_up_by_a_health_watch(servers: PickerServers) -> None:
    address = f"127.0.0.1:{servers.grpc_port}"
    async with Channel([address]) as channel, asyncio.timeout(20):
        async with channel.stream("/grpc.health.v1.Health/Watch") as watch:
            await watch.send(b"")
            assert await anext(watch) == b"\x08\x01"
            draining = asyncio.create_task(servers.drain())
            assert await anext(watch) == b"\x08\x02"
            await draining
