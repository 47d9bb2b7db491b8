"""Command `headroom-trainer`: listeners, signals, and the service between them."""

import asyncio
import sys

from latency_predictor.listening import end_signal, listen, log_addresses, run_command, serve_http
from latency_predictor.training import settings as command_line
from latency_predictor.training.http_api import HttpApi
from latency_predictor.training.service import TrainingService
from latency_predictor.training.settings import TrainerSettings
from lean_grpc import HealthService, Server


def main() -> None:
    """Run until SIGTERM. Exit status: 0 after it, 1 when the trainer cannot run, 2 for a bad command line."""
    chosen = command_line.parse(sys.argv[1:])
    run_command(run(chosen), chosen.log_level)


async def run(chosen: TrainerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    over = end_signal()
    service = TrainingService(chosen)
    server, health = Server(), HealthService()
    service.install(server)
    health.install(server)
    await listen(server, chosen.listen)
    runner = None
    if chosen.http:
        runner = await serve_http(HttpApi(service, chosen).application(), chosen.http)
    starting = asyncio.ensure_future(service.start())
    log_addresses(chosen.listen, chosen.http)
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


if __name__ == "__main__":
    main()
