"""The scraper against real servers on loopback: good ones, slow ones, and peers that mean no good."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from certificates import mount, new_pair
from endpoint_picker.datalayer.contact import FAILURES_TO_TELL, Contact, port_health
from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.metrics_page import Series
from endpoint_picker.datalayer.scrape_columns import ExporterColumns, ScrapeColumns
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
async def model_server(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
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
    *ports: int, max_in_flight: int = 64, plan: ScrapePlan = PLAN
) -> AsyncIterator[tuple[Scraper, EndpointTable, Ledger]]:
    table = EndpointTable()
    ledger = Ledger(table)
    columns = ScrapeColumns(table, ledger)
    scraper = Scraper(columns, plan, clock=time.monotonic, interval=0.02, max_in_flight=max_in_flight)
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


async def test_metrics_on_another_port_are_read_and_say_nothing_of_the_endpoints_own() -> None:
    async with raw_server(hang) as model, model_server(healthy) as metrics:
        async with scraping_of(model, plan=replace(PLAN, port=metrics)) as (_, table, _ledger):
            await until(lambda: table.waiting[row_of(table, model)] == 3)
        async with scraping_of(model, plan=replace(PLAN, port=unused_port())) as (_, table, _ledger):
            await until(lambda: contact(table, model) is Contact.WITHOUT_METRICS)


async def test_a_redirect_is_followed_once_and_remembered() -> None:
    asked: list[str] = []

    async def moved(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/metrics":
            raise web.HTTPTemporaryRedirect(f"http://{request.host}/metrics/")
        return await healthy(request)

    async with model_server(moved) as port, scraping_of(port) as (scraper, table, _):
        await until(lambda: scraper.scrapes >= 5)
        assert table.waiting[row_of(table, port)] == 3
        assert asked.count("/metrics") == 1
        assert scraper.failures == 0


async def test_a_redirect_that_leads_nowhere_is_forgotten() -> None:
    lost = False

    async def moved(request: web.Request) -> web.Response:
        if request.path == "/metrics" and not lost:
            raise web.HTTPFound("/elsewhere")
        if request.path == "/elsewhere" and lost:
            raise web.HTTPNotFound
        return await healthy(request)

    async with model_server(moved) as port, scraping_of(port) as (scraper, _table, _):
        await until(lambda: scraper.scrapes >= 2)
        lost, seen = True, scraper.scrapes
        await until(lambda: scraper.failures >= 1 and scraper.scrapes >= seen + 3)


async def test_no_redirect_leads_to_another_host_or_around_in_a_circle() -> None:
    visited: list[str] = []

    async def counting(request: web.Request) -> web.Response:
        visited.append(request.host)
        return await healthy(request)

    circles = 0

    async def circle(_request: web.Request) -> web.Response:
        nonlocal circles
        circles += 1
        raise web.HTTPFound("/metrics")

    async with model_server(counting) as other:

        async def away(_request: web.Request) -> web.Response:
            raise web.HTTPFound(f"http://localhost:{other}/metrics")

        async with model_server(away) as first, model_server(circle) as second:
            async with scraping_of(first, second) as (scraper, table, _):
                await until(
                    lambda: contact(table, first) is contact(table, second) is Contact.WITHOUT_METRICS
                )
                assert not visited
                assert circles <= 4 * scraper.failures


def tls_server(folder: Path, name: str) -> ssl.SSLContext:
    folder.mkdir()
    mount(folder, new_pair(name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


async def test_tls_is_verified_or_explicitly_not(tmp_path: Path) -> None:
    served, stranger = tls_server(tmp_path / "served", "model.test"), tmp_path / "stranger"
    tls_server(stranger, "model.test")
    trusting = replace(
        PLAN, uses_tls=True, ca_cert_path=str(tmp_path / "served/tls.crt"), server_name="model.test"
    )
    async with model_server(healthy, tls=served) as port:
        for plan in (trusting, replace(PLAN, uses_tls=True, insecure_skip_verify=True)):
            async with scraping_of(port, plan=plan) as (scraper, table, _):
                await until(lambda table=table: table.waiting[row_of(table, port)] == 3)  # type: ignore[misc]
                assert scraper.failures == 0
        for plan in (
            replace(trusting, server_name="other.test"),
            replace(trusting, ca_cert_path=str(stranger / "tls.crt")),
            replace(trusting, ca_cert_path=str(tmp_path / "absent")),
        ):
            async with scraping_of(port, plan=plan) as (scraper, table, _):
                await until(
                    lambda table=table: contact(table, port) is Contact.WITHOUT_METRICS  # type: ignore[misc]
                )
                assert scraper.scrapes == 0


async def test_the_bearer_token_goes_along_and_is_replaced_with_its_file(tmp_path: Path) -> None:
    tokens: list[str | None] = []

    async def guarded(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization"))
        return await healthy(request)

    context, file = tls_server(tmp_path / "served", "model.test"), tmp_path / "token"
    file.write_text("first\n")
    plan = replace(
        PLAN,
        uses_tls=True,
        ca_cert_path=str(tmp_path / "served/tls.crt"),
        server_name="model.test",
        bearer_token_file=str(file),
    )
    async with model_server(guarded, tls=context) as port, scraping_of(port, plan=plan) as (scraper, _t, _l):
        await until(lambda: "Bearer first" in tokens)
        assert scraper.access is not None
        fresh = tmp_path / "fresh"
        fresh.write_text("second")
        fresh.rename(file)
        scraper.access.look(time.monotonic() + 60)
        await until(lambda: "Bearer second" in tokens)
        fresh.write_text("two\nlines")
        fresh.rename(file)
        scraper.access.look(time.monotonic() + 120)
        seen = len(tokens)
        await until(lambda: len(tokens) > seen + 2)
        assert set(tokens) == {"Bearer first", "Bearer second"}


async def test_an_idle_server_is_asked_less_often_than_one_that_is_chosen() -> None:
    asked = {"idle": 0, "chosen": 0}

    def serving(kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(_request: web.Request) -> web.Response:
            asked[kind] += 1
            return web.Response(text="vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n")

        return answer

    async with model_server(serving("idle")) as idle, model_server(serving("chosen")) as chosen:
        async with scraping_of(idle, chosen) as (_, table, ledger):
            row = row_of(table, chosen)
            reservation = Reservation(row=row, generation=int(table.generation[row]), tokens=0)
            ledger.reserve(reservation)
            await until(lambda: asked["chosen"] >= 40)
            assert 1.5 * asked["idle"] < asked["chosen"]
            ledger.release(reservation)
            before = dict(asked)
            await until(lambda: asked["idle"] >= before["idle"] + 20)
            # Idle after load is idle as before: the two are asked alike.
            assert asked["chosen"] - before["chosen"] <= 1.5 * (asked["idle"] - before["idle"])


async def test_many_hung_servers_leave_room_for_the_others() -> None:
    with socket.socket() as stuck:
        # Connections are made by the kernel and never accepted.
        stuck.bind(("0.0.0.0", 0))
        stuck.listen(64)
        hung = [Endpoint(f"h{n}", "default", f"127.0.0.{n}", stuck.getsockname()[1]) for n in range(2, 8)]
        async with model_server(healthy) as port, scraping_of(port, max_in_flight=4) as (scraper, table, _):
            table.replace([*hung, endpoint(port)])
            await until(lambda: all(table.contact[table.rows_of([each.address])] for each in hung))
            seen, failures = scraper.scrapes, scraper.failures
            await until(lambda: scraper.failures >= failures + 4)
            assert scraper.scrapes > seen + 10


GPU = ScrapePlan(
    "/metrics",
    largest=("GPUUtilization", Series("DCGM_FI_DEV_GPU_UTIL"), 0.01),
    extractor="dcgm",
    interval=0.05,
)
GPU_PAGE = 'DCGM_FI_DEV_GPU_UTIL{{gpu="0"}} 12\nDCGM_FI_DEV_GPU_UTIL{{gpu="1"}} {busiest}\n'


@asynccontextmanager
async def asking_exporters(
    plan: ScrapePlan, *endpoints: Endpoint
) -> AsyncIterator[tuple[Scraper, EndpointTable]]:
    table = EndpointTable()
    scraper = Scraper(ExporterColumns(table), plan, clock=time.monotonic)
    table.replace(endpoints)
    task = asyncio.create_task(scraper.run())
    try:
        yield scraper, table
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_exporters_page_fills_an_attribute_and_no_load() -> None:
    busiest = 87

    async def exporter(_request: web.Request) -> web.Response:
        return web.Response(text=GPU_PAGE.format(busiest=busiest))

    async with model_server(exporter) as port:
        plan = replace(GPU, port=port)
        async with asking_exporters(plan, endpoint(1)) as (_, table):
            row = row_of(table, 1)

            def used() -> float:
                return float(table.attributes.column(("dcgm", "GPUUtilization"))[row])

            await until(lambda: used() == pytest.approx(0.87))
            busiest = 35
            await until(lambda: used() == pytest.approx(0.35))
            assert np.isnan(table.waiting[row])
            assert table.contact[row] == Contact.UNKNOWN


async def test_an_exporter_of_the_node_is_asked_at_its_address() -> None:
    async def exporter(_request: web.Request) -> web.Response:
        return web.Response(text=GPU_PAGE.format(busiest=50))

    async with model_server(exporter) as port:
        # 127.0.0.2 has no exporter; the node does.
        pod = Endpoint("p", "default", "127.0.0.2", 1, node_address="127.0.0.1")
        async with asking_exporters(replace(GPU, port=port, at_node=True), pod) as (scraper, _):
            await until(lambda: scraper.scrapes >= 2)
            scraper.use(replace(GPU, port=port))
            failures = scraper.failures
            await until(lambda: scraper.failures > failures)


async def test_an_exporter_without_the_gauge_fails_and_leaves_the_server_alone() -> None:
    async with model_server(healthy) as port, asking_exporters(replace(GPU, port=port), endpoint(1)) as found:
        scraper, table = found
        await until(lambda: scraper.failures >= FAILURES_TO_TELL)
        assert scraper.scrapes == 0
        assert table.contact[row_of(table, 1)] == Contact.UNKNOWN


async def test_the_interval_of_a_plan_replaces_the_scrapers_own() -> None:
    now = 0.0
    table = EndpointTable()
    plan = replace(PLAN, interval=1.0)
    scraper = Scraper(ScrapeColumns(table, Ledger(table)), plan, clock=lambda: now, interval=0.02)
    async with model_server(healthy) as port:
        table.replace([endpoint(port)])
        scraper.tick()
        await until(lambda: scraper.scrapes == 1)
        # The first busy page is followed by a random part of the interval, at least half.
        now = 0.4
        scraper.tick()
        assert scraper.in_flight == 0
        now = 1.1
        scraper.tick()
        await until(lambda: scraper.scrapes == 2)
        scraper.use(PLAN)
        scraper.tick()
        await until(lambda: scraper.scrapes == 3)
        now = 1.13
        scraper.tick()
        await until(lambda: scraper.scrapes == 4)
        scraper.close()
