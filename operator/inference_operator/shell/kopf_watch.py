"""Watching with kopf: every event goes into a callback, and nothing else happens here.

kopf writes nothing to the cluster: `on.event` handlers add no annotations and no finalizers, and peering and
posting are off. When kopf stops, it cancels every task of its event loop; and it stops at any unexpected
answer to a watch. So kopf runs in a thread with a loop of its own, and the owner of a `Watch` starts the next
one.

kopf can take seconds to stop, and hangs when one of its tasks swallows its cancellation. So nothing waits for
it. This module makes kopf's HTTP session, whose middleware sees every request and answer: it reports an
answer that stops kopf at once (`on_end`). For any other end, the owner calls `neglect`, which names a thread
that sends no request any more.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
import kopf

from inference_operator.core.kinds import CHILD_KINDS, Kind, Object
from inference_operator.core.selectors import MANAGED_SELECTOR
from inference_operator.core.watch_health import SERVER_TIMEOUT, StreamHealth
from inference_operator.shell.connection import Connection
from inference_operator.shell.mailbox import Mailbox

log = logging.getLogger(__name__)

#: kopf's identity. Without one kopf looks up the user's name, and fails if the uid has no entry.
_IDENTITY: Final = "headroom-operator"
#: Most seconds until the headers of a watch's answer: the API server sends them at once.
_HEADER_SECONDS: Final = 5.0
#: Most seconds until the answer to a list.
_REQUEST_SECONDS: Final = 30.0
#: Objects a page of a list.
_CHUNK: Final = 500
#: Seconds between `abandon` and the stop of the thread's event loop.
_STOP_SECONDS: Final = 5.0
#: Seconds that `_close` waits for cancelled tasks.
_LAST_SECONDS: Final = 2.0
#: Turns of the event loop in which an aborted TLS transport closes its socket.
_TURNS_TO_CLOSE: Final = 3
#: Statuses after which kopf retries; any other from 400 to 499 stops kopf.
_SURVIVED: Final = frozenset({401, 403, 429})


class _BackOffs:
    """kopf's pauses between tries of a request: endless, because kopf stops when they run out."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.2, 0.5, 1.0)
        while True:
            yield 2.0


class WatchEvents(Protocol):
    """Callbacks of a Watch, called in the event loop that made it."""

    def on_event(self, kind: Kind, gone: bool, body: Object) -> None:
        """An object appeared or changed, or is gone."""

    def on_listed(self, watch: "Watch", kind: Kind) -> None:
        """A stream began after a list. No event reports what was deleted before that list."""

    def on_end(self, watch: "Watch", problem: str, *, not_found: bool = False) -> None:
        """The watch has ended or is about to. `not_found`: the API server does not serve a kind."""


class Watch:
    """The watches of a set of kinds, running in a thread of their own until they are abandoned or fail."""

    __slots__ = (
        "_abandoned",
        "_connection",
        "_events",
        "_listed",
        "_loop",
        "_mailbox",
        "_namespaces",
        "_prefix",
        "_stop",
        "_streams",
        "_thread",
        "_transports",
        "kinds",
    )

    def __init__(
        self, connection: Connection, kinds: Iterable[Kind], namespaces: tuple[str, ...], events: WatchEvents
    ) -> None:
        """Begin to watch. Call it in the event loop in which `events` is to be called."""
        self.kinds = frozenset(kinds)
        self._connection = connection
        self._namespaces = namespaces
        self._events = events
        self._abandoned = False
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox(asyncio.get_running_loop(), self._deliver)
        now = time.monotonic()
        self._streams: dict[str, tuple[Kind, StreamHealth]] = {}
        for kind in self.kinds:
            spaces = namespaces if namespaces and kind.namespaced else (None,)
            for space in spaces:
                self._streams[kind.path(space)] = kind, StreamHealth(now)
        self._prefix = ""
        self._listed: set[str] = set()
        self._transports: WeakSet[asyncio.Transport] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def down(self) -> dict[Kind, tuple[float, str]]:
        """Return the kinds without an open stream: seconds without one, and why."""
        now = time.monotonic()
        found: dict[Kind, tuple[float, str]] = {}
        for kind, stream in self._streams.values():
            seconds = stream.down_for(now)
            if seconds > found.get(kind, (0.0, ""))[0]:
                found[kind] = seconds, stream.problem or "the stream ended"
        return found

    def neglect(self) -> str:
        """Return why the thread counts as dead; "" when it does not."""
        if self.has_ended:
            return "the thread has ended"
        now = time.monotonic()
        for kind, stream in self._streams.values():
            if problem := stream.neglect(now):
                return f"{kind.resource}: {problem}"
        return ""

    def abandon(self) -> None:
        """Stop without waiting for the thread's end; no callback is called any more."""
        self._abandoned = True
        self._stop.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # it has been closed
                self._loop.call_soon_threadsafe(self._stop_soon)

    def _stop_soon(self) -> None:
        """Give kopf some time for an orderly end, then stop its event loop."""
        loop = asyncio.get_running_loop()
        loop.call_later(_STOP_SECONDS, loop.stop)

    def _deliver(self, call: Callable[[], None]) -> None:
        if not self._abandoned:
            call()

    def _run(self) -> None:
        problem = "ended"
        loop = asyncio.new_event_loop()
        # `on_end` reports kopf's failure once; asyncio would also log each failed task.
        loop.set_exception_handler(
            lambda _, context: log.debug("in the watch thread: %s", context["message"])
        )
        self._loop = loop
        if self._abandoned:
            loop.call_later(_STOP_SECONDS, loop.stop)
        try:
            loop.run_until_complete(self._watch())
        except asyncio.CancelledError:
            problem = "cancelled"
        except Exception as error:  # kopf.operator raises what its first failing task raised
            problem = f"{type(error).__name__}: {error}"
        finally:
            # kopf waits for this flag in a thread of the loop's executor: unset, that thread would never end.
            self._stop.set()
            self._report_end(problem)
            _close(loop)

    async def _watch(self) -> None:
        scope: dict[str, Any] = (
            {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        )
        sessions: list[aiohttp.ClientSession] = []
        try:
            await kopf.operator(
                registry=self._registry(sessions),
                settings=watch_settings(self.kinds),
                identity=cast("Any", _IDENTITY),
                standalone=True,
                stop_flag=self._stop,
                **scope,
            )
        finally:
            for session in sessions:
                await session.close()
            # An ended watch's connection waits for the server's close_notify, unknown to its session.
            for transport in list(self._transports):
                transport.abort()
            for _ in range(_TURNS_TO_CLOSE):
                await asyncio.sleep(0)

    def _registry(self, sessions: list[aiohttp.ClientSession]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.AiohttpSession:
            info = await self._connection.for_kopf()
            self._prefix = urlsplit(info.server).path.rstrip("/")
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
                headers=info.as_http_headers(),
                middlewares=(self._observe_request,),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            sessions[:] = [each for each in sessions if not each.closed] + [session]
            return kopf.AiohttpSession(server=info.server, aiohttp_session=session)

        kopf.on.login(registry=registry)(login)
        for kind in self.kinds:
            handler = self._handler(kind)
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id="seen")(handler)
        return registry

    def _handler(self, kind: Kind) -> Any:
        async def seen(event: Any, **_: Any) -> None:
            gone, body = event["type"] == "DELETED", event["object"]
            metadata = body["metadata"]
            key = kind, metadata.get("namespace", ""), metadata.get("name", "")
            self._mailbox.put(key, lambda: self._events.on_event(kind, gone, body))

        return seen

    def _report_end(self, problem: str, *, not_found: bool = False) -> None:
        self._mailbox.put("end", lambda: self._events.on_end(self, problem, not_found=not_found))

    async def _observe_request(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request of kopf's, and record its outcome in the kind's StreamHealth."""
        path = request.url.path.removeprefix(self._prefix)
        kind, stream = self._streams.get(path, (None, None))
        if kind is None or stream is None:
            return await handler(request)
        is_watch = "watch" in request.url.query
        problem, retry_after = "given up", 0.0
        stream.asked(time.monotonic())
        try:
            async with asyncio.timeout(_HEADER_SECONDS if is_watch else None):
                response = await handler(request)
            problem = "" if response.status < 400 else f"HTTP status {response.status}"
            retry_after = _seconds(response.headers.get("Retry-After", ""))
        except Exception as error:
            problem = "no answer" if isinstance(error, TimeoutError) else type(error).__name__
            raise
        finally:
            stream.answered(time.monotonic(), problem, retry_after)
        if problem:
            if 400 <= response.status < 500 and response.status not in _SURVIVED:
                self._report_end(f"{kind.resource}: {problem}", not_found=response.status == 404)
        elif is_watch:
            stream.opened(time.monotonic(), lambda: not response.closed)
            if (connection := response.connection) is not None and connection.transport is not None:
                self._transports.add(connection.transport)
            if path in self._listed:
                self._listed.discard(path)
                self._mailbox.put(("listed", kind), lambda: self._events.on_listed(self, kind))
        else:
            self._listed.add(path)
        return response


def watch_settings(kinds: Iterable[Kind]) -> kopf.OperatorSettings:
    """Return settings with which kopf only watches."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = SERVER_TIMEOUT
    settings.watching.connect_timeout = _HEADER_SECONDS
    settings.queueing.exit_timeout = 0.1  # handlers only fill the mailbox: no need to wait
    settings.watching.chunk_size = _CHUNK
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _HEADER_SECONDS
    settings.networking.error_backoffs = _BackOffs()
    settings.process.ultimate_exiting_timeout = None
    for kind in kinds:
        if kind in CHILD_KINDS:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = MANAGED_SELECTOR
    return settings


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the loop's tasks, wait _LAST_SECONDS at most, since one may swallow it, and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_SECONDS))
    except Exception:
        log.debug("the watch thread's last tasks failed", exc_info=True)
    finally:
        loop.close()


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
