"""Command `headroom-predictor`: listeners, signals, and the follower of bundles."""

import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from latency_predictor.serving import settings as command_line
from latency_predictor.serving.follower import Follower
from latency_predictor.serving.http_api import HttpApi
from latency_predictor.serving.kernel import compile_kernel
from latency_predictor.serving.service import PredictionService
from latency_predictor.serving.settings import PredictorSettings
from lean_grpc import HealthService, Server

_log = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM. Exit status: 0 after it, 1 when the server cannot run, 2 for a bad command line."""
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


async def run(chosen: PredictorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    service = PredictionService()
    follower = Follower(chosen.models, service.use)
    compile_kernel()
    # Listen only once the newest bundle is in use, so that a server that is started again answers with it.
    await follower.look()
    gc.collect()
    gc.freeze()
    server, health = Server(), HealthService()
    service.install(server)
    health.install(server)
    for address in chosen.listen:
        path = address.removeprefix("unix:")
        if path != address:
            await asyncio.to_thread(Path(path).unlink, missing_ok=True)  # of a server that was killed
            await server.listen_unix(path)
        else:
            await server.listen(*_host_port(address))
    runner = None
    if chosen.http:
        api = HttpApi(service, follower, chosen.quantile)
        runner = web.AppRunner(api.application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, *_host_port(chosen.http)).start()
    _log.info(
        "listening on %s%s", ", ".join(chosen.listen), f", HTTP on {chosen.http}" if chosen.http else ""
    )
    following = asyncio.create_task(follower.run(), name="follower")
    ended = asyncio.create_task(over.wait(), name="signal")
    try:
        await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
    finally:
        following.cancel()
        ended.cancel()
        health.shut_down()
        await server.drain(timeout=5)
        if runner is not None:
            await runner.cleanup()


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        msg = f"{address!r} is no HOST:PORT"
        raise OSError(msg)
    return host.strip("[]") or "127.0.0.1", int(port)


if __name__ == "__main__":
    main()
