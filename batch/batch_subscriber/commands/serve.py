"""`headroom-batch serve`: the files and batches of OpenAI's API."""

import argparse
import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from aiohttp import web

from batch_subscriber.batches.http_api import MAX_UPLOAD_BYTES, BatchApi
from batch_subscriber.batches.keeper import Keeper, KeeperSettings
from batch_subscriber.batches.lines import MAX_LINES
from batch_subscriber.batches.storage import Storage
from batch_subscriber.errors import ConfigurationError
from batch_subscriber.jobs import MAX_NAME_CHARS
from batch_subscriber.opening import open_cancellations, open_queue, open_results

#: How long a request under way may take after SIGTERM, seconds.
_DRAIN_S: Final = 10.0
_log = logging.getLogger("headroom.batch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "--home", type=Path, required=True, help="folder with the state of the API, on a local disk"
    )
    parser.add_argument("--queue", default="", help="URL of the queue (sqlite:HOME/queue.db)")
    parser.add_argument("--results", default="", help="URL of the result store (file:HOME/results)")
    parser.add_argument(
        "--cancellations", default="", help="URL of the cancelled groups (the queue's, where it keeps them)"
    )
    parser.add_argument("--listen", default="127.0.0.1:8321", help="HOST:PORT (127.0.0.1:8321)")
    parser.add_argument(
        "--token-file", type=Path, help="file with the token of clients; needed unless --listen is loopback"
    )
    parser.add_argument(
        "--objective", default="", help="InferenceObjective of the jobs; '' leaves it to `run`"
    )
    parser.add_argument(
        "--keep-days",
        type=_above_0,
        default=30.0,
        help="days that ended batches and their files are kept (30)",
    )
    parser.add_argument(
        "--cancel-grace-s",
        type=_above_0,
        default=10.0,
        help="seconds that a cancelled batch waits for requests under way (10)",
    )
    parser.add_argument(
        "--max-file-bytes", type=_count, default=MAX_UPLOAD_BYTES, help="largest upload (200 MiB)"
    )
    parser.add_argument(
        "--max-requests", type=_count, default=MAX_LINES, help=f"most requests of a batch ({MAX_LINES})"
    )
    parser.add_argument("--max-files", type=_count, default=10_000, help="most files that are kept (10000)")
    parser.add_argument(
        "--max-bytes", type=_count, default=20 * 2**30, help="most bytes of uploaded files together (20 GiB)"
    )
    parser.add_argument("--max-batches", type=_count, default=200, help="most batches under way (200)")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))


def _count(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _above_0(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def run(given: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status. Raises ConfigurationError."""
    logging.basicConfig(level=given.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    host, _, port = given.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 <= int(port) < 65_536:
        msg = f"--listen must be HOST:PORT, not {given.listen!r}"
        raise ConfigurationError(msg)
    if given.token_file is None and not _is_loopback(host):
        msg = f"--listen {given.listen} is no loopback address: give --token-file, or listen on 127.0.0.1"
        raise ConfigurationError(msg)
    if len(given.objective) > MAX_NAME_CHARS:
        msg = f"--objective has more than {MAX_NAME_CHARS} characters"
        raise ConfigurationError(msg)
    token = _token(given.token_file)
    token()
    with _only_one(given.home):
        asyncio.run(_serve(given, host, int(port), token))
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(path: Path | None) -> Callable[[], str]:
    """Return what gives the token: the file's content, read for each request, since a Secret may change."""
    if path is None:
        return lambda: ""
    last = ""

    def token() -> str:
        nonlocal last
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            if last:
                return last
            msg = f"--token-file {path} cannot be read: {fault}"
            raise ConfigurationError(msg) from fault
        if not text and not last:
            msg = f"--token-file {path} is empty"
            raise ConfigurationError(msg)
        last = text or last
        return last

    return token


@contextlib.contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Hold the folder: two processes would run each batch twice."""
    with contextlib.ExitStack() as held:
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((home / "serve.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = f"another `headroom-batch serve` uses {home}: end it, or give another --home"
            raise ConfigurationError(msg) from None
        except OSError as fault:
            msg = f"--home {home} cannot be a folder to write in: {fault.strerror}"
            raise ConfigurationError(msg) from fault
        yield


async def _serve(given: argparse.Namespace, host: str, port: int, token: Callable[[], str]) -> None:
    home: Path = given.home.absolute()
    queue_url = given.queue or f"sqlite:{home}/queue.db"
    async with contextlib.AsyncExitStack() as opened:
        queue = await open_queue(queue_url)
        opened.push_async_callback(queue.close)
        results = await open_results(given.results or f"file:{home}/results")
        opened.push_async_callback(results.close)
        cancellations = await open_cancellations(given.cancellations or queue_url)
        opened.push_async_callback(cancellations.close)
        storage = Storage(
            home, max_bytes=given.max_bytes, max_files=given.max_files, max_open=given.max_batches
        )
        opened.push_async_callback(storage.close)
        settings = KeeperSettings(
            keep_s=given.keep_days * 86_400,
            cancel_grace_s=given.cancel_grace_s,
            objective=given.objective,
            max_lines=given.max_requests,
        )
        keeper = Keeper(storage, queue, results, cancellations, settings)
        opened.push_async_callback(keeper.close)
        api = BatchApi(storage, keeper, token=token, max_upload_bytes=given.max_file_bytes)
        runner = web.AppRunner(api.app(), access_log=None, shutdown_timeout=_DRAIN_S)
        await runner.setup()
        opened.push_async_callback(runner.cleanup)
        await keeper.start()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as fault:
            msg = f"--listen {given.listen} cannot be bound: {fault.strerror}"
            raise ConfigurationError(msg) from fault
        print(f"Batches are served at http://{host}:{_port(runner)}/v1", flush=True)
        await _until_signal()


def _port(runner: web.AppRunner) -> int:
    address = runner.addresses[0]
    return int(address[1])


async def _until_signal() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
