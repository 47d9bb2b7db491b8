"""The real servers that the batch subscriber's component tests run against, each on a free loopback port."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

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
