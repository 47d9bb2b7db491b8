"""The watch of a pool against a scripted API server: in which order a change of the pool is handed on."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from cluster_client.access import ApiAccess
from cluster_client.api import KubernetesApi
from endpoint_picker.datalayer.kubernetes_watch import PoolWatch
from endpoint_picker.datalayer.table import Endpoint
from pool_space import until

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
PODS = "/api/v1/namespaces/ns/pods"


def pool(app: str, version: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": "pool", "resourceVersion": version},
        "spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": [{"number": 8000}]},
    }


def pod(app: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": app, "labels": {"app": app}, "resourceVersion": "1"},
        "status": {"podIP": f"10.0.0.{len(app)}", "conditions": [{"type": "Ready", "status": "True"}]},
    }


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serving(pools: Handler, pods: Handler) -> tuple[web.AppRunner, KubernetesApi]:
    """Serve both collections; return the server and its client, which the caller closes."""
    application = web.Application()
    application.router.add_get(POOLS, pools)
    application.router.add_get(PODS, pods)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, KubernetesApi(ApiAccess(f"http://127.0.0.1:{runner.addresses[0][1]}"))


async def test_another_selector_takes_over_once_its_pods_are_known() -> None:
    change, listing = asyncio.Event(), asyncio.Event()

    async def pools(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pool("a", "1")]})
        response = web.StreamResponse()
        await response.prepare(request)
        await change.wait()
        await response.write(json.dumps({"type": "MODIFIED", "object": pool("bb", "2")}).encode() + b"\n")
        await asyncio.Event().wait()
        return response

    async def pods(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
            return response
        app = request.query["labelSelector"].removeprefix("app=")
        if app == "bb":
            await listing.wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pod(app)]})

    runner, api = await serving(pools, pods)
    told: list[tuple[bool, list[str]]] = []

    def endpoints(found: list[Endpoint]) -> None:
        told.append((watch.synced, [each.name for each in found]))

    watch = PoolWatch(api, namespace="ns", pool="pool", on_endpoints=endpoints, rng=random.Random(1))
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: told[-1:] == [(True, ["a-rank-0"])])
        told.clear()
        change.set()
        await until(lambda: told)
        listing.set()
        await until(lambda: told[-1:] == [(True, ["bb-rank-0"])])
        # What is not yet known of the new pods must not pass for "there are none".
        assert [names for synced, names in told if synced] == [["bb-rank-0"]]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        await runner.cleanup()


async def silence(request: web.Request) -> web.StreamResponse:
    """Answer a watch in which nothing happens."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


def named(name: str) -> dict[str, Any]:
    """Return a pod of that name that the pool of `a` selects."""
    body = pod(name)
    body["metadata"]["labels"] = {"app": "a"}
    return body


async def test_a_watch_of_pods_that_dies_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else would notice: the pool's watch goes on, and the pods known so far stay in use."""
    pods_now = ["a"]

    async def pools(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await silence(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pool("a", "1")]})

    async def pods(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await silence(request)
        return web.json_response(
            {"metadata": {"resourceVersion": "1"}, "items": [named(each) for each in pods_now]}
        )

    runner, api = await serving(pools, pods)
    told: list[list[str]] = []
    watch = PoolWatch(
        api,
        namespace="ns",
        pool="pool",
        on_endpoints=lambda found: told.append(sorted(each.name for each in found)),
        rng=random.Random(1),
    )
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: told[-1:] == [["a-rank-0"]])
        told.clear()
        pods_now.append("bb")
        next(each for each in asyncio.all_tasks() if each.get_name() == "watch of pods").cancel()
        await until(lambda: told[-1:] == [["a-rank-0", "bb-rank-0"]])
        assert [] not in told, "the pods known so far stay in use meanwhile"
        assert "the watch of pods ended and begins anew" in caplog.text
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        await runner.cleanup()
