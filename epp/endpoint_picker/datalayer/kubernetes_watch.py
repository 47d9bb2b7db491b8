"""Watches a pool, its pods and the picker's two ConfigMaps, and calls back on changes. A thin shell.

While the API server does not answer, the last state stays in use. A deleted pool has no endpoints.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from cluster_client.list_watch import ListWatch, Source
from cluster_client.objects import Object, ObjectKey
from cluster_client.pods import Pod, pod_of
from endpoint_picker.datalayer.discovery import Pool, endpoints_of, pool_of
from endpoint_picker.datalayer.table import Endpoint
from inference_api.names import CONFIG_KEY, POOL_GROUP, POOL_PLURAL, POOL_VERSION, PRIORITIES_KEY

_log = logging.getLogger(__name__)

_V = TypeVar("_V")
_PODS_TASK: Final = "watch of pods"
#: Seconds between the end of a watch of pods, which only a fault can cause, and the next one.
_AGAIN_S: Final = 1.0


def _ignore(_: str) -> None:
    """Take a text and do nothing with it."""


class PoolWatch:
    """Start `run` as a task; cancel it to stop."""

    def __init__(
        self,
        api: Source,
        *,
        namespace: str,
        pool: str,
        on_endpoints: Callable[[list[Endpoint]], object],
        config_map: str = "",
        on_config: Callable[[str], object] = _ignore,
        priorities_map: str = "",
        on_priorities: Callable[[str], object] = _ignore,
        rng: random.Random | None = None,
    ) -> None:
        """A ConfigMap named "" is not watched. One that is deleted, or lacks its key, changes nothing."""
        self._api = api
        self._namespace = namespace
        self._on_endpoints = on_endpoints
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing
        path = f"/apis/{POOL_GROUP}/{POOL_VERSION}/namespaces/{namespace}/{POOL_PLURAL}"
        self._pool: Pool | None = None
        self._pools = self._following(path, _by_name(pool), pool_of, self._pool_changed)
        self._pods: ListWatch[Pod] | None = None
        self._selected = ""
        """Selector of the pods that are watched; the pool's selector may have changed since."""
        self._restart = asyncio.Event()
        self._flush: asyncio.Handle | None = None
        self._maps = [
            self._map(name, key, act)
            for name, key, act in (
                (config_map, CONFIG_KEY, on_config),
                (priorities_map, PRIORITIES_KEY, on_priorities),
            )
            if name
        ]

    @property
    def synced(self) -> bool:
        """Tell whether the pool and the pods of its present selector were listed."""
        if self._pool is None or self._selected != self._pool.label_selector:
            return False
        return self._pods is not None and self._pods.synced

    @property
    def pool_found(self) -> bool:
        """Tell whether the pool exists and is not being deleted."""
        return self._pool is not None

    @property
    def error(self) -> str:
        """Return the errors of the watches that fail at present; "" when all work."""
        watches: list[ListWatch[Pool] | ListWatch[Pod] | ListWatch[str]] = [self._pools]
        if self._pods is not None:
            watches.append(self._pods)
        watches.extend(self._maps)
        return "; ".join(each.error for each in watches if each.error)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pools.run())
                group.create_task(self._run_pods())
                for each in self._maps:
                    group.create_task(each.run())
        finally:
            if self._flush is not None:
                self._flush.cancel()
                self._flush = None

    async def _run_pods(self) -> None:
        """Watch the pods that the pool selects; start a new watch when its selector changes."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        while True:
            self._restart.clear()
            following: asyncio.Task[None] | None = None
            if self._pool is None:
                self._pods = None
            else:
                # Until the new list is complete, keep the known pods that the new selector matches.
                known = {} if self._pods is None else self._pods.objects
                self._selected = self._pool.label_selector
                selector = {"labelSelector": self._selected}
                self._pods = self._following(path, selector, pod_of, self._touched, known)
                following = asyncio.get_running_loop().create_task(self._pods.run(), name=_PODS_TASK)
            self._touched()
            restart = asyncio.ensure_future(self._restart.wait())
            both = {restart} if following is None else {restart, following}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if following is not None and following.done() and not restart.done():
                    # A watch never ends by itself. Unnoticed, the picker would keep these pods for ever.
                    error = None if following.cancelled() else following.exception()
                    _log.error("the watch of pods ended and begins anew", exc_info=error)
                    await asyncio.sleep(_AGAIN_S)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.wait(both)

    def _pool_changed(self) -> None:
        old, self._pool = self._pool, next(iter(self._pools.objects.values()), None)
        if (old and old.label_selector) != (self._pool and self._pool.label_selector):
            self._restart.set()
        self._touched()

    def _touched(self) -> None:
        """Schedule one `_hand_on` for all events of this turn of the event loop."""
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        self._flush = None
        pods = [] if self._pods is None else self._pods.objects.values()
        self._on_endpoints(endpoints_of(self._pool, pods))

    def _map(self, name: str, key: str, act: Callable[[str], object]) -> ListWatch[str]:
        path = f"/api/v1/namespaces/{self._namespace}/configmaps"
        last: list[str] = []

        def changed() -> None:
            text = next(iter(watch.objects.values()), None)
            if text is not None and last != [text]:
                last[:] = [text]
                act(text)

        watch = self._following(path, _by_name(name), lambda item: _text(item, key), changed)
        return watch

    def _following(
        self,
        path: str,
        selector: dict[str, str],
        reduce: Callable[[Object], _V | None],
        changed: Callable[[], None],
        known: Mapping[ObjectKey, _V] | None = None,
    ) -> ListWatch[_V]:
        return ListWatch(
            self._api,
            path,
            selector=selector,
            reduce=reduce,
            changed=lambda _: changed(),
            known=known,
            rng=self._rng,
        )


def _by_name(name: str) -> dict[str, str]:
    return {"fieldSelector": f"metadata.name={name}"}


def _text(config_map: Object, key: str) -> str | None:
    data = config_map.get("data")
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, str) else None
