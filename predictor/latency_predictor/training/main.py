"""Command `headroom-trainer`: listeners, signals, and the service between them."""

import asyncio
import sys

from latency_predictor.listening import beat, end_signal, listen, log_addresses, run_command, serve_http
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
    servers = [server]
    if chosen.serve_peers:
        servers.append(Server())
        service.install_for_peers(servers[-1])
        await listen(servers[-1], [chosen.serve_peers])
    runners, api = [], HttpApi(service, chosen)
    if chosen.http:
        runners.append(await serve_http(api.application(), chosen.http))
    if chosen.status_http:
        runners.append(await serve_http(api.status_application(), chosen.status_http))
    log_addresses([*chosen.listen, *filter(None, [chosen.serve_peers])], chosen.http, chosen.status_http)
    starting = asyncio.ensure_future(service.start())
    ended = asyncio.ensure_future(over.wait())
    beside = [asyncio.ensure_future(each) for each in (beat(), service.keep_archive())]
    try:
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        await ended
    finally:
        for task in (starting, *beside):
            task.cancel()
        health.shut_down()
        await asyncio.gather(*(each.drain(timeout=5) for each in servers))
        for runner in runners:
            await runner.cleanup()
        await service.stop()


if __name__ == "__main__":
    main()
