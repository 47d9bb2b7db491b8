"""The headroom-operator command: settings, wiring, signals."""

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence

from inference_api.release import release_version
from inference_operator.core.kinds import Kind
from inference_operator.core.settings import Settings
from inference_operator.shell.api import Api
from inference_operator.shell.connection import Connection, ConnectionProblem
from inference_operator.shell.controller import Controller
from inference_operator.shell.flags import parse_settings
from inference_operator.shell.health import HealthServer
from inference_operator.shell.kopf_watch import Watch
from inference_operator.shell.logs import configure_logs
from inference_operator.shell.operator_lease import OperatorLease, Process

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the operator until SIGTERM or SIGINT; exits with 1 when it cannot start."""
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
    configure_logs(settings.log_level)
    raise_file_limit()
    sys.exit(asyncio.run(run(settings)))


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit.

    The watch of pods holds one connection open for each namespace with a managed pool. The usual soft limit
    of 1,024 protects programs that call `select`; asyncio uses epoll.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a kernel may refuse "unlimited"
        log.warning("the limit of open files stays at %d: %s", soft, error)


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    try:
        connection = await Connection.open(settings.kubeconfig)
    except ConnectionProblem as problem:
        log.error("%s", problem)
        return 1

    def start_watch(kinds: frozenset[Kind], controller: Controller) -> Watch:
        return Watch(connection, kinds, settings.namespaces, controller)

    api = Api(connection)
    process = Process(host=socket.gethostname(), version=release_version())
    lease = OperatorLease(api, settings, process)
    controller = Controller(api, settings, start_watch, lease=lease)
    health = HealthServer(controller, settings.bind_addresses, settings.health_port)
    try:
        port = await health.start()
    except OSError as error:
        addresses = ", ".join(settings.bind_addresses)
        log.error("cannot listen on %s:%d: %s", addresses, settings.health_port, error.strerror)
        await connection.close()
        return 1
    log.info("operator started", extra={"health": f"http://{settings.bind_addresses[0]}:{port}/healthz"})
    work = asyncio.create_task(controller.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("operator stopped")
    finally:
        await health.stop()
        await connection.close()
    return 0
