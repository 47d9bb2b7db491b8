"""Events about pods, as `kubectl describe` shows them; a repeated event only raises its count."""

import asyncio
import contextlib
import datetime
import logging
from collections import OrderedDict
from typing import Final

from local_cluster.node.api import MERGE_PATCH, Api, ApiError
from local_cluster.node.objects import Json, timestamp

_log = logging.getLogger(__name__)
_REMEMBERED: Final = 512
_QUEUED: Final = 256
_MESSAGE_LIMIT: Final = 1000


class Events:
    """Writes events one at a time while `run` runs. `post` never waits: it drops the event when many wait."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._known: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._waiting: asyncio.Queue[tuple[Json, str, str, str]] = asyncio.Queue(_QUEUED)

    def post(self, pod: Json, kind: str, reason: str, message: str) -> None:
        """Queue the event `reason`: `message` about a pod; `kind` is Normal or Warning."""
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait((pod, kind, reason, message[:_MESSAGE_LIMIT]))

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._write(*event)
            except ApiError as error:
                _log.info("event %s of %s: %s", event[2], event[0]["metadata"]["name"], error)

    async def _write(self, pod: Json, kind: str, reason: str, message: str) -> None:
        meta = pod["metadata"]
        key = (meta["uid"], reason, message)
        base = f"/api/v1/namespaces/{meta['namespace']}/events"
        now = timestamp(datetime.datetime.now(datetime.UTC))
        if (known := self._known.pop(key, None)) is not None:
            name, count = known[0], known[1] + 1
            change = {"count": count, "lastTimestamp": now}
            await self._api.call("PATCH", f"{base}/{name}", change, content_type=MERGE_PATCH)
        else:
            count = 1
            made = await self._api.call("POST", base, self._event(pod, kind, reason, message, now))
            name = made["metadata"]["name"]
        self._known[key] = (name, count)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _event(self, pod: Json, kind: str, reason: str, message: str, now: str) -> Json:
        meta = pod["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "headroom-local-node", "host": self._node_name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
