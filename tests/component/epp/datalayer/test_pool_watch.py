"""The watch of a pool against a scripted API server: in which order a change of the pool is handed on."""

import asyncio
import json
import random
from typing import Any

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

    application = web.Application()
    application.router.add_get(POOLS, pools)
    application.router.add_get(PODS, pods)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubernetesApi(ApiAccess(f"http://127.0.0.1:{runner.addresses[0][1]}"))
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
