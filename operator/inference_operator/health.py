"""The operator's health port: /healthz for the kubelet and people, /metrics for Prometheus."""

import time
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inference_operator.controller import Controller
from inference_operator.metrics import REGISTRY

#: Seconds without an answer of the API server after which /healthz says so; it stays 200, for a restart of
#: the operator would not help.
_STALE: Final = 180.0


class HealthServer:
    """Serves while the event loop turns: a loop that hangs answers nothing, and the kubelet restarts it."""

    __slots__ = ("_address", "_controller", "_port", "_runner")

    def __init__(self, controller: Controller, address: str, port: int) -> None:
        self._controller = controller
        self._address = address
        self._port = port
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> int:
        """Listen; return the port. Raises OSError when the address cannot be bound."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, self._port)
        await site.start()
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses else self._port

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        reach = self._controller.reach
        last = self._controller.last_resync
        age = None if last is None else time.monotonic() - last
        return web.json_response(
            {
                "status": "starting" if age is None else "ok" if age < _STALE else "stale",
                "secondsSinceResync": None if age is None else round(age, 1),
                "watching": sorted(kind.resource for kind in reach.watchable) if reach else [],
                "rightsMissing": list(reach.access.denied) if reach else [],
            }
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})
