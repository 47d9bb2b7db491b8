"""The HTTP port: /metrics, /healthz, /readyz, /debug/config, /debug/state, /debug/explain, /debug/queue."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from endpoint_picker.health import Health
from endpoint_picker.observability.decisions import WATCHED_S, Decisions
from endpoint_picker.observability.explain import BadQueryError, Pausing, explaining
from endpoint_picker.observability.exposition import pieces
from inference_api.offered import OFFERED_PATH, Offered

_STOP_GRACE_S: Final = 1.0
#: Most connections at a time. One more closes the oldest, so that idle connections neither use up the file
#: descriptors nor keep probes out.
MAX_CONNECTIONS: Final = 128


class HttpServer:
    """Serves metrics, probes and the debug state on one address."""

    def __init__(
        self,
        health: Health,
        registry: CollectorRegistry,
        state: Callable[[], dict[str, Any]],
        offered: Callable[[], Offered],
        decisions: Decisions,
        queue: Callable[[], Pausing],
    ) -> None:
        """`queue` begins the page /debug/queue."""
        self._health = health
        self._registry = registry
        self._state = state
        self._offered = offered
        self._decisions = decisions
        self._queue = queue
        self._window: asyncio.TimerHandle | None = None
        self._listener: asyncio.Server | None = None
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get(OFFERED_PATH, self._debug_config)
        app.router.add_get("/debug/state", self._debug_state)
        app.router.add_get("/debug/explain", self._debug_explain)
        app.router.add_get("/debug/queue", self._debug_queue)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_GRACE_S)

    async def start(self, hosts: Sequence[str], port: int) -> int:
        """Listen (port 0: any, of the first host) and return the port. OSError when it cannot be bound."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, hosts, port, backlog=MAX_CONNECTIONS)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the port."""
        self._close_window()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None  # noqa: S101 - `setup` made it
        connections = server.connections
        if len(connections) >= MAX_CONNECTIONS:
            connections[0].force_close()
        return server()

    async def _metrics(self, _request: web.Request) -> web.Response:
        texts = []
        for text in pieces(self._registry):
            texts.append(text)
            await asyncio.sleep(0)
        return web.Response(body=b"".join(texts), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._health.ready:
            return web.Response(text="ok\n")
        reason = "draining" if self._health.draining else "the pool's endpoints are not known yet"
        return web.Response(status=503, text=f"not ready: {reason}\n")

    async def _debug_config(self, _request: web.Request) -> web.Response:
        """Return the verdicts on the offered texts and the health; small, whatever the pool's size."""
        return web.json_response(text=self._offered().model_dump_json())

    async def _debug_state(self, _request: web.Request) -> web.Response:
        return web.json_response(self._state())

    async def _debug_explain(self, request: web.Request) -> web.Response:
        """Return the newest decisions, or those on one request, and keep more of them for WATCHED_S."""
        try:
            text = await _in_turn(explaining(self._decisions, request.query, time.time()), "decisions")
        except BadQueryError as error:
            return web.json_response({"error": str(error)}, status=400)
        self._close_window()
        self._decisions.watch(True)
        self._window = asyncio.get_running_loop().call_later(WATCHED_S, self._decisions.watch, False)
        return web.json_response(text=text)

    async def _debug_queue(self, _request: web.Request) -> web.Response:
        return web.json_response(text=await _in_turn(self._queue(), "bands"))

    def _close_window(self) -> None:
        if self._window is not None:
            self._window.cancel()


async def _in_turn(steps: Pausing, longest: str) -> str:
    """Return the page as JSON. Requests are served between its steps: a large pool's page takes long.

    `longest` is the key of the list that is written item by item.
    """
    while True:
        try:
            next(steps)
        except StopIteration as done:
            page = done.value
            break
        await asyncio.sleep(0)
    texts = []
    for each in page[longest]:
        texts.append(json.dumps(each))
        await asyncio.sleep(0)
    rest = json.dumps({key: value for key, value in page.items() if key != longest})
    return f'{{"{longest}": [{", ".join(texts)}], {rest[1:]}'
