"""The HTTP port under clients that open connections and leave them."""

import asyncio

import aiohttp
from prometheus_client import CollectorRegistry

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.health import Health
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.observability.http import MAX_CONNECTIONS, HttpServer
from endpoint_picker.observability.queue_page import queue_page
from inference_api.offered import Offered

HOST = "127.0.0.1"


async def test_idle_connections_make_room_for_new_ones() -> None:
    decisions = Decisions(EndpointTable(), lambda: 0.0)
    server = HttpServer(Health(), CollectorRegistry(), dict, Offered, decisions, lambda: queue_page(None))
    port = await server.start(HOST, 0)
    idle = []
    try:
        for _ in range(MAX_CONNECTIONS):
            idle.append(await asyncio.open_connection(HOST, port))
        async with aiohttp.ClientSession() as client, client.get(f"http://{HOST}:{port}/healthz") as answer:
            assert answer.status == 200
        oldest, _ = idle[0]
        async with asyncio.timeout(20):
            assert await oldest.read() == b""
    finally:
        for _, writer in idle:
            writer.close()
        await server.stop()
