"""Follows one collection of the API server for ever: lists, watches, and lists again after some errors.

Guarantees:

- A failure removes no object: each stays until a list or an event replaces it.
- A list replaces all objects, so that one deleted between two watches does not stay. It is read in
  pages of PAGE_SIZE objects, at most MAX_PAGES of them, and each object is reduced before the next page is
  asked for.
- The server ends a watch after about WATCH_S seconds. The client ends it WATCH_SLACK_S later, or after
  WATCH_SILENCE_S without event or bookmark (`api.py` has both).
- After a watch ended or was cut, the next one starts at the last version seen. After 400, 404, 410, 504 and
  silence the collection is listed again.
- Pauses between attempts are a back-off with jitter, at most `backoff.LONGEST_S`, or Retry-After. The
  back-off is reset only after a watch has brought an event or bookmark and has lasted for STEADY_S.
- An object that `reduce` cannot read counts as absent; the others are followed.
- Faults are logged at a bounded rate. Cancelling `run` ends it at its next turn.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Generic, Protocol, TypeVar

from cluster_client.backoff import Backoff
from cluster_client.collection import Change, Collection, lists_again
from cluster_client.errors import ApiError, ApiSilent, ApiUnavailable
from cluster_client.objects import Object, ObjectKey, key_of, mapping, sequence, version_of
from cluster_client.sparse_log import SparseLog

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

#: Objects of a list page, so few that reading one does not block the event loop for long.
PAGE_SIZE: Final = 250
#: Most pages of one list: a server at fault may never end one.
MAX_PAGES: Final = 2000
#: `timeoutSeconds` of a watch; each watch draws 80 to 100 % of it at random.
WATCH_S: Final = 300
#: Seconds after which a watch counts as working and resets the back-off.
STEADY_S: Final = 5.0


class Source(Protocol):
    """The two reads of `KubernetesApi` that a list-watch needs."""

    async def page(self, path: str, query: Mapping[str, str]) -> Object:
        """Return one page of a list. Raises ApiError, ApiUnavailable."""

    def watch(self, path: str, query: Mapping[str, str], seconds: int) -> AsyncGenerator[Object, None]:
        """Yield watch events and bookmarks. Raises ApiError, ApiUnavailable, ApiSilent."""


class ListWatch(Generic[T]):
    """The objects of a collection, each as the value that `reduce` returns. Start `run` as a task."""

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        selector: Mapping[str, str],
        reduce: Callable[[Object], T | None],
        changed: Callable[[Sequence[Change[T]]], None],
        known: Mapping[ObjectKey, T] | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`selector` holds fieldSelector and labelSelector; an object that reduces to None is not held.

        `changed` is called once after each list, with all changes, perhaps none, and once after each event
        that changes an object. `objects` is `known` until the first list is complete.
        """
        self._source = source
        self._path = path
        self._selector = dict(selector)
        self._reduce = reduce
        self._changed = changed
        self._rng = rng or random.Random()  # noqa: S311 - spreads attempts, guards nothing
        self._clock = clock
        self._backoff = Backoff(self._rng.uniform)
        self._collection = Collection(known)
        self._lines = SparseLog()
        self._faults = SparseLog()
        self._version = ""
        """Resource version at which the next watch begins; "" asks for a list first."""
        self._moved = False
        """Whether the watch under way has brought anything."""
        self.synced = False
        """Whether a list was ever completed."""
        self.error = ""
        """Why the collection cannot be followed right now; "" while it is."""

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """Return the objects by (namespace, name). A list replaces the mapping, an event changes it."""
        return self._collection.objects

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            began, self._moved, asked_s = self._clock(), False, 0.0
            try:
                self._version = self._version or await self._list()
                await self._watch()
            except ApiError as error:
                asked_s = error.retry_after_s
                if lists_again(error.status):
                    self._version = ""
                self._fault(str(error), logging.INFO if error.status == 410 else logging.WARNING)
            except ApiSilent as error:
                self._version = ""
                self._fault(f"listing again: {error}", logging.WARNING)
            except ApiUnavailable as error:
                self._fault(str(error), logging.WARNING)
            except Exception as error:
                # `changed` or this class has a fault. Begin anew: without `run` the objects would grow stale.
                self._version = ""
                self._internal_fault(error)
            if self._moved and self._clock() - began >= STEADY_S:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next_s(asked_s))

    async def _list(self) -> str:
        """Replace the objects; return the list's resource version."""
        found: dict[ObjectKey, T] = {}
        query = {**self._selector, "limit": str(PAGE_SIZE)}
        for _ in range(MAX_PAGES):
            page = await self._source.page(self._path, query)
            for item in sequence(page.get("items")):
                if (value := self._read(mapping(item))) is not None:
                    found[key_of(item)] = value
            token = mapping(page.get("metadata")).get("continue")
            if not token:
                break
            query["continue"] = str(token)
        else:
            raise ApiError(0, f"a list of more than {MAX_PAGES} pages")
        changes = self._collection.replace(found)
        self.synced = True
        self._well()
        self._changed(changes)
        return version_of(page)

    async def _watch(self) -> None:
        """Take events until the server ends the watch."""
        query = {**self._selector, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        seconds = int(WATCH_S * self._rng.uniform(0.8, 1.0))
        # Close the iterator here: the garbage collector would keep its connection open until it runs.
        async with aclosing(self._source.watch(self._path, query, seconds)) as events:
            async for event in events:
                self._well()
                self._moved = True
                self._take(event)

    def _take(self, event: Object) -> None:
        item = mapping(event.get("object"))
        changes: list[Change[T]] = []
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                changes = self._collection.put(key_of(item), self._read(item))
            case "DELETED":
                changes = self._collection.put(key_of(item), None)
            case _:  # a bookmark brings a version only
                pass
        self._version = version_of(item) or self._version
        if changes:
            self._changed(changes)

    def _read(self, item: Object) -> T | None:
        try:
            return self._reduce(item)
        except Exception as error:  # `reduce` may raise anything on an object of an unexpected shape
            self._log_fault(f"an object cannot be read: {type(error).__name__}", error)
            return None

    def _well(self) -> None:
        self.error = ""
        if self._lines.recovered():
            _LOG.info("following %s again", self._path)

    def _fault(self, text: str, level: int) -> None:
        if level >= logging.WARNING:
            self.error = text
        if (line := self._lines.fault(text, self._clock())) is not None:
            _LOG.log(level, "%s: %s", self._path, line)

    def _internal_fault(self, error: Exception) -> None:
        self.error = f"internal fault: {type(error).__name__}"
        self._log_fault(self.error, error)

    def _log_fault(self, text: str, error: Exception) -> None:
        if (line := self._faults.fault(text, self._clock())) is not None:
            _LOG.error("%s: %s", self._path, line, exc_info=error)
