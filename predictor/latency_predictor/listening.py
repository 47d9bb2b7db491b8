"""What both commands do around their service: signals, addresses, listeners, and how they end."""

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence

import uvloop
from aiohttp import web

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


async def listen(server: Server, addresses: Sequence[str]) -> None:
    """Listen on each address, HOST:PORT or unix:PATH; the socket of a process that was killed is replaced.

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


def log_addresses(addresses: Sequence[str], http: str) -> None:
    """Log where the process listens."""
    _log.info("listening on %s%s", ", ".join(addresses), f", HTTP on {http}" if http else "")


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        msg = f"{address!r} is no HOST:PORT"
        raise OSError(msg)
    return host.strip("[]") or "127.0.0.1", int(port)
