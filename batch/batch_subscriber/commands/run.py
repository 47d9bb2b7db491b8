"""`headroom-batch run`: send the jobs of a queue to the gateway until SIGTERM."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import uvloop

from batch_subscriber import http_page
from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import ConfigurationError
from batch_subscriber.flow import Reading
from batch_subscriber.gateway import Gateway, fetch_page
from batch_subscriber.metrics import Metrics
from batch_subscriber.opening import CANCELLATIONS, open_cancellations, open_queue, open_results
from batch_subscriber.picker_page import MAX_PAGE_BYTES, read_page
from batch_subscriber.settings import Settings, add_flags, load
from batch_subscriber.worker import Worker

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Work until SIGTERM or SIGINT. Exit status: 0 after it, 2 for settings that cannot work."""
    settings = load(arguments)
    logging.basicConfig(
        level=settings.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work(settings))


async def work(settings: Settings) -> int:
    """Open the parts, and work. Raises ConfigurationError."""
    metrics = Metrics()
    async with AsyncExitStack() as parts:
        queue = await open_queue(settings.queue)
        parts.push_async_callback(queue.close)
        results = await open_results(settings.results)
        parts.push_async_callback(results.close)
        gateway = Gateway(
            settings.gateway,
            objective=settings.objective,
            max_response_bytes=settings.max_response_bytes,
            api_key_file=settings.api_key_file,
        )
        parts.push_async_callback(gateway.close)
        cancellations = await _cancellations(settings)
        if cancellations is not None:
            parts.push_async_callback(cancellations.close)
        worker = Worker(
            settings,
            queue,
            results,
            gateway,
            metrics,
            cancellations=cancellations,
            read_picker=await _reader(settings, parts),
        )
        if settings.http:
            runner = await http_page.serve(settings.http, metrics, lambda: _not_ready(worker))
            parts.push_async_callback(runner.cleanup)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        _log.info("sending jobs to %s", settings.gateway)
        try:
            await worker.run()
        except ExceptionGroup as faults:
            if (wrong := faults.subgroup(ConfigurationError)) is not None:
                raise wrong.exceptions[0] from faults
            raise
    return 0


async def _cancellations(settings: Settings) -> Cancellations | None:
    url = settings.cancellations
    if not url and settings.queue.partition(":")[0].lower() in CANCELLATIONS:
        url = settings.queue
    return await open_cancellations(url) if url else None


async def _reader(
    settings: Settings, parts: AsyncExitStack
) -> Callable[[], Awaitable[Reading | None]] | None:
    if not settings.picker_metrics:
        return None
    session = await parts.enter_async_context(aiohttp.ClientSession())

    async def read() -> Reading | None:
        page = await fetch_page(session, settings.picker_metrics, MAX_PAGE_BYTES)
        return None if page is None else read_page(page, settings.pool)

    return read


def _not_ready(worker: Worker) -> str:
    if worker.is_draining:
        return "the process ends"
    return "" if worker.is_queue_up else "the queue does not answer"
