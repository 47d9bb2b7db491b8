"""The scraper against real servers on loopback: good ones, slow ones, and peers that mean no good."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from endpoint_picker.datalayer.contact import Contact, port_health
from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.datalayer.scraper import Scraper
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Reservation
from pool_space import until

PLAN = ScrapePlan("/metrics", "llm-d.ai/engine-type", "vllm")
PAGE = """# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:num_requests_running{{engine="0"}} 1
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
vllm:cache_config_info{{block_size="16",num_gpu_blocks="4096"}} 1
"""

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def model_server(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(peer: Peer) -> AsyncIterator[int]:
    """Serve each connection with a coroutine that is cancelled at the end."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await peer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scraping_of(
    *ports: int, max_in_flight: int = 64
) -> AsyncIterator[tuple[Scraper, EndpointTable, Ledger]]:
    table = EndpointTable()
    ledger = Ledger(table)
    columns = ScrapeColumns(table, ledger)
    scraper = Scraper(columns, PLAN, clock=time.monotonic, interval=0.02, max_in_flight=max_in_flight)
    table.replace(endpoint(port) for port in ports)
    task = asyncio.create_task(scraper.run())
    try:
        yield scraper, table, ledger
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert scraper.in_flight == 0


def endpoint(port: int) -> Endpoint:
    return Endpoint(f"p{port}", "default", "127.0.0.1", port)


def row_of(table: EndpointTable, port: int) -> int:
    (row,) = table.rows_of([f"127.0.0.1:{port}"]).tolist()
    return int(row)


async def healthy(_request: web.Request) -> web.Response:
    return web.Response(text=PAGE.format(waiting=3))


async def test_a_page_fills_the_row_over_one_connection() -> None:
    connections: set[object] = set()

    async def counting(request: web.Request) -> web.Response:
        connections.add(request.transport)
        return await healthy(request)

    async with model_server(counting) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.scrapes >= 5)
        row = row_of(table, port)
        assert (table.waiting[row], table.running[row], table.kv_usage[row]) == (3, 1, 0.5)
        assert (table.block_size[row], table.num_blocks[row]) == (16, 4096)
        assert len(connections) == 1
        assert scraper.failures == 0


async def test_chunked_pages_are_read() -> None:
    async def chunked(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for line in PAGE.format(waiting=4).splitlines(keepends=True):
            await response.write(line.encode())
        await response.write_eof()
        return response

    async with model_server(chunked) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.scrapes >= 3)
        assert table.waiting[row_of(table, port)] == 4


async def test_a_slow_server_has_one_request_at_a_time_and_holds_nobody_up() -> None:
    release, now, most = asyncio.Event(), 0, 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await release.wait()
        now -= 1
        return await healthy(request)

    async with model_server(slow) as slow_port, model_server(healthy) as port:
        async with scraping_of(slow_port, port) as (scraper, table, _):
            await until(lambda: scraper.scrapes >= 10)
            assert most == 1
            assert np.isnan(table.waiting[row_of(table, slow_port)])
            release.set()
            await until(lambda: table.waiting[row_of(table, slow_port)] == 3)


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()
    await asyncio.Event().wait()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"metric 1\n" * 10_000)
        await writer.drain()


async def garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff garbage \r\n\r\n" * 100)
    await writer.drain()


async def close_at_once(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    return


async def cut_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + PAGE.format(waiting=9).encode()[:100])
    await writer.drain()


async def no_metrics(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


async def other_series(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nup 1\r\n")


@pytest.mark.parametrize(
    "peer", [hang, drip, flood, garbage, close_at_once, cut_short, no_metrics, other_series]
)
async def test_a_bad_peer_stays_unknown_and_costs_the_others_nothing(peer: Peer) -> None:
    async with raw_server(peer) as bad_port, model_server(healthy) as port:
        async with scraping_of(bad_port, port) as (scraper, table, _):
            await until(lambda: scraper.failures >= 2 and scraper.scrapes >= 10)
            bad = row_of(table, bad_port)
            assert np.isnan([table.waiting[bad], table.running[bad], table.kv_usage[bad]]).all()
            assert table.waiting[row_of(table, port)] == 3


async def test_nothing_listening_is_retried_until_something_does() -> None:
    async with model_server(healthy) as port:
        pass
    async with scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.failures >= 2)
        app = web.Application()
        app.router.add_get("/metrics", healthy)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        try:
            await until(lambda: table.waiting[row_of(table, port)] == 3)
        finally:
            await runner.cleanup()


async def test_a_peer_that_closes_after_each_answer_is_still_read() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE.format(waiting=6).encode())
        await writer.drain()

    async with raw_server(once) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.scrapes >= 5)
        assert table.waiting[row_of(table, port)] == 6
        assert scraper.failures == 0


async def test_the_scrape_of_a_removed_endpoint_ends_at_once() -> None:
    ended = asyncio.Event()

    async def watched(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await reader.read()
        finally:
            ended.set()

    async with raw_server(watched) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.in_flight == 1)
        table.replace([])
        assert scraper.in_flight == 0
        async with asyncio.timeout(20):
            await ended.wait()


async def test_metrics_that_stop_coming_become_unknown() -> None:
    answers = True

    async def stopping(request: web.Request) -> web.Response:
        if not answers:
            raise web.HTTPServiceUnavailable
        return await healthy(request)

    async with model_server(stopping) as port, scraping_of(port) as (_, table, _ledger):
        await until(lambda: table.waiting[row_of(table, port)] == 3)
        answers = False
        await until(lambda: np.isnan(table.waiting[row_of(table, port)]))
        answers = True
        await until(lambda: table.waiting[row_of(table, port)] == 3)


async def test_a_good_scrape_takes_over_what_was_reserved_before_it() -> None:
    async with model_server(healthy) as port, scraping_of(port) as (_, table, ledger):
        row = row_of(table, port)
        pick = Reservation(row=row, generation=int(table.generation[row]), tokens=0)
        ledger.reserve(pick)
        assert table.unseen[row] == 1
        await until(lambda: table.unseen[row] == 0)
        assert table.inflight_requests[row] == 1


async def test_another_plan_is_used_from_the_next_tick_on() -> None:
    async with model_server(healthy) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.scrapes >= 1)
        scraper.use(None)
        assert scraper.in_flight == 0
        await until(lambda: np.isnan(table.waiting[row_of(table, port)]))
        scraper.use(PLAN)
        await until(lambda: table.waiting[row_of(table, port)] == 3)


async def test_a_pool_beyond_the_limit_is_asked_in_turn() -> None:
    asked: list[str] = []

    async def counting(request: web.Request) -> web.Response:
        asked.append(request.host)
        return await healthy(request)

    async with model_server(counting) as one, model_server(counting) as two, model_server(counting) as three:
        async with raw_server(hang) as stuck, scraping_of(stuck, one, two, three, max_in_flight=2):
            await until(lambda: min(asked.count(f"127.0.0.1:{port}") for port in (one, two, three)) >= 3)


async def test_a_server_with_a_very_long_page_is_asked_less_often() -> None:
    asked = {"long": 0, "short": 0}

    def serving(kind: str, padding: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(_request: web.Request) -> web.Response:
            asked[kind] += 1
            return web.Response(text=PAGE.format(waiting=3) + "# pad\n" * (padding // 6))

        return answer

    # The short page comes 50 times in a second or more; of the long one a second brings at most two.
    async with model_server(serving("long", 3 << 20)) as long, model_server(serving("short", 0)) as short:
        async with scraping_of(long, short) as (_, table, _ledger):
            async with asyncio.timeout(20):
                while asked["short"] < 30 or not asked["long"]:  # noqa: ASYNC110 (counted by the servers)
                    await asyncio.sleep(0.005)
            assert table.waiting[row_of(table, long)] == 3
    assert asked["long"] * 3 < asked["short"]


def contact(table: EndpointTable, port: int) -> Contact:
    return Contact(table.contact[row_of(table, port)])


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def gone(_request: web.Request) -> web.Response:
    raise web.HTTPNotFound


async def without_series(_request: web.Request) -> web.Response:
    return web.Response(text="process_start_time_seconds 1\n")


async def late(_request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        pytest.param(healthy, Contact.ANSWERS, id="a page"),
        pytest.param(gone, Contact.WITHOUT_METRICS, id="404"),
        pytest.param(without_series, Contact.WITHOUT_METRICS, id="a page without series"),
        pytest.param(late, Contact.SILENT, id="no answer"),
    ],
)
async def test_how_a_server_answers_is_told(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], expected: Contact
) -> None:
    async with model_server(handler) as port, scraping_of(port) as (_, table, _):
        await until(lambda: contact(table, port) is expected)


async def test_a_peer_that_hangs_up_is_silent() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()

    async with raw_server(hang_up) as port, scraping_of(port) as (_, table, _):
        await until(lambda: contact(table, port) is Contact.SILENT)


async def test_a_port_without_listener_is_told_from_one_that_answers_and_found_again() -> None:
    port = unused_port()
    async with model_server(healthy) as other, scraping_of(port, other) as (scraper, table, _):
        await until(lambda: contact(table, port) is Contact.REFUSED and scraper.scrapes > 0)
        health = {each.port: each for each in port_health(table)}
        assert (health[port].total, health[port].refused, health[port].unconnected) == (1, 1, 1)
        assert health[other].unconnected == 0
        app = web.Application()
        app.router.add_get("/metrics", healthy)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await until(lambda: contact(table, port) is Contact.ANSWERS)
        await runner.cleanup()


async def test_one_failure_does_not_change_what_is_said_of_a_server() -> None:
    failing: list[None] = []

    async def now_and_then(request: web.Request) -> web.Response:
        if failing:
            failing.pop()
            raise web.HTTPInternalServerError
        return await healthy(request)

    async with model_server(now_and_then) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: contact(table, port) is Contact.ANSWERS)
        for _ in range(2):
            failing.append(None)
            seen = scraper.failures
            await until(lambda seen=seen: scraper.failures > seen)  # type: ignore[misc]
            assert contact(table, port) is Contact.ANSWERS
            scrapes = scraper.scrapes
            await until(lambda scrapes=scrapes: scraper.scrapes > scrapes)  # type: ignore[misc]
