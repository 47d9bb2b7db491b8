"""What scraping costs: CPU of the scraper and scrapes on time, with 100 endpoints of 45 KB pages at 50 ms.

    python bench/scrape.py                    one JSON line a phase: idle, busy, hung, idle again
    python bench/scrape.py --endpoints 400    another number of endpoints

The servers are in a process of their own, whose CPU is not counted. CPU is this process's over wall time.
A scrape is on time when its page is read at most an interval and a half after the one before it; idle servers
have the idle interval and half of the busy one. The goals: at most 0.15 core, and 95 % on time.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final, cast

import uvloop
from typing_extensions import override

from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.scrape_pace import IDLE_INTERVALS
from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.datalayer.scraper import Scraper
from endpoint_picker.datalayer.table import Endpoint, EndpointTable

INTERVAL_S: Final = 0.05
PAGE_BYTES: Final = 45_000
#: Settling time before each phase is measured.
SETTLE_S: Final = 1.0
_SERIES: Final = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {load}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {load}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5
"""
_CACHE: Final = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="27456"} 1.0\n'


def page(load: int) -> bytes:
    """Return a page of the size of vLLM's, the series that matter spread over it, with its HTTP head."""
    pad = b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 12.0\n'
    half = pad * (PAGE_BYTES // 2 // len(pad))
    body = b"# HELP a b\n" + half + _SERIES.format(load=load).encode() + half + _CACHE.encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Serving(asyncio.Protocol):
    """One connection of a model server."""

    pages: Sequence[bytes] = (page(0), page(3))
    busy = 0
    hangs: frozenset[int] = frozenset()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._port = transport.get_extra_info("sockname")[1]

    @override
    def data_received(self, data: bytes) -> None:
        if self._port not in self.hangs:
            self._transport.write(self.pages[self.busy])


def serve(count: int, orders: Connection) -> None:
    """Serve `count` ports; orders are (busy, hung ports), None ends it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sockets = []
        for _ in range(count):
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            sockets.append(listening)
            await loop.create_server(Serving, sock=listening)
        orders.send([each.getsockname()[1] for each in sockets])
        while (order := await loop.run_in_executor(None, orders.recv)) is not None:
            Serving.busy, Serving.hangs = order

    uvloop.run(main())


class Timing(ScrapeColumns):
    """Columns that note when each row was read."""

    def __init__(self, table: EndpointTable, ledger: Ledger) -> None:
        super().__init__(table, ledger)
        self.read_at: dict[int, float] = {}
        self.gaps: list[float] = []

    @override
    def write(self, row: int, reading: Reading, asked_at: float) -> None:
        super().write(row, reading, asked_at)
        now = time.monotonic()
        if row in self.read_at:
            self.gaps.append(now - self.read_at[row])
        self.read_at[row] = now


async def measure(ports: Sequence[int], orders: Connection, seconds: float) -> None:
    table = EndpointTable()
    columns = Timing(table, Ledger(table))
    plan = ScrapePlan("/metrics", "llm-d.ai/engine-type", "vllm")
    scraper = Scraper(columns, plan, clock=time.monotonic, interval=INTERVAL_S)
    table.replace(Endpoint(f"p{port}", "default", "127.0.0.1", port) for port in ports)
    task = asyncio.create_task(scraper.run())
    idle, busy = INTERVAL_S * IDLE_INTERVALS, INTERVAL_S
    for phase, order, interval in (
        ("idle", (0, frozenset()), idle),
        ("busy", (1, frozenset()), busy),
        ("busy, one hung", (1, frozenset(ports[:1])), busy),
        ("idle again", (0, frozenset()), idle),
    ):
        orders.send(order)
        await asyncio.sleep(SETTLE_S if "again" not in phase else 3 * SETTLE_S)
        columns.gaps.clear()
        columns.read_at.clear()
        cpu, wall, scrapes = time.process_time(), time.monotonic(), scraper.scrapes
        await asyncio.sleep(seconds)
        took = time.monotonic() - wall
        gaps = columns.gaps
        late = sum(gap > interval + INTERVAL_S / 2 for gap in gaps)
        figure = {
            "phase": phase,
            "endpoints": len(ports),
            "core": round((time.process_time() - cpu) / took, 3),
            "scrapes_per_s": round((scraper.scrapes - scrapes) / took),
            "on_time": round(1 - late / max(1, len(gaps)), 4),
        }
        print(json.dumps(figure), flush=True)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase (default 5)")
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    servers = multiprocessing.get_context("fork").Process(target=serve, args=(args.endpoints, theirs))
    servers.start()
    try:
        uvloop.run(measure(ours.recv(), ours, args.seconds))
    finally:
        ours.send(None)
        servers.join(5)
        servers.kill()


if __name__ == "__main__":
    main()
