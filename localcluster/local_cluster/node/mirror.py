"""A live copy of all objects of one kind: list, then watch, for ever."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from local_cluster.node.api import Api, ApiError
from local_cluster.node.objects import Json, Key, key_of, uid_of

_log = logging.getLogger(__name__)
_RETRY_S: Final = (0.1, 5.0)
_GONE: Final = 410

#: Called with the object before and after a change; None where it does not exist.
OnChange = Callable[[Json | None, Json | None], None]


class Mirror:
    """`items` follows the server's watch events; `on_change` is called once for each difference."""

    def __init__(self, api: Api, path: str, on_change: OnChange) -> None:
        self._api = api
        self._path = path
        self._on_change = on_change
        self.items: dict[Key, Json] = {}
        self.listed = asyncio.Event()

    async def run(self) -> None:
        """Follow the server until cancelled; after an error, list again with a growing delay."""
        delay = _RETRY_S[0]
        while True:
            try:
                version = await self._list()
                delay = _RETRY_S[0]
                await self._follow(version)
            except ApiError as error:
                if error.status != _GONE:
                    _log.warning("%s: %s", self._path, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_S[1])

    async def _list(self) -> str:
        answer = await self._api.call("GET", self._path)
        fresh = {key_of(item): item for item in answer.get("items") or ()}
        for key in self.items.keys() - fresh.keys():
            self._put(key, None)
        for key, item in fresh.items():
            self._put(key, item)
        self.listed.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        while True:
            async with contextlib.aclosing(self._api.watch(self._path, version)) as events:
                async for event in events:
                    item = event["object"]
                    version = item["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._put(key_of(item), None if event["type"] == "DELETED" else item)

    def _put(self, key: Key, item: Json | None) -> None:
        before = self.items.get(key)
        if before is not None and item is not None:
            if before["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]:
                return
            if uid_of(before) != uid_of(item):  # deleted and made again between two lists
                self._put(key, None)
                before = None
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item
        if before is not item:
            self._on_change(before, item)
