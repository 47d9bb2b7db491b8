"""The certificate of the gRPC port, as a client sees it."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from certificates import KeyPair, mount, new_pair
from counting_router import CountingRouter
from endpoint_picker.observability.metrics import PoolFigures
from endpoint_picker.servers import PickerServers
from endpoint_picker.settings import parse
from inference_api.offered import Offered
from inference_api.picker_health import CLEARTEXT_HTTP2, PickerHealth
from lean_grpc import CallError, Channel, client_context

ZERO = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[PickerServers]:
    mount(tmp_path, new_pair("first"))
    flags = ("--pool-name=p", f"--cert-path={tmp_path}", "--bind-address=127.0.0.1")
    found = PickerServers(parse([*flags, *ZERO]), CountingRouter(), lambda: PoolFigures(0))
    await found.start()
    found.pool_synced()
    await found.serve()
    yield found
    await found.stop()


async def served(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return certificate
    finally:
        writer.transport.abort()


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


async def until_served(port: int, pair: KeyPair) -> None:
    async with asyncio.timeout(20):
        while await served(port) != der(pair):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.1)


async def test_a_replaced_certificate_is_served_to_new_connections(
    servers: PickerServers, tmp_path: Path
) -> None:
    first = await served(servers.grpc_port)
    assert await served(servers.grpc_port) == first
    second = new_pair("second")
    mount(tmp_path, second)
    await until_served(servers.grpc_port, second)


async def test_a_faulty_replacement_keeps_the_last_pair(
    servers: PickerServers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await served(servers.grpc_port)
    second = new_pair("second")
    mount(tmp_path, KeyPair(second.certificate, new_pair("other").key))
    async with asyncio.timeout(20):
        while "is not used" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.1)
    assert await served(servers.grpc_port) == first
    mount(tmp_path, second)
    await until_served(servers.grpc_port, second)


async def test_a_gateway_without_tls_is_told_to_the_operator_the_log_and_the_metrics(
    servers: PickerServers, caplog: pytest.LogCaptureFixture
) -> None:
    """So speaks an Istio gateway to the picker while no DestinationRule has it use TLS."""

    async def get(path: str) -> str:
        url = f"http://127.0.0.1:{servers.metrics_port}{path}"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            return await response.text()

    health = Offered.model_validate_json(await get("/debug/config")).health
    assert health == PickerHealth()
    async with Channel(f"127.0.0.1:{servers.grpc_port}") as channel:
        with pytest.raises(CallError):
            await channel.unary("/grpc.health.v1.Health/Check", b"", timeout=20)
    health = Offered.model_validate_json(await get("/debug/config")).health
    assert health == PickerHealth(failed_handshakes=(CLEARTEXT_HTTP2,))
    assert "DestinationRule" in caplog.text
    assert re.search(
        r'llm_d_epp_failed_handshakes_total{kind="cleartext_http2"} [1-9]', await get("/metrics")
    )
    assert json.loads(await get("/debug/state"))["failedHandshakes"] == [CLEARTEXT_HTTP2]
    tls = client_context(verify=False)
    async with Channel(f"127.0.0.1:{servers.grpc_port}", tls=tls) as channel:
        await channel.unary("/grpc.health.v1.Health/Check", b"", timeout=20)
        health = Offered.model_validate_json(await get("/debug/config")).health
        assert health is not None
        assert health.connected
