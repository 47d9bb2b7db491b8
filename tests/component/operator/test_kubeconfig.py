"""A kubeconfig with embedded certificates where no file can be written, as in a read-only container."""

import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from certificates import KeyPair, new_pair
from cluster_client.access import ApiAccess
from cluster_client.api import KubernetesApi
from inference_operator.shell.connection import Connection, ConnectionProblem


@pytest.fixture
def client() -> KeyPair:
    return new_pair("127.0.0.1")


@pytest.fixture
def server() -> KeyPair:
    return new_pair("127.0.0.1")


@pytest.fixture
async def port(tmp_path: Path, client: KeyPair, server: KeyPair) -> AsyncIterator[int]:
    """An API server that has one empty list and asks for the client's certificate."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=client.certificate.decode())
    tls.verify_mode = ssl.CERT_REQUIRED
    pair = tmp_path / "server.pem"
    pair.write_bytes(server.certificate + server.key)
    tls.load_cert_chain(pair)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"kind": "PodList", "items": []})

    app = web.Application()
    app.router.add_get("/api/v1/pods", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@asynccontextmanager
async def read_only(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nonexistent")
        yield


def kubeconfig(folder: Path, port: int, client: KeyPair, server: KeyPair, *, embedded: bool) -> Path:
    def entry(name: str, content: bytes) -> dict[str, str]:
        if embedded:
            return {f"{name}-data": base64.b64encode(content).decode()}
        (folder / f"{name}.pem").write_bytes(content)
        return {name: f"{name}.pem"}

    cluster = {"server": f"https://127.0.0.1:{port}"} | entry("certificate-authority", server.certificate)
    user = entry("client-certificate", client.certificate) | entry("client-key", client.key)
    target = folder / "kubeconfig"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    target.write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "files-beside"])
async def test_the_operator_and_kopf_are_let_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    port: int,
    client: KeyPair,
    server: KeyPair,
    embedded: bool,
) -> None:
    file = kubeconfig(tmp_path, port, client, server, embedded=embedded)
    async with read_only(monkeypatch):
        connection = await Connection.open(str(file))
        try:
            status, _ = await connection.request("GET", "/api/v1/pods", {}, None, "application/json", 10)
            assert status == 200
            given = await connection.for_kopf()
            kopf_tls = ssl.create_default_context(cafile=str(given.ca_path))
            kopf_tls.load_cert_chain(str(given.certificate_path), str(given.private_key_path))
        finally:
            await connection.close()


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "files-beside"])
async def test_the_picker_is_let_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    port: int,
    client: KeyPair,
    server: KeyPair,
    embedded: bool,
) -> None:
    file = kubeconfig(tmp_path, port, client, server, embedded=embedded)
    async with read_only(monkeypatch):
        api = KubernetesApi(ApiAccess.from_kubeconfig(file))
        try:
            assert (await api.page("/api/v1/pods", {}))["items"] == []
        finally:
            await api.close()


@pytest.mark.parametrize("content", ["", "- a\n- list\n", "clusters: [", "clusters: [{cluster: 1}]\n"])
async def test_a_file_that_is_no_kubeconfig_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(ConnectionProblem, match="kubeconfig cannot be used"):
        await Connection.open(str(tmp_path / "kubeconfig"))
