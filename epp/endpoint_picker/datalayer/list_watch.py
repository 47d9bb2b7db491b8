"""Follows one collection of the API server for ever: list, then watch, and list again when it must.

A list replaces what was known, so that nothing deleted in between stays. Failures are waited out with
exponential back-off and jitter; what is known stays meanwhile.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

import aiohttp

from endpoint_picker.datalayer.kubernetes_api import ApiError, KubernetesApi, Object

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

#: Objects a list page: reading one does not hold the loop for long.
PAGE_SIZE: Final = 250
#: How long the server is asked to keep a watch open, seconds.
WATCH_S: Final = 300
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 15.0


class ListWatch(Generic[T]):
    """The objects of a collection, each reduced to what `reduce` keeps of it."""

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        *,
        selector: Mapping[str, str],
        reduce: Callable[[Object], T],
        changed: Callable[[], None],
        rng: random.Random,
    ) -> None:
        """`selector` holds fieldSelector, labelSelector; `changed()` is called when `objects` has changed."""
        self._api = api
        self._path = path
        self._selector = dict(selector)
        self._reduce = reduce
        self._changed = changed
        self._rng = rng
        self.objects: dict[tuple[str, str], T] = {}
        """By (namespace, name)."""
        self.synced = False
        """Whether a list was ever completed."""
        self._version = ""
        """Where the next watch begins; "" asks for a list first."""
        self._moved = False
        """Whether the watch under way has brought anything."""
        self.error = ""
        """Why the collection cannot be followed right now; "" while it is."""

    async def run(self) -> None:
        """Follow until cancelled. Watches that bring nothing are a failure too: each is waited for longer."""
        pause = FIRST_PAUSE_S
        while True:
            self._moved = False
            try:
                self._version = self._version or await self._list()
                await self._watch()
            except ApiError as error:
                if error.is_gone or error.status == 400:
                    self._version = ""
                if error.is_gone and (self._moved or pause == FIRST_PAUSE_S):
                    self._tell("the watch was too old; listing again", logging.INFO)
                    pause = 2 * FIRST_PAUSE_S
                    continue
                self._tell(str(error), logging.WARNING)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._tell(f"{type(error).__name__}: {error}", logging.WARNING)
            except Exception as error:
                # A fault of ours over one object must not end the watch for good.
                _LOG.exception("%s: fault while following", self._path)
                self.error, self._version = f"internal fault: {type(error).__name__}", ""
            if self._moved:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(self._rng.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _list(self) -> str:
        """Replace the objects; return the resource version that they are of."""
        found: dict[tuple[str, str], T] = {}
        query = {**self._selector, "limit": str(PAGE_SIZE)}
        while True:
            page = await self._api.page(self._path, query)
            for item in page.get("items") or ():
                found[_key(item)] = self._reduce(item)
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                break
            query["continue"] = str(metadata["continue"])
        self.objects = found
        self.synced = True
        self._well()
        self._changed()
        return str(metadata.get("resourceVersion", ""))

    async def _watch(self) -> None:
        """Take events until the server ends the watch. However it ends, the next one goes on from there."""
        query = {
            **self._selector,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(WATCH_S * self._rng.uniform(0.8, 1.0))),
        }
        # Closed here and now: an iterator left to the garbage collector keeps its connection until then.
        async with aclosing(self._api.watch(self._path, query)) as events:
            async for event in events:
                self._well()
                self._version = self._take(event) or self._version
                self._moved = True

    def _take(self, event: Object) -> str:
        """Apply an event; return the resource version that it brings, "" for none."""
        item: Any = event.get("object") or {}
        kind = event.get("type")
        if kind in ("ADDED", "MODIFIED"):
            self.objects[_key(item)] = self._reduce(item)
            self._changed()
        elif kind == "DELETED":
            self.objects.pop(_key(item), None)
            self._changed()
        return str((item.get("metadata") or {}).get("resourceVersion") or "")

    def _well(self) -> None:
        if self.error:
            _LOG.info("following %s again", self._path)
            self.error = ""

    def _tell(self, error: str, level: int) -> None:
        """Log an error once, not at every attempt."""
        if error != self.error:
            _LOG.log(level, "%s: %s", self._path, error)
        if level >= logging.WARNING:
            self.error = error


def _key(item: Object) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))
