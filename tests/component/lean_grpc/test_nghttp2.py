"""nghttp2's tools against the server in a process of its own, on uvloop."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import lean_server_process
from http2_wire import message
from lean_service import ECHO, REVERSE

NGHTTP = shutil.which("nghttp")
H2LOAD = shutil.which("h2load")
needs_tools = pytest.mark.skipif(
    not (NGHTTP and H2LOAD), reason="nghttp and h2load are not installed (Debian package nghttp2-client)"
)
WINDOWS_AND_TABLES: list[tuple[str, ...]] = [(), ("-w", "10", "-W", "16"), ("--header-table-size=0",)]
HEADERS = ("-H", ":method: POST", "-H", "content-type: application/grpc", "-H", "te: trailers")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    folder = tmp_path_factory.mktemp("server")
    process = subprocess.Popen(
        [sys.executable, lean_server_process.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    port, tls_port = process.stdout.readline().split()
    yield int(port), int(tls_port)
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_tools
@pytest.mark.parametrize("tls", [False, True])
def test_nghttp_makes_a_call(ports: tuple[int, int], tmp_path: Path, tls: bool) -> None:
    body = tmp_path / "body"
    body.write_bytes(message(b"abc"))
    url = f"https://localhost:{ports[1]}{REVERSE}" if tls else f"http://127.0.0.1:{ports[0]}{REVERSE}"
    said = run(NGHTTP or "", "-v", "-d", str(body), *HEADERS, url)
    assert ":status: 200" in said
    assert "grpc-status: 0" in said
    assert "DATA frame <length=8" in said


@needs_tools
@pytest.mark.parametrize("more", WINDOWS_AND_TABLES, ids=["default", "small windows", "no table"])
@pytest.mark.parametrize("tls", [False, True])
def test_h2load_has_no_failures(
    ports: tuple[int, int], tmp_path: Path, tls: bool, more: tuple[str, ...]
) -> None:
    body = tmp_path / "body"
    body.write_bytes(message(b"z" * 3_000))
    url = f"https://localhost:{ports[1]}{ECHO}" if tls else f"http://127.0.0.1:{ports[0]}{ECHO}"
    said = run(H2LOAD or "", "-n", "400", "-c", "4", "-m", "25", "-d", str(body), *more, *HEADERS, url)
    assert re.search(r"400 succeeded, 0 failed, 0 errored, 0 timeout", said), said
    assert "400 2xx" in said


@pytest.mark.parametrize("tls", [False, True])
def test_grpcio_threads_reach_the_server_on_uvloop(ports: tuple[int, int], tls: bool) -> None:
    if tls:
        # The certificate is self-signed: a client that verifies it ends the handshake.
        credentials = grpc.ssl_channel_credentials(b"")
        refused: Any
        with grpc.secure_channel(f"localhost:{ports[1]}", credentials) as refused:
            with pytest.raises(grpc.RpcError):
                refused.unary_unary(REVERSE)(b"abc", timeout=5)
        return
    channel: Any
    with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        large = bytes(range(256)) * 12_000
        assert channel.unary_unary(REVERSE)(large) == large[::-1]
        assert list(channel.stream_stream(ECHO)(iter([b"a", b"b" * 100_000]))) == [b"a", b"b" * 100_000]
