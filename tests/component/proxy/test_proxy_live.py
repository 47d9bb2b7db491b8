"""The standalone proxy on the real Envoy: it follows the picker, and lives without it."""

import asyncio
import hashlib
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from io import BytesIO

import aiohttp
import pytest

from inference_operator.core.desired.proxy_bootstrap import WORKERS
from pool_proxy import Proxy

Start = Callable[[bool], Awaitable[Proxy]]
CLIENTS = 4
SETTLED = 60


async def test_a_request_goes_where_the_picker_says_and_the_picker_is_told(start_proxy: Start) -> None:
    proxy = await start_proxy(True)

    for server in proxy.servers * 3:
        assert await proxy.ask(server.endpoint) == (200, server.endpoint, server.endpoint)


async def test_a_client_cannot_choose_its_endpoint(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    wanted = proxy.servers[0].endpoint

    answered = {(await proxy.ask(x_gateway_destination_endpoint=wanted))[1] for _ in range(8 * WORKERS)}

    assert answered == {server.endpoint for server in proxy.servers}


async def test_a_large_body_arrives_whole(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    body = bytes(range(256)) * 80_000  # 20 MB
    headers = {"x-test-pick": proxy.servers[1].endpoint}

    async with proxy.client.post(
        f"{proxy.url}/v1/completions", data=BytesIO(body), headers=headers
    ) as response:
        answer = await response.json()

    assert answer["sha256"] == hashlib.sha256(body).hexdigest()


async def test_what_the_pool_does_not_have_is_passed_over_for_the_next(
    start_proxy: Start,
) -> None:
    proxy = await start_proxy(True)
    alive = proxy.servers[1].endpoint

    assert await proxy.ask("127.77.1.3:9", alive) == (200, alive, alive)


async def test_a_server_that_died_costs_no_request(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    dead, alive = proxy.servers
    await dead.stop()

    # At once, when only the connection tells, and later, when the health check knows.
    assert await proxy.ask(dead.endpoint, alive.endpoint) == (200, alive.endpoint, alive.endpoint)
    assert await proxy.ask(dead.endpoint) == (200, alive.endpoint, alive.endpoint)
    await proxy.until_healthy_servers_are(1)
    for _ in range(4 * WORKERS):
        assert await proxy.ask(dead.endpoint, alive.endpoint) == (200, alive.endpoint, alive.endpoint)
        assert await proxy.ask(dead.endpoint) == (200, alive.endpoint, alive.endpoint)


async def test_the_status_port_shows_metrics_and_not_the_admin_interface(
    start_proxy: Start,
) -> None:
    proxy = await start_proxy(True)

    async with proxy.client.get(f"{proxy.status_url}/stats/prometheus") as response:
        assert "envoy_cluster_membership_healthy" in await response.text()
    for path in ("/quitquitquit", "/config_dump", "/stats/prometheus/../../quitquitquit", "/"):
        async with proxy.client.post(f"{proxy.status_url}{path}") as response:
            assert response.status == 404


async def under_load(proxy: Proxy, trouble: Callable[[], None], settled: int) -> list[int]:
    """Keep CLIENTS requests in flight, make trouble, return the statuses until SETTLED are as given.

    The requests have bodies: once the picker has been sent a piece, Envoy cannot go on without it.
    """
    statuses: list[int] = []
    under_way = asyncio.Event()

    def is_settled() -> bool:
        return statuses[-SETTLED:] == [settled] * SETTLED

    async def client(number: int) -> None:
        picked = proxy.servers[number % 2].endpoint
        while not is_settled():
            try:
                statuses.append((await proxy.ask(picked, body=b"{}"))[0])
            except aiohttp.ClientError:
                statuses.append(0)
            if len(statuses) >= CLIENTS:
                under_way.set()
            await asyncio.sleep(0.01)

    async with asyncio.timeout(30), asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(client(number))
        await under_way.wait()
        assert set(statuses) == {200}
        statuses.clear()
        trouble()
    return statuses


async def test_a_killed_picker_costs_what_is_in_flight_and_one_a_worker(start_proxy: Start) -> None:
    proxy = await start_proxy(True)

    statuses = await under_load(proxy, lambda: proxy.signal_picker(signal.SIGKILL), settled=200)

    assert sum(status != 200 for status in statuses) <= CLIENTS + WORKERS
    await proxy.start_picker()
    await proxy.until_it_follows_the_picker()


@pytest.mark.parametrize("since", ["long ago", "a moment ago"])
async def test_a_frozen_picker_costs_what_is_in_flight_and_one_a_worker(
    start_proxy: Start, since: str
) -> None:
    proxy = await start_proxy(True)
    if since == "a moment ago":  # Envoy has just told its workers that the picker is healthy
        proxy.signal_picker(signal.SIGSTOP)
        await proxy.until_the_picker_is_away(failed_checks=4)
        proxy.signal_picker(signal.SIGCONT)
        await proxy.until_it_follows_the_picker()

    statuses = await under_load(proxy, lambda: proxy.signal_picker(signal.SIGSTOP), settled=200)

    assert sum(status != 200 for status in statuses) <= CLIENTS + WORKERS
    proxy.signal_picker(signal.SIGCONT)
    await proxy.until_it_follows_the_picker()


async def test_a_pool_that_fails_closed_waits_for_a_picker_that_is_slow(start_proxy: Start) -> None:
    proxy = await start_proxy(False)

    proxy.signal_picker(signal.SIGSTOP)
    asks = []
    for _ in range(4):
        asks.append(asyncio.create_task(proxy.ask(body=b"{}")))
        await asyncio.sleep(0.4)  # beyond every time-out of a pool that fails open
    proxy.signal_picker(signal.SIGCONT)

    assert [status for status, *_ in await asyncio.gather(*asks)] == [200] * 4


async def test_without_a_picker_a_pool_that_fails_closed_answers_503(start_proxy: Start) -> None:
    proxy = await start_proxy(False)

    statuses = await under_load(proxy, lambda: proxy.signal_picker(signal.SIGKILL), settled=503)

    assert statuses[-1] == 503
    await proxy.start_picker()
    await proxy.until_it_follows_the_picker()


async def test_headers_beyond_the_limits_are_refused_and_the_proxy_goes_on(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    url = f"{proxy.url}/v1/completions"

    for headers in ({"x-large": "x" * (8193 << 10)}, {f"x-{number}": "" for number in range(1025)}):
        # Envoy hangs up with the answer, which may overtake it.
        with suppress(aiohttp.ClientConnectionError):
            async with proxy.client.get(url, headers=headers) as response:
                assert response.status == 431

    assert await proxy.follows_the_picker()


async def test_a_client_of_http_1_0_is_served(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    reader, writer = await asyncio.open_connection(proxy.settings.address, proxy.settings.port)
    try:
        writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(20):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert b"endpoint" in body
