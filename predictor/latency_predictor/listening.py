"""What both commands do around their service: signals, addresses, listeners, and how they end."""

import asyncio
import ipaddress
import logging
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Coroutine, Sequence
from importlib.metadata import PackageNotFoundError, version

import uvloop
from aiohttp import web

from latency_predictor.supervise import BEAT_FD, BEAT_S, FLAG
from lean_grpc import Server

_log = logging.getLogger(__name__)


def run_command(running: Coroutine[None, None, None], log_level: str) -> None:
    """Run a command with its log on standard error.

    Exit status: 1 when it cannot run, as with an address that cannot be bound; 130 after an interrupt.
    """
    logging.basicConfig(
        level=log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        uvloop.run(running)
    except OSError as error:
        _log.error("cannot run: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def end_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    return over


def add_common_flags(parser: ArgumentParser) -> None:
    """Add the flags that both commands have."""
    add = parser.add_argument
    add(
        "--status-http",
        default="",
        metavar="HOST:PORT",
        help="address of /metrics, /healthz, /readyz and /status alone; '' for none",
    )
    add(FLAG, action="store_true", help="start the process again when it ends or hangs")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add("--version", action="version", version=_version())


def _version() -> str:
    try:
        return version("headroom-operator")
    except PackageNotFoundError:  # a source tree that runs without being installed
        return "unknown"


async def beat() -> None:
    """Write to the supervisor's pipe, so that it knows that the event loop runs; without one, end."""
    given = os.environ.pop(BEAT_FD, "")
    while given:
        os.write(int(given), b".")
        await asyncio.sleep(BEAT_S)


async def listen(server: Server, addresses: Sequence[str]) -> None:
    """Listen on each address, HOST:PORT or unix:PATH; the socket of a process that was killed is replaced.

    The host `localhost` is a pod's own loopback address: 127.0.0.1, or $POD_IP where that is one itself.

    Raises:
        OSError: An address cannot be bound, or is none.
    """
    for address in addresses:
        path = address.removeprefix("unix:")
        if path != address:
            await server.listen_unix(path)
        else:
            await server.listen(*_host_port(address))


async def serve_http(application: web.Application, address: str) -> web.AppRunner:
    """Serve an application on HOST:PORT; the caller cleans the runner up.

    Raises:
        OSError: The address cannot be bound, or is none.
    """
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, *_host_port(address)).start()
    return runner


def log_addresses(addresses: Sequence[str], *http: str) -> None:
    """Log where the process listens; an empty address is none."""
    named = [each for each in http if each]
    _log.info("listening on %s%s", ", ".join(addresses), f", HTTP on {', '.join(named)}" if named else "")


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        msg = f"{address!r} is no HOST:PORT"
        raise OSError(msg)
    host = host.strip("[]")
    return (_loopback() if host in {"", "localhost"} else host), int(port)


def _loopback() -> str:
    """Return $POD_IP where pods share the machine's network, in which 127.0.0.1 belongs to no single pod."""
    pod_ip = os.environ.get("POD_IP", "")
    try:
        shared = ipaddress.ip_address(pod_ip).is_loopback
    except ValueError:
        shared = False
    return pod_ip if shared else "127.0.0.1"
