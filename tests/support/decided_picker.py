"""A picker that has decided on two requests, and its metrics port served from a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.health import Health
from endpoint_picker.observability.http import HttpServer
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from inference_api.offered import Offered


def decided(config: str = "") -> PoolRouter:
    """Return a router that picked for the request "good" and refused the request "bad"."""
    router = build_router(config_text=config, clock=lambda: 100.0, rng=np.random.default_rng(1))
    router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(2))
    columns = ScrapeColumns(router.table, router.ledger)
    for row in range(2):
        columns.write(row, Reading(2.0 * row, 1.0, 0.25, 16, 1000), 99.5)
    router.decide(InferenceRequest(request_id="good", model="qwen"), None, lambda _answer: None)
    router.decide(InferenceRequest(request_id="bad", model="qwen"), [], lambda _answer: None)
    return router


@contextmanager
def serving(router: PoolRouter, host: str, state: Callable[[], dict[str, Any]] = dict) -> Iterator[int]:
    """Serve the metrics port of a picker; yield the port."""
    loop = asyncio.new_event_loop()
    server = HttpServer(Health(), CollectorRegistry(), state, Offered, router.decisions, router.queue_page)
    port = loop.run_until_complete(server.start(host, 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
