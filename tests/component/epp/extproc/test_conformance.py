"""The picker's side of the conformance cases of the Gateway API inference extension, without metrics.

The gateway is the real Envoy with a bootstrap that does what a gateway's controller would program. The names
are those of the upstream cases. InferencePoolAccepted, InvalidEPPService, MissingEPPRef and
InvalidInferencePoolRef ask nothing of a picker.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from conformance_stage import SERVED, ConformanceStage
from envoy_stage import eventually

PATH = "/primary-gateway-test"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[ConformanceStage]:
    async with AsyncExitStack() as stack:
        yield ConformanceStage(stack, tmp_path)


async def test_plain_requests_reach_the_pool_of_their_route(stage: ConformanceStage) -> None:
    """InferencePoolResolvedRefsCondition, HTTPRouteMultipleGatewaysDifferentPools,
    HTTPRouteMultipleRulesDifferentPools, InferencePoolHTTPRoutePortValidation: a GET, and no metrics.
    """
    primary, secondary = await stage.pool("primary"), await stage.pool("secondary")
    routes = {("*", "/primary"): "primary", ("*", "/secondary"): "secondary"}
    await stage.gateway({("secondary.example.com", "/"): "secondary", **routes})
    assert np.isnan(primary.router.table.waiting).all()
    for path, host, pool in (
        ("/primary", "primary.example.com", primary),
        ("/secondary", "primary.example.com", secondary),
        ("/anything", "secondary.example.com", secondary),
    ):
        answers = [await stage.get(path, host) for _ in range(24)]
        assert {each.status for each in answers} == {200}
        # Without the header the requests go over all pods, as by the suite's own picker.
        assert {each.pod for each in answers} == {pod.name for pod in pool.pods}


async def test_the_header_chooses_the_pod(stage: ConformanceStage) -> None:
    """GatewayFollowingEPPRouting."""
    pool = await stage.pool("primary")
    await stage.gateway({("*", PATH): "primary"})
    for pod in pool.pods:
        answer = await stage.post(PATH, pod.address)
        assert (answer.status, answer.pod) == (200, pod.name)
        assert answer.echo["headers"]["test-epp-endpoint-selection"] == pod.address
    for chosen in (pool.pods[2:], pool.pods[:2], pool.pods):
        answers = await stage.posts(100, 10, PATH, ",".join(pod.address for pod in chosen))
        assert {each.status for each in answers} == {200}
        assert {each.pod for each in answers} == {pod.name for pod in chosen}


async def test_the_header_chooses_the_port_of_a_pod(stage: ConformanceStage) -> None:
    """GatewayFollowingEPPRoutingWithDataParallelism."""
    pool = await stage.pool("dp", ports=3)
    await stage.gateway({("*", PATH): "dp"})
    one, two, three = (pod.address for pod in pool.pods)
    first, second, third = pool.ports
    every = {f"{address}:{port}" for address in (one, two, three) for port in pool.ports}
    cases: list[tuple[str, set[str]]] = [
        (two, {each for each in every if each.startswith(f"{two}:")}),
        (f"{one},{three}:{second}", {f"{one}:{port}" for port in pool.ports} | {f"{three}:{second}"}),
        (
            f"{one},{two}:{first},{two}:{third},{three}",
            every - {f"{two}:{second}"},
        ),
    ]
    for header, expected in cases:
        answers = await stage.posts(100, 10, PATH, header)
        assert {each.status for each in answers} == {200}
        assert {each.hostport for each in answers} == expected


async def test_the_response_names_the_endpoint_that_served(stage: ConformanceStage) -> None:
    """GatewayDestinationEndpointServed."""
    pool = await stage.pool("primary")
    await stage.gateway({("*", "/destination-endpoint-served-test"): "primary"})
    for pod in pool.pods:
        answer = await stage.post("/destination-endpoint-served-test", pod.address)
        assert (answer.status, answer.pod) == (200, pod.name)
        assert answer.served == f"{pod.address}:{pool.ports[0]}"


async def test_each_picker_keeps_to_its_own_pool(stage: ConformanceStage) -> None:
    """GatewayWeightedAcrossTwoInferencePools."""
    primary, secondary = await stage.pool("primary"), await stage.pool("secondary")
    await stage.gateway({("*", PATH): {"primary": 70, "secondary": 30}})
    for pool in (primary, secondary):
        for pod in pool.pods:
            # The route may choose the other pool, which has no such endpoint: any of its pods answers.
            assert (await stage.post(PATH, f"{pod.address}:{pool.ports[0]}")).status == 200
    union = ",".join(pod.address for pod in (*primary.pods, *secondary.pods))
    answers = await stage.posts(200, 5, PATH, union)
    assert {each.status for each in answers} == {200}
    names = [each.pod for each in answers]
    assert set(names) == {pod.name for pod in (*primary.pods, *secondary.pods)}
    share = sum(name.startswith("primary") for name in names) / len(names)
    assert share == pytest.approx(0.7, abs=max(0.1, 4.5 * (0.7 * 0.3 / 200) ** 0.5))


async def test_the_pools_protocol_makes_no_difference_to_the_picker(stage: ConformanceStage) -> None:
    """InferencePoolAppProtocol."""
    plain = await stage.pool("http")
    h2c = await stage.pool("h2c", http2=True, pods=plain.pods)
    default = await stage.pool("default")
    hosts = {"http.example.com": plain, "h2c.example.com": h2c, "default.example.com": default}
    await stage.gateway({(host, "/"): pool.name for host, pool in hosts.items()})
    for host, pool in hosts.items():
        for pod in pool.pods:
            steered = f"{pod.address}:{pool.ports[0]}"
            answer = await stage.post("/app-protocol", steered, host)
            assert (answer.status, answer.pod, answer.hostport) == (200, pod.name, steered)
            assert answer.served == steered
    async with aiohttp.ClientSession() as client:
        async with client.get(f"http://{h2c.pods[0].address}:{h2c.ports[0]}/") as response:
            assert (response.status, await response.text()) == (400, "Expected h2c request")


async def test_a_pool_that_fails_open_is_served_without_its_picker(stage: ConformanceStage) -> None:
    """EppUnAvailableFailOpen, with the picker of the pool that is asked."""
    pool = await stage.pool("secondary", fail_open=True)
    await stage.gateway({("*", "/failopen-test"): "secondary"})
    first = pool.pods[0]
    answer = await stage.post("/failopen-test", first.address)
    assert (answer.status, answer.pod, answer.served) == (200, first.name, f"{first.address}:{pool.ports[0]}")
    await pool.picker.stop()

    async def served_without() -> bool:
        found = await stage.post("/failopen-test", first.address)
        return found.status == 200 and not found.served

    await eventually(served_without)
    answers = await asyncio.gather(*(stage.post("/failopen-test", first.address) for _ in range(30)))
    assert {each.status for each in answers} == {200}
    assert {each.pod for each in answers} <= {pod.name for pod in pool.pods}
    assert {each.served for each in answers} == {""}, f"{SERVED} is the picker's"
