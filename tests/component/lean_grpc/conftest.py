"""Servers and conditions that the component tests of lean_grpc share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lean_grpc import Limits, Server
from lean_grpc.aio.tls import CERTIFICATE, KEY, ServerCertificate, make_self_signed
from lean_service import install


@dataclass
class Served:
    """A lean_grpc server with the test service on TCP, TLS and a UNIX socket."""

    server: Server
    port: int
    tls_port: int
    socket: str
    certificate: Path
    log: list[str] = field(default_factory=list)


@pytest.fixture
def limits() -> Limits:
    """Return the limits of the served server; tests override it by parametrisation."""
    return Limits()


@pytest.fixture
async def served(limits: Limits, tmp_path: Path) -> AsyncIterator[Served]:
    server = Server(limits=limits)
    log: list[str] = []
    install(server, log)
    certificate, key = make_self_signed(("localhost", "127.0.0.1"))
    (tmp_path / CERTIFICATE).write_bytes(certificate)
    (tmp_path / KEY).write_bytes(key)
    port = await server.listen()
    tls_port = await server.listen(tls=ServerCertificate(tmp_path).context)
    socket = str(tmp_path / "s")
    await server.listen_unix(socket)
    yield Served(server, port, tls_port, socket, tmp_path, log)
    await server.close()


async def eventually(condition: Callable[[], bool], within: float = 20.0) -> None:
    """Wait until a condition holds; fails the test if it does not within the time."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - no event tells of what a peer has done
            await asyncio.sleep(0.005)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., object]:
    return eventually
