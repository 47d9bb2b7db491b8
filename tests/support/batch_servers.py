"""The real servers that the batch subscriber's component tests run against, each on a free loopback port."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from aiohttp import web

from local_cluster.binaries import ensure_pubsub_fake

_PATIENCE_S = 30.0


def program(name: str, *places: Path) -> Path:
    """Return the path of a program; a missing one fails the test with what installs it."""
    found = shutil.which(name, path=":".join([*map(str, places), *_search_path()]))
    if found is None:
        message = f"{name} is not installed; `make batch-tools` installs it (as root, on Debian)"
        raise AssertionError(message)
    return Path(found)


def _search_path() -> list[str]:
    return os.environ.get("PATH", "").split(":")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


class RedisServer:
    """redis-server with an append-only file, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        """Start it on what its folder holds; returns once it answers."""
        log = (self._folder / "redis.log").open("ab")
        argv = [
            str(program("redis-server")), "--port", str(self.port), "--bind", "127.0.0.1", "--dir",
            str(self._folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "", *options,
        ]  # fmt: skip
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        await_port(self.port, self._process, self._folder / "redis.log")

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once something answers on the port; fail when the process ends first."""
    until = time.monotonic() + _PATIENCE_S
    while not answers(port):
        assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()[-2000:]}"
        assert time.monotonic() < until, f"no answer on port {port}: {log.read_text()[-2000:]}"
        time.sleep(0.02)


class PubSubFake:
    """Google's fake Pub/Sub server, and its clock."""

    def __init__(self, folder: Path) -> None:
        fake = ensure_pubsub_fake(lambda line: print(line, file=sys.stderr))
        log = (folder / "pubsub.log").open("ab")
        self._process = subprocess.Popen(
            [str(fake)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        log.close()
        assert self._process.stdout is not None
        self.endpoint, self._admin = self._process.stdout.readline().split()
        self.ahead = 0.0

    def clock(self) -> float:
        """The server's time."""
        return time.time() + self.ahead

    def advance(self, seconds: float) -> None:
        """Move the clock of the server, and `clock`."""
        request = urllib.request.Request(
            f"http://{self._admin}/advance?seconds={seconds}", data=b"", method="POST"
        )
        urllib.request.urlopen(request, timeout=_PATIENCE_S).close()
        self.ahead += seconds

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class PostgresServer:
    """PostgreSQL on a new data folder; as root it runs as another user, since it refuses root."""

    def __init__(self) -> None:
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        self._bin = program("initdb", *places).parent
        self.folder = Path(tempfile.mkdtemp(prefix="headroom-postgres-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://headroom@127.0.0.1:{self.port}/postgres"

    def make(self, password: str) -> None:
        """Make the data folder; `headroom` is its owner."""
        (self.folder / "password").write_text(password)
        if self._user is not None:
            shutil.chown(self.folder / "password", self._user)
        argv = [
            str(self._bin / "initdb"), "-D", str(self.folder / "data"), "-U", "headroom", "-A",
            "scram-sha-256",
            "--pwfile", str(self.folder / "password"), "--no-sync", "-E", "UTF8", "--locale", "C",
        ]  # fmt: skip
        done = subprocess.run(
            argv,
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")

    def start(self) -> None:
        """Start it; returns once it answers."""
        argv = [
            str(self._bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-h",
            "127.0.0.1",
            "-k", "", "-c", "fsync=off",
        ]  # fmt: skip
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, user=self._user, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        await_port(self.port, self._process, self.folder / "postgres.log")

    def kill(self) -> None:
        """End it at once, its connections with it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)


class ObjectServer:
    """An object server with the part of S3's protocol that results need, conditional puts included."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_down = False
        self._runner: web.AppRunner | None = None
        self.endpoint = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{name:.+}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.endpoint = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        assert request.headers["Authorization"].startswith("AWS4-HMAC-SHA256 ")
        if self.is_down:
            return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")
        if request.method == "PUT":
            data = await request.read()
            if request.headers.get("If-None-Match") == "*" and name in self.objects:
                return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
            self.objects[name] = data
            return web.Response(headers={"ETag": '"1"'})
        if name not in self.objects:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": '"1"', "Last-Modified": "Tue, 01 Dec 2026 10:00:00 GMT"}
        return web.Response(body=self.objects[name], headers=headers)
