"""The certificate of the gRPC port, as a client sees it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from endpoint_picker.observability.metrics import PoolFigures
from endpoint_picker.servers import PickerServers
from endpoint_picker.settings import parse
from endpoint_picker.tls import KeyPair, self_signed
from ext_proc import CountingRouter

NOW = datetime.now(UTC)
ZERO = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")


def write(folder: Path, pair: KeyPair) -> None:
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        fresh = folder / f"{name}.new"
        fresh.write_bytes(content)
        fresh.rename(folder / name)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[PickerServers]:
    write(tmp_path, self_signed(("first",), NOW))
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


async def test_a_replaced_certificate_is_served_to_new_connections(
    servers: PickerServers, tmp_path: Path
) -> None:
    first = await served(servers.grpc_port)
    assert await served(servers.grpc_port) == first
    second = self_signed(("second",), NOW)
    write(tmp_path, second)
    changed = await served(servers.grpc_port)
    assert changed == ssl.PEM_cert_to_DER_cert(second.certificate.decode())
    assert changed != first
