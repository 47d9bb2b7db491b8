"""Nothing but what the pool holds now is reached through the proxy, whichever path a request takes.

In each test one endpoint leaves the pool and stays alive and healthy, as it does when a pod's label or the
pool's selector changes.
"""

import signal
from collections.abc import Awaitable, Callable

import pytest

from inference_operator.core.desired.proxy_bootstrap import WORKERS
from pool_proxy import Proxy, eventually

Start = Callable[[bool], Awaitable[Proxy]]
#: Enough requests for each worker to take several turns of its round robin.
MANY = 8 * WORKERS


@pytest.mark.parametrize("fail_open", [True, False], ids=["FailOpen", "FailClose"])
async def test_a_request_without_a_pick_stays_in_the_pool(start_proxy: Start, fail_open: bool) -> None:
    proxy = await start_proxy(fail_open)
    _, stays = proxy.servers
    await proxy.set_pool(stays)

    assert {await proxy.ask() for _ in range(MANY)} == {(200, stays.endpoint, stays.endpoint)}


async def test_a_pick_that_has_left_is_passed_over(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    left, stays = proxy.servers
    await proxy.set_pool(stays)

    for picks in ([left.endpoint], [left.endpoint, stays.endpoint], [stays.endpoint, left.endpoint]):
        answers = {await proxy.ask(*picks) for _ in range(MANY)}
        assert answers == {(200, stays.endpoint, stays.endpoint)}


@pytest.mark.parametrize("picked", ["nothing", "the dead one", "the dead one, then the one that left"])
async def test_a_retry_does_not_reach_what_has_left(start_proxy: Start, picked: str) -> None:
    proxy = await start_proxy(True)
    left, dead = proxy.servers
    await proxy.set_pool(dead)
    await dead.stop()
    picks = {"nothing": [], "the dead one": [dead.endpoint]}.get(picked, [dead.endpoint, left.endpoint])

    # At once, when only the connection tells, and later, when the health check knows.
    at_once = {(await proxy.ask(*picks))[0] for _ in range(MANY)}
    await proxy.until_healthy_servers_are(0, limit_s=10)
    later = {(await proxy.ask(*picks))[0] for _ in range(MANY)}

    assert at_once == later == {503}


async def test_without_a_picker_requests_stay_in_the_pool(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    _, stays = proxy.servers
    await proxy.set_pool(stays)
    proxy.signal_picker(signal.SIGKILL)
    await proxy.until_the_picker_is_away()
    answers = {await proxy.ask() for _ in range(MANY)}

    assert answers == {(200, stays.endpoint, "")}


async def test_without_a_picker_a_retry_stays_in_the_pool(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    _, dead = proxy.servers
    await proxy.set_pool(dead)
    await dead.stop()
    proxy.signal_picker(signal.SIGKILL)

    assert {(await proxy.ask())[0] for _ in range(MANY)} == {503}


async def test_an_empty_pool_serves_nobody(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    left = proxy.servers[0]
    await proxy.set_pool()

    assert {(await proxy.ask(*picks))[0] for picks in ([], [left.endpoint]) for _ in range(MANY)} == {503}


async def test_a_response_that_streams_from_what_has_left_ends_whole(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    left, stays = proxy.servers
    headers = {"x-test-pick": left.endpoint}

    async with proxy.client.get(f"{proxy.url}/held/whole", headers=headers) as response:
        await left.held.wait()
        await proxy.set_pool(stays)
        assert {(await proxy.ask())[1] for _ in range(MANY)} == {stays.endpoint}
        left.release.set()
        assert await response.text() == f"{left.endpoint} whole"


async def test_what_comes_back_is_served_again(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    left, stays = proxy.servers
    await proxy.set_pool(stays)
    await proxy.set_pool(left, stays)

    async def served() -> bool:
        return await proxy.ask(left.endpoint) == (200, left.endpoint, left.endpoint)

    await eventually(served)
