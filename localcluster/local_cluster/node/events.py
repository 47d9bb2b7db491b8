"""Events about pods, as `kubectl describe` shows them; a repeated one only counts up."""

import datetime
import logging
from collections import OrderedDict
from typing import Final

from local_cluster.node.api import MERGE_PATCH, Api, ApiError
from local_cluster.node.objects import Json, timestamp

_log = logging.getLogger(__name__)
_REMEMBERED: Final = 512
_MESSAGE_LIMIT: Final = 1000


class Events:
    """Writes events; a failure to do so is logged and nothing more."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._known: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()

    async def write(self, pod: Json, kind: str, reason: str, message: str) -> None:
        """Say `reason`: `message` about a pod; `kind` is Normal or Warning."""
        meta = pod["metadata"]
        message = message[:_MESSAGE_LIMIT]
        key = (meta["uid"], reason, message)
        base = f"/api/v1/namespaces/{meta['namespace']}/events"
        now = timestamp(datetime.datetime.now(datetime.UTC))
        try:
            if (known := self._known.get(key)) is not None:
                name, count = known[0], known[1] + 1
                change = {"count": count, "lastTimestamp": now}
                await self._api.call("PATCH", f"{base}/{name}", change, content_type=MERGE_PATCH)
            else:
                count = 1
                made = await self._api.call("POST", base, self._event(pod, kind, reason, message, now))
                name = made["metadata"]["name"]
        except ApiError as error:
            _log.info("event %s of %s: %s", reason, meta["name"], error)
            self._known.pop(key, None)
            return
        self._known[key] = (name, count)
        self._known.move_to_end(key)
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
