"""The pods of each managed pool, watched by the pool's own selector.

A watch of all pods of a cluster would cost the operator more than all the rest of its work; this one streams
model servers only, and keeps of them only what counting endpoints needs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from inference_api.names import ACTIVE_PORTS_ANNOTATIONS
from inference_operator.api import Api, ApiError, ApiUnavailable
from inference_operator.endpoints import is_ready
from inference_operator.kinds import POD, Object, PoolKey

log = logging.getLogger(__name__)

#: Seconds after which a watch is begun anew with a list, so that nothing it missed stays missed.
_WATCH_SECONDS: Final = 300
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class PodWatches:
    """One watch for each pool that is followed."""

    __slots__ = ("_api", "_held", "_selectors", "_tasks", "_wake")

    def __init__(self, api: Api, wake: Callable[[PoolKey], None]) -> None:
        self._api = api
        self._wake = wake
        self._selectors: dict[PoolKey, str] = {}
        self._tasks: dict[PoolKey, asyncio.Task[None]] = {}
        self._held: dict[PoolKey, dict[str, Object]] = {}

    def follow(self, key: PoolKey, selector: str) -> None:
        """Watch the pods of the pool's namespace that the selector selects; wake the pool on changes."""
        if self._selectors.get(key) == selector:
            return
        self.forget(key)
        self._selectors[key] = selector
        self._tasks[key] = asyncio.create_task(self._run(key, selector))

    def forget(self, key: PoolKey) -> None:
        """Stop watching for the pool."""
        self._selectors.pop(key, None)
        self._held.pop(key, None)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def pods(self, key: PoolKey, selector: str) -> list[Object] | None:
        """Return the pods as the watch knows them; None when it does not, or watches something else."""
        held = self._held.get(key)
        return None if held is None or self._selectors.get(key) != selector else list(held.values())

    async def close(self) -> None:
        """Stop all watches."""
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: PoolKey, selector: str) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._watch_once(key, selector)
                pause = _FIRST_PAUSE
                await asyncio.sleep(_FIRST_PAUSE)  # a stream that ends at once must not spin
            except (ApiError, ApiUnavailable) as error:
                # A missing right is told as a condition; meanwhile each pass counts by a list.
                self._held.pop(key, None)
                log.debug("pods not watched: %s", error, extra={"pool": "/".join(key)})
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
            except Exception:
                self._held.pop(key, None)
                log.exception("watch of pods broke", extra={"pool": "/".join(key)})
                await asyncio.sleep(_LONGEST_PAUSE)

    async def _watch_once(self, key: PoolKey, selector: str) -> None:
        namespace = key[0]
        pods, version = await self._api.list_all(POD, namespace, selector, cached=True)
        self._keep(key, {pod["metadata"]["name"]: outline(pod) for pod in pods})
        async for what, pod in self._api.watch(POD, namespace, selector, version, _WATCH_SECONDS):
            held = dict(self._held.get(key, {}))
            name = pod["metadata"]["name"]
            if what == "DELETED":
                held.pop(name, None)
            else:
                held[name] = outline(pod)
            self._keep(key, held)

    def _keep(self, key: PoolKey, pods: dict[str, Object]) -> None:
        if self._held.get(key) != pods:
            self._held[key] = pods
            self._wake(key)


def outline(pod: Object) -> Object:
    """Return the parts of a pod that decide about its endpoints, so that only they count as a change."""
    metadata, status = pod["metadata"], pod.get("status", {})
    annotations = metadata.get("annotations") or {}
    kept: dict[str, Any] = {
        "annotations": {name: annotations[name] for name in ACTIVE_PORTS_ANNOTATIONS if name in annotations}
    }
    if metadata.get("deletionTimestamp"):
        kept["deletionTimestamp"] = metadata["deletionTimestamp"]
    return {
        "metadata": kept,
        "status": {
            "phase": status.get("phase", ""),
            "podIP": status.get("podIP", ""),
            "conditions": [{"type": "Ready", "status": "True" if is_ready(pod) else "False"}],
        },
    }
