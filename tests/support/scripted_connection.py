"""An API server's transport for unit tests of the operator: it holds objects, and records requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

from inference_operator.core.kinds import CHILD_KINDS, CRD, EVENT, OBJECTIVES, PICKER, POD, POOL, Kind, Object
from inference_operator.shell.api import Api
from inference_operator.shell.connection import Connection

KINDS = (POOL, PICKER, *OBJECTIVES, *CHILD_KINDS, POD, EVENT, CRD)


class ScriptedConnection:
    """Serves every kind and allows everything. Writes are recorded and answered with their own body."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str, str], Object] = {}
        self.version = 100
        self.calls: list[tuple[float, str]] = []
        """Loop time and "METHOD path" of every request."""
        self.latency = 0.0
        """Duration of each request in seconds of the loop's clock."""
        self.problem = ""
        """Text of the error that every request raises, as when the server is out of reach; "" for none."""
        self._streams: list[tuple[str, asyncio.Queue[bytes]]] = []
        self.swallows = False
        """Whether each request ignores one cancellation, as some libraries do."""

    @property
    def api(self) -> Api:
        """The real client on this transport."""
        return Api(cast("Connection", self))

    def put(self, kind: Kind, body: Object) -> Object:
        """Store an object under a new version; return what is stored."""
        self.version += 1
        metadata = {"namespace": "ns", **body["metadata"], "resourceVersion": str(self.version)}
        stored = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": metadata}
        self.objects[kind, metadata["namespace"], metadata["name"]] = stored
        return stored

    def drop(self, kind: Kind, name: str, namespace: str = "ns") -> Object:
        """Remove an object; return it as a watch would report it."""
        self.version += 1
        gone = self.objects.pop((kind, namespace, name))
        return {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}

    @property
    def open_streams(self) -> int:
        """How many watches are open."""
        return len(self._streams)

    def report(self, kind: Kind, what: str, body: Object) -> None:
        """Send an event to the open watches of a kind."""
        for path, lines in self._streams:
            if path.rsplit("/", 1)[1] == kind.plural:
                lines.put_nowait(json.dumps({"type": what, "object": body}).encode())

    def times(self, call: str) -> list[float]:
        """Return when a request was made."""
        return [at for at, made in self.calls if made == call]

    async def request(
        self, method: str, path: str, query: dict[str, str], body: Any, content_type: str, seconds: float
    ) -> tuple[int, bytes]:
        self.calls.append((asyncio.get_running_loop().time(), f"{method} {path}"))
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.swallows:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(self.latency)
        if self.problem:
            raise OSError(self.problem)
        status, answer = self._answer(method, path, body)
        return status, json.dumps(answer).encode()

    async def stream(self, path: str, query: dict[str, str], seconds: float) -> AsyncIterator[bytes]:
        self.calls.append((asyncio.get_running_loop().time(), f"WATCH {path}"))
        if self.problem:
            raise OSError(self.problem)
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._streams.append((path, lines))
        try:
            async with asyncio.timeout(seconds):
                while True:
                    yield await lines.get()
        finally:
            self._streams.remove((path, lines))

    async def close(self) -> None:
        return None

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Object]:
        if path.endswith("/selfsubjectaccessreviews"):
            return 201, {"status": {"allowed": True}}
        if method != "GET":
            return 200, body if isinstance(body, dict) else {}
        for kind in KINDS:
            root = kind.path().rsplit("/", 1)[0]
            if path == root:
                served = [each.plural for each in KINDS if each.path().rsplit("/", 1)[0] == root]
                return 200, {"resources": [{"name": plural} for plural in served]}
            if path == kind.path():
                items = [body for (held, _, _), body in self.objects.items() if held is kind]
                return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            for space in {space for held, space, _ in self.objects if held is kind} | {"ns"}:
                if path == kind.path(space):
                    items = [b for (held, at, _), b in self.objects.items() if held is kind and at == space]
                    return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items}
                name = path.rsplit("/", 1)[1]
                if path == kind.path(space, name) and (kind, space, name) in self.objects:
                    return 200, self.objects[kind, space, name]
        return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
