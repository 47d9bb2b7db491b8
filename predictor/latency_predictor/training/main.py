"""Command `headroom-trainer`: listeners, signals, and the service between them."""

import asyncio
import logging
import signal
import sys

import uvloop
from aiohttp import web

from latency_predictor.training import settings as command_line
from latency_predictor.training.http_api import HttpApi
from latency_predictor.training.service import TrainingService
from latency_predictor.training.settings import TrainerSettings
from lean_grpc import HealthService, Server

_log = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM. Exit status: 0 after it, 1 when the trainer cannot run, 2 for a bad command line."""
    chosen = command_line.parse(sys.argv[1:])
    logging.basicConfig(
        level=chosen.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        uvloop.run(run(chosen))
    except OSError as error:
        _log.error("cannot run: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


async def run(chosen: TrainerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    service = TrainingService(chosen)
    server, health = Server(), HealthService()
    service.install(server)
    health.install(server)
    for address in chosen.listen:
        path = address.removeprefix("unix:")
        if path != address:
            await server.listen_unix(path)
        else:
            await server.listen(*_host_port(address))
    runner = None
    if chosen.http:
        runner = web.AppRunner(HttpApi(service, chosen).application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, *_host_port(chosen.http)).start()
    starting = asyncio.ensure_future(service.start())
    _log.info(
        "listening on %s%s", ", ".join(chosen.listen), f", HTTP on {chosen.http}" if chosen.http else ""
    )
    ended = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        await ended
    finally:
        starting.cancel()
        health.shut_down()
        await server.drain(timeout=5)
        if runner is not None:
            await runner.cleanup()
        await service.stop()


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        msg = f"{address!r} is no HOST:PORT"
        raise OSError(msg)
    return host.strip("[]") or "127.0.0.1", int(port)


if __name__ == "__main__":
    main()
