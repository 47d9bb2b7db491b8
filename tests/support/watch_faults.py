"""A proxy in front of a test's API server that answers watch requests with faults, for tests of watchers.

It serves plain HTTP, under a path as some providers' API servers have, and forwards its clients' tokens. All
requests except watches are forwarded unchanged.
"""

import asyncio
import gc
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from local_cluster.control_plane import ControlPlane

ANSWERS = ("404", "410", "500", "503", "hung", "cut")
PREFIX = "/clusters/one"
_DROPPED = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding", "keep-alive"}


class WatchFaults:
    """The proxy, in a thread of its own. Methods may be called from any thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self._upstream = plane.url
        self._tls = ssl.create_default_context(cafile=str(plane.certificate_authority))
        self._loop = asyncio.new_event_loop()
        self._answer = ""
        self._resource: str | None = None
        self._over = asyncio.Event()
        self._streams: dict[asyncio.Task[Any], str] = {}
        self.refused = 0
        """Watch requests that met a fault."""
        started: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        self.url = started.result(30)

    def kubeconfig(self, original: Path, target: Path) -> Path:
        """Write a kubeconfig that goes through the proxy."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        target.write_text(json.dumps(config))
        return target

    @contextmanager
    def fault(self, answer: str, resource: str | None = None) -> Iterator[None]:
        """Cut the open watches of a resource, or of all; answer new ones with `answer` while the block runs.

        A request that hangs is forwarded at the end of the block, as by a server that was only slow.
        """
        self._call(self._begin, answer, resource)
        try:
            yield
        finally:
            self._call(self._end)

    def open_watches(self) -> list[str]:
        """Return the resources of the watches that are open now."""
        return sorted(self._streams.values())

    def close(self) -> None:
        """End the proxy and all requests through it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        gc.collect()  # a socket left open fails the test that left it, not a later one

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        done: Future[None] = Future()

        def call() -> None:
            function(*arguments)
            done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result(30)

    def _begin(self, answer: str, resource: str | None) -> None:
        self._answer, self._resource = answer, resource
        self._over = asyncio.Event()
        for task, watched in list(self._streams.items()):
            if resource in {None, watched}:
                task.cancel()

    def _end(self) -> None:
        self._answer = ""
        self._over.set()

    def _run(self, started: "Future[str]") -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start(started))
        self._loop.run_forever()
        self._loop.run_until_complete(self._end_all())
        self._loop.run_until_complete(runner.cleanup())
        self._loop.run_until_complete(self._disconnect())
        self._loop.close()

    async def _disconnect(self) -> None:
        """Abort the connections to the API server and let their transports run the last callbacks."""
        connector = self._session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        await connector.close(abort_ssl=True)
        await self._session.close()
        for _ in range(3):
            await asyncio.sleep(0)

    async def _end_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self, started: "Future[str]") -> web.AppRunner:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        application = web.Application(client_max_size=16 * 1024 * 1024)
        application.router.add_route("*", PREFIX + "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        started.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}{PREFIX}")
        return runner

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return await self._forward(request)
        resource = request.path.rsplit("/", 1)[-1]
        if self._answer and self._resource in {None, resource}:
            self.refused += 1
            if self._answer == "cut":
                assert request.transport is not None
                request.transport.abort()
                return web.Response(status=500)
            if self._answer != "hung":
                code = int(self._answer)
                status = {"kind": "Status", "apiVersion": "v1", "code": code, "message": "a fault"}
                return web.json_response(status, status=code)
            await self._over.wait()
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = resource
        try:
            return await self._forward(request)
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            del self._streams[task]

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        kept = [(name, value) for name, value in request.headers.items() if name.lower() not in _DROPPED]
        async with self._session.request(
            request.method,
            self._upstream + request.raw_path.removeprefix(PREFIX),
            headers=[*kept, ("Accept-Encoding", "identity")],
            data=await request.read() or None,
        ) as answer:
            headers = {n: v for n, v in answer.headers.items() if n.lower() not in _DROPPED}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            try:
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            finally:
                # A clean TLS close would outlive the session, and with it the event loop.
                if (connection := answer.connection) is not None and connection.transport is not None:
                    connection.transport.abort()
            await response.write_eof()
            return response
