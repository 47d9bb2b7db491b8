"""A connection to an API server that is a dictionary: it records each call and refuses those a test names.

It merges maps and replaces lists, and keeps managedFields entries of whole bodies. What server-side apply
really does is tested on the real API server; here tests look at the calls.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from inference_operator.shell.connection import Connection

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    content_type: str

    @property
    def verb(self) -> str:
        """What it does: get, create, apply, edit (JSON patch), merge, replace or delete."""
        if self.method == "PATCH":
            kinds = {"apply-patch+yaml": "apply", "json-patch+json": "edit", "merge-patch+json": "merge"}
            return kinds[self.content_type.removeprefix("application/")]
        return {"GET": "get", "POST": "create", "PUT": "replace", "DELETE": "delete"}[self.method]

    @property
    def brief(self) -> str:
        """Verb, plural and name: `apply services/llm-epp`."""
        body = self.body if isinstance(self.body, dict) else {}
        name = body.get("metadata", {}).get("name", "") if self.method == "POST" else ""
        parts = self.path.split("/namespaces/")[-1].split("/")[1:]
        return f"{self.verb} {'/'.join([*parts, *([name] if name else [])])}"


Judge = Callable[[Call], tuple[int, Object] | None]


class RecordingConnection(Connection):
    """Objects by path, and the calls so far."""

    __slots__ = ("_judges", "calls", "objects", "version")

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.calls: list[Call] = []
        self._judges: list[Judge] = []
        self.version = 100

    @contextmanager
    def refusing(self, brief: str, status: int, reason: str = "", **more: Any) -> Iterator[None]:
        """Refuse the calls whose `brief` begins like this."""
        answer = {"kind": "Status", "code": status, "reason": reason, "message": f"refused: {brief}", **more}

        def judge(call: Call) -> tuple[int, Object] | None:
            return (status, answer) if call.brief.startswith(brief) else None

        self._judges.append(judge)
        try:
            yield
        finally:
            self._judges.remove(judge)

    @property
    def writes(self) -> list[str]:
        """The calls so far that were neither reads nor trials, each as its `brief`."""
        return [call.brief for call in self.calls if call.method != "GET" and "dryRun" not in call.query]

    @override
    async def request(
        self, method: str, path: str, query: dict[str, str], body: Any, content_type: str, seconds: float
    ) -> tuple[int, bytes]:
        call = Call(method, path, query, json.loads(json.dumps(body)), content_type)
        self.calls.append(call)
        refusal = next((found for judge in self._judges if (found := judge(call))), None)
        status, answer = refusal or self._serve(call)
        return status, json.dumps(answer).encode()

    @override
    async def stream(self, path: str, query: dict[str, str], seconds: float) -> AsyncIterator[bytes]:
        """Tell nothing: a watch in which nothing ever happens."""
        await asyncio.Event().wait()
        yield b""

    def _serve(self, call: Call) -> tuple[int, Object]:
        path = call.path.removesuffix("/status")
        if "dryRun" in call.query:
            return 201, call.body
        if call.method == "POST":
            path += f"/{call.body['metadata']['name']}"
        live = self.objects.get(path)
        if call.method == "POST":
            if live is not None:
                return 409, {"reason": "AlreadyExists"}
            return 201, self._store(path, {}, call.body, call, "Update")
        if live is None and call.verb != "apply":
            return 404, {"reason": "NotFound"}
        if call.method == "DELETE":
            del self.objects[path]
        elif call.verb == "apply":
            if live is not None and live.get("roleRef") != call.body.get("roleRef"):
                return 422, {"reason": "Invalid", "message": "roleRef: Invalid value: cannot change roleRef"}
            return 200, self._store(path, live or {}, call.body, call, "Apply")
        elif call.verb == "edit":
            return self._edit(path, live or {}, call)
        return 200, live or {}

    def _edit(self, path: str, live: Object, call: Call) -> tuple[int, Object]:
        made = json.loads(json.dumps(live))
        for step in call.body:
            *parents, last = step["path"].removeprefix("/").split("/")
            place = made
            for part in parents:
                place = place[int(part) if isinstance(place, list) else part]
            place[int(last) if isinstance(place, list) else last] = step["value"]
        if made["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            return 409, {"reason": "Conflict"}
        touched = [step["path"] for step in call.body if not step["path"].startswith("/metadata/")]
        return 200, self._store(path, made, {}, call, "Update" if touched else "")

    def _store(self, path: str, live: Object, body: Object, call: Call, operation: str) -> Object:
        self.version += 1
        made = merged(live, body)
        manager = call.query.get("fieldManager", "")
        entries = list(made["metadata"].get("managedFields", ()))
        if operation:
            part = "status" if call.path.endswith("/status") else ""
            mine = {
                "manager": manager,
                "operation": operation,
                "subresource": part,
                "fieldsV1": field_set(body),
            }
            key = (manager, operation, part)
            others = [e for e in entries if (e["manager"], e["operation"], e.get("subresource", "")) != key]
            entries = [*others, mine]
        made["metadata"] |= {"resourceVersion": str(self.version), "managedFields": entries}
        made["metadata"].setdefault("uid", f"uid-{path}")
        self.objects[path] = made
        return made


def merged(live: Object, body: Object) -> Object:
    """Return `live` with `body` over it: maps merged, all else replaced."""
    made = dict(live)
    for key, value in body.items():
        held = made.get(key)
        made[key] = merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return made


def field_set(body: Object) -> Object:
    """Return a fieldsV1 set of the body's fields, lists as one value."""
    return {
        f"f:{key}": field_set(value) if isinstance(value, dict) else {}
        for key, value in body.items()
        if key not in {"apiVersion", "kind", "name", "namespace", "managedFields"}
    }
