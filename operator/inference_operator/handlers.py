"""Watching with kopf: every event goes into a callback, and nothing else happens here.

kopf keeps no state of ours: `on.event` handlers write no annotations and no finalizers; peering and posting
are off. kopf ends every task it finds in its event loop when it stops, and exits when a watch is forbidden:
so it gets a thread with a loop of its own, and whoever owns a `Watch` starts the next one.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import kopf

from inference_operator.connection import Connection
from inference_operator.kinds import CHILD_KINDS, Kind, Object
from inference_operator.selectors import MANAGED_SELECTOR

log = logging.getLogger(__name__)

#: kind, whether the object is gone, object
Seen = Callable[[Kind, bool, Object], None]

_STOP_SECONDS = 10.0


class Watch:
    """The watches of a set of kinds, running in a thread of their own until they are stopped or fail."""

    __slots__ = ("_loop", "_on_end", "_on_event", "_stop", "_thread", "kinds")

    def __init__(
        self,
        connection: Connection,
        kinds: Iterable[Kind],
        namespaces: tuple[str, ...],
        on_event: Seen,
        on_end: Callable[["Watch", str], None],
    ) -> None:
        """Both callbacks are called in the event loop that makes the Watch."""
        self.kinds = frozenset(kinds)
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._on_end = on_end
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(connection, namespaces), name="kopf", daemon=True
        )

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    async def stop(self) -> None:
        """End the watches and wait until they have ended."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    def _run(self, connection: Connection, namespaces: tuple[str, ...]) -> None:
        scope: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
        problem = ""
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._registry(connection),
                    settings=watch_settings(self.kinds),
                    standalone=True,
                    stop_flag=self._stop,
                    **scope,
                )
            )
        except asyncio.CancelledError:
            problem = "cancelled"
        except Exception as error:  # kopf ends with whatever its first failing task raised
            problem = f"{type(error).__name__}: {error}"
        if not self._stop.is_set():
            self._tell(self._on_end, self, problem or "ended")

    def _registry(self, connection: Connection) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.ConnectionInfo:
            return await connection.for_kopf()

        kopf.on.login(registry=registry)(login)
        for kind in self.kinds:
            handler = self._handler(kind)
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id="seen")(handler)
        return registry

    def _handler(self, kind: Kind) -> Any:
        async def seen(event: Any, **_: Any) -> None:
            self._tell(self._on_event, kind, event["type"] == "DELETED", event["object"])

        return seen

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop has ended: so has everybody who wanted to know
            log.debug("event after the end")


def watch_settings(kinds: Iterable[Kind]) -> kopf.OperatorSettings:
    """Return kopf's settings: it watches, and does nothing else."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 290
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.process.ultimate_exiting_timeout = None
    for kind in kinds:
        if kind in CHILD_KINDS:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = MANAGED_SELECTOR
    return settings
