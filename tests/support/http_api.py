"""An API server over plain HTTP in the test's own event loop: objects of a RecordingConnection, with watches.

For tests that run the operator's clients, kopf among them, inside pytest's process. What server-side apply,
RBAC and admission do is tested on the real API server.
"""

import asyncio
import json
from pathlib import Path
from typing import Self

from aiohttp import web

from inference_operator.core.kinds import (
    CHILD_KINDS,
    CRD,
    EVENT,
    LEASE,
    OBJECTIVES,
    PICKER,
    POD,
    POOL,
    Kind,
    Object,
)
from recording_connection import RecordingConnection

#: kopf watches nothing before it has found this kind.
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
KINDS = (NAMESPACE, POOL, PICKER, *OBJECTIVES, *CHILD_KINDS, POD, EVENT, LEASE, CRD)
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class HttpApi:
    """Serves while its context is open."""

    def __init__(self) -> None:
        self.store = RecordingConnection()
        self.refused: dict[str, int] = {}
        """Status of every request by path, in place of an answer."""
        self.denied: set[tuple[str, str]] = set()
        """Verb and plural of rights that access reviews deny."""
        self.url = ""
        # Version, collection and line of every event, from which a watch is given what it missed.
        self._history: list[tuple[int, str, bytes]] = []
        self._watches: dict[str, set[asyncio.Queue[bytes | None]]] = {}
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for it."""
        target = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "a-token"}}],
        }
        target.write_text(json.dumps(config))
        return target

    @property
    def watched(self) -> set[str]:
        """The paths of which a watch is open."""
        return {path for path, open_ones in self._watches.items() if open_ones}

    def put(self, kind: Kind, body: Object) -> None:
        """Store an object under a new version, and report it to the watches."""
        self.store.version += 1
        metadata = {"namespace": "ns", **body["metadata"], "resourceVersion": str(self.store.version)}
        stored = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": metadata}
        self.store.objects[kind.path(metadata["namespace"], metadata["name"])] = stored
        self._report(kind, "MODIFIED", stored)

    def drop(self, kind: Kind, name: str, namespace: str = "ns") -> None:
        """Remove an object, and report it to the watches."""
        self.store.version += 1
        gone = self.store.objects.pop(kind.path(namespace, name))
        gone["metadata"]["resourceVersion"] = str(self.store.version)
        self._report(kind, "DELETED", gone)

    def cut(self) -> None:
        """End all watches."""
        for open_ones in self._watches.values():
            for lines in open_ones:
                lines.put_nowait(None)

    def _report(self, kind: Kind, what: str, body: Object) -> None:
        line = json.dumps({"type": what, "object": body}).encode() + b"\n"
        for path in (kind.path(), kind.path(body["metadata"].get("namespace"))):
            self._history.append((self.store.version, path, line))
            for lines in self._watches.get(path, ()):
                lines.put_nowait(line)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if (status := self.refused.get(request.path)) is not None:
            return web.json_response({"kind": "Status", "code": status, "message": "refused"}, status=status)
        if request.path == WHO_AM_I:
            return web.json_response({"status": {"userInfo": {"username": "admin"}}}, status=201)
        if request.path == REVIEWS:
            asked = (await request.json())["spec"]["resourceAttributes"]
            denied = (asked["verb"], asked["resource"]) in self.denied
            return web.json_response({"status": {"allowed": not denied}}, status=201)
        if request.method == "GET" and (found := _discovery(request.path)) is not None:
            return web.json_response(found)
        kind = next((kind for kind in KINDS if _is_collection(kind, request.path)), None)
        if request.method == "GET" and kind is not None:
            return await (self._watch(request) if "watch" in request.query else self._list(kind, request))
        text = await request.text()
        status, body = await self.store.request(
            request.method,
            request.path,
            dict(request.query),
            json.loads(text) if text else None,
            request.content_type,
            0.0,
        )
        return web.Response(status=status, body=body, content_type="application/json")

    async def _list(self, kind: Kind, request: web.Request) -> web.Response:
        plural = f"/{kind.plural}/"
        root, space = kind.path().removesuffix(kind.plural), request.path
        items = [
            body
            for path, body in self.store.objects.items()
            if path.startswith(root) and plural in path and (space == kind.path() or path.startswith(space))
        ]
        return web.json_response({"metadata": {"resourceVersion": str(self.store.version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        since = int(request.query.get("resourceVersion") or 0)
        for version, path, missed in self._history:
            if path == request.path and version > since:
                lines.put_nowait(missed)
        self._watches.setdefault(request.path, set()).add(lines)
        try:
            await response.prepare(request)
            while (line := await lines.get()) is not None:
                await response.write(line)
        finally:
            self._watches[request.path].discard(lines)
        return response


def _is_collection(kind: Kind, path: str) -> bool:
    return path == kind.path() or (
        path.endswith(f"/{kind.plural}")
        and path.startswith(kind.path().removesuffix(kind.plural) + "namespaces/")
    )


def _discovery(path: str) -> Object | None:
    """Return what the API server says of its groups and kinds; None for any other path."""
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        pairs = {kind.group: kind.version for kind in KINDS if kind.group}
        groups = []
        for group, version in pairs.items():
            entry = {"groupVersion": f"{group}/{version}", "version": version}
            groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
        return {"groups": groups}
    served = [kind for kind in KINDS if kind.path().rsplit("/", 1)[0] == path]
    if not served:
        return None
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return {
        "resources": [
            {
                "name": kind.plural,
                "kind": kind.kind,
                "singularName": kind.kind.lower(),
                "namespaced": kind.namespaced,
                "verbs": verbs,
            }
            for kind in served
        ]
    }
