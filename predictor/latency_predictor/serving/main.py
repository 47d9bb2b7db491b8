"""Command `headroom-predictor`: listeners, signals, and the follower of bundles."""

import asyncio
import gc
import logging
import sys

from latency_predictor.listening import beat, end_signal, listen, log_addresses, run_command, serve_http
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
    run_command(run(chosen), chosen.log_level)


async def run(chosen: PredictorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    over = end_signal()
    service = PredictionService()
    follower = Follower(chosen.models, service.use)
    if warning := compile_kernel():
        _log.warning("%s", warning)
    # Listen only once the newest bundle is in use, so that a server that is started again answers with it.
    await follower.look()
    gc.collect()
    gc.freeze()
    server, health = Server(), HealthService()
    service.install(server)
    health.install(server)
    await listen(server, chosen.listen)
    runners, api = [], HttpApi(service, follower, chosen.quantile)
    if chosen.http:
        runners.append(await serve_http(api.application(), chosen.http))
    if chosen.status_http:
        runners.append(await serve_http(api.status_application(), chosen.status_http))
    log_addresses(chosen.listen, chosen.http, chosen.status_http)
    beating = asyncio.create_task(beat(), name="beat")
    following = asyncio.create_task(follower.run(), name="follower")
    ended = asyncio.create_task(over.wait(), name="signal")
    try:
        await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
    finally:
        following.cancel()
        ended.cancel()
        beating.cancel()
        health.shut_down()
        await server.drain(timeout=5)
        for runner in runners:
            await runner.cleanup()


if __name__ == "__main__":
    main()
