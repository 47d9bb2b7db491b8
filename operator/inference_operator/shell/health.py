"""The operator's health port: /healthz and /readyz for the kubelet and people, /metrics for Prometheus.

/healthz fails when a background part is dead: a restart may help. /readyz fails while the last full list has
failed or a watch is down, and while an older operator works in a namespace of this one: a restart would not
help.
"""

from collections.abc import Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inference_operator.shell import metrics
from inference_operator.shell.controller import Controller, Health


class HealthServer:
    """Serves in the operator's event loop: if the loop hangs, the kubelet's probe times out, too."""

    __slots__ = ("_addresses", "_controller", "_port", "_runner")

    def __init__(self, controller: Controller, addresses: Sequence[str], port: int) -> None:
        self._controller = controller
        self._addresses = addresses
        self._port = port
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> int:
        """Listen; return the port. Raises OSError when an address cannot be bound."""
        await self._runner.setup()
        for address in self._addresses:
            await web.TCPSite(self._runner, address, self._port).start()
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses else self._port

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return self._answer(ok=not self._controller.health().dead)

    async def _readyz(self, _: web.Request) -> web.Response:
        return self._answer(ok=self._controller.health().ready)

    def _answer(self, *, ok: bool) -> web.Response:
        health = self._controller.health()
        age = health.resync_age
        status = _word(health)
        return web.json_response(
            {
                "status": status,
                "dead": list(health.dead),
                "secondsSinceResync": None if age is None else round(age, 1),
                "resyncProblem": health.resync_problem,
                "watching": list(health.watching),
                "notWatching": health.not_watching,
                "rightsMissing": list(health.denied),
                "standsAside": health.aside,
                "youngerOperators": health.younger,
                "leaseProblem": health.lease_problem,
            },
            status=200 if ok else 503,
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        metrics.QUEUE_LENGTH.set(self._controller.backlog())
        return web.Response(
            body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _word(health: Health) -> str:
    if health.dead:
        return "dead"
    if health.ready:
        return "ok"
    if not health.is_listed:
        return "starting"
    return "aside" if health.reachable else "blind"
