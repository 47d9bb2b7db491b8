"""The pods of each namespace with a managed pool: one watch a namespace, however many pools it has.

Passes count endpoints from it, read why picker pods are not ready, and find the addresses to ask. `outline`
keeps only the fields of a pod that decide about its endpoints, and the whole status of Headroom's own pods.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from cluster_client.pods import has_ready_condition
from cluster_client.selectors import selects
from inference_api import names
from inference_operator.core.kinds import POD, Object, PoolKey
from inference_operator.core.naming import pool_hash
from inference_operator.shell.api import Api, ApiError, ApiUnavailable
from inference_operator.shell.supervision import Part, Supervisor

log = logging.getLogger(__name__)

#: Seconds after which a watch ends and a list begins the next, which finds any event that was missed.
_WATCH_SECONDS: Final = 300
#: Seconds without an event or bookmark after which a stream counts as dead; a bookmark comes each minute.
_SILENT_AFTER: Final = 90.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0

Labels = Mapping[str, str]


class _Namespace:
    """Pods of one namespace, and the pools that follow them."""

    __slots__ = ("by_hash", "by_label", "part", "pods", "pools", "synced")

    def __init__(self) -> None:
        self.part: Part | None = None
        self.synced = False
        self.pods: dict[str, Object] = {}
        self.pools: dict[PoolKey, Labels] = {}
        # Pools by one label of their selector, so that a pod is compared only with pools that may select it.
        self.by_label: defaultdict[tuple[str, str] | None, set[PoolKey]] = defaultdict(set)
        self.by_hash: dict[str, PoolKey] = {}

    def add(self, key: PoolKey, selector: Labels) -> None:
        self.pools[key] = selector
        self.by_label[_index(selector)].add(key)
        self.by_hash[pool_hash(key[1])] = key

    def drop(self, key: PoolKey) -> None:
        if (selector := self.pools.pop(key, None)) is not None:
            index = _index(selector)
            self.by_label[index].discard(key)
            if not self.by_label[index]:
                del self.by_label[index]
            self.by_hash.pop(pool_hash(key[1]), None)

    def concerned(self, pod: Object) -> set[PoolKey]:
        """Return the pools that select the pod, and the one whose picker or proxy it is."""
        labels: Labels = pod["metadata"]["labels"]
        marks: list[tuple[str, str] | None] = [None, *labels.items()]
        found = {
            key for mark in marks for key in self.by_label.get(mark, ()) if selects(self.pools[key], labels)
        }
        if _is_ours(labels) and (key := self.by_hash.get(labels.get(names.POOL_HASH_LABEL, ""))) is not None:
            found.add(key)
        return found


class PodWatches:
    """One watch for each namespace in which a pool is followed."""

    __slots__ = ("_api", "_spaces", "_supervisor", "_wake")

    def __init__(self, api: Api, wake: Callable[[PoolKey], None], supervisor: Supervisor) -> None:
        """`wake` is called for each pool that a change of a pod concerns."""
        self._api = api
        self._wake = wake
        self._supervisor = supervisor
        self._spaces: dict[str, _Namespace] = {}

    def follow(self, key: PoolKey, selector: Labels) -> None:
        """Wake the pool when a pod changes that the selector selects, or one of its picker or proxy."""
        namespace = key[0]
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = _Namespace()
            space.part = self._supervisor.start("pods", lambda: self._run(namespace), f"pods-{namespace}")
        if space.pools.get(key) != selector:
            space.drop(key)
            space.add(key, dict(selector))

    def forget(self, key: PoolKey) -> None:
        """Stop following the pool; the last pool of a namespace ends its watch."""
        space = self._spaces.get(key[0])
        if space is None:
            return
        space.drop(key)
        if not space.pools:
            del self._spaces[key[0]]
            if space.part is not None:
                self._supervisor.stop(space.part)

    def pods(self, namespace: str, selector: Labels) -> list[Object] | None:
        """Return the outlines of the pods with these labels; None while the namespace is not watched."""
        space = self._spaces.get(namespace)
        if space is None or not space.synced:
            return None
        return [pod for pod in space.pods.values() if selects(selector, pod["metadata"]["labels"])]

    async def _run(self, namespace: str) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._watch_once(namespace)
                pause = _FIRST_PAUSE
                await asyncio.sleep(_FIRST_PAUSE)  # a stream that ends at once must not spin
            except (ApiError, ApiUnavailable, TimeoutError) as error:
                # A condition names a missing right. Until the watch is back, each pass lists the pods.
                self._unsync(namespace)
                log.debug("pods not watched: %s", error, extra={"namespace": namespace})
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
            except BaseException:
                self._unsync(namespace)
                raise

    def _unsync(self, namespace: str) -> None:
        if (space := self._spaces.get(namespace)) is not None:
            space.synced = False

    async def _watch_once(self, namespace: str) -> None:
        pods, version = await self._api.list_all(POD, namespace, cached=True)
        space = self._spaces[namespace]
        listed = {pod["metadata"]["name"]: outline(pod) for pod in pods}
        for name in space.pods.keys() - listed.keys():
            self._change(space, name, None)
        for name, pod in listed.items():
            self._change(space, name, pod)
        if not space.synced:
            space.synced = True
            for key in space.pools:
                self._wake(key)
        async with (
            asyncio.timeout(_SILENT_AFTER) as silence,
            aclosing(self._api.watch(POD, namespace, "", version, _WATCH_SECONDS)) as events,
        ):
            async for what, pod in events:
                silence.reschedule(asyncio.get_running_loop().time() + _SILENT_AFTER)
                if what != "BOOKMARK":
                    name = pod["metadata"]["name"]
                    self._change(space, name, None if what == "DELETED" else outline(pod))

    def _change(self, space: _Namespace, name: str, pod: Object | None) -> None:
        before = space.pods.get(name)
        if before == pod:
            return
        if pod is None:
            del space.pods[name]
        else:
            space.pods[name] = pod
        for key in {key for each in (before, pod) if each is not None for key in space.concerned(each)}:
            self._wake(key)


def outline(pod: Object) -> Object:
    """Return the fields of a pod that passes use; a change of any other field wakes no pool."""
    metadata, status = pod["metadata"], pod.get("status", {})
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    kept: dict[str, Any] = {
        "name": metadata["name"],
        "labels": labels,
        "annotations": {
            name: annotations[name] for name in names.ACTIVE_PORTS_ANNOTATIONS if name in annotations
        },
    }
    if metadata.get("deletionTimestamp"):
        kept["deletionTimestamp"] = metadata["deletionTimestamp"]
    if _is_ours(labels):
        return {"metadata": kept, "status": status}
    return {
        "metadata": kept,
        "status": {
            "phase": status.get("phase", ""),
            "podIP": status.get("podIP", ""),
            "conditions": [{"type": "Ready", "status": "True" if has_ready_condition(pod) else "False"}],
        },
    }


def _index(selector: Labels) -> tuple[str, str] | None:
    """Return the label under which `by_label` has a selector; None if it selects every pod."""
    return min(selector.items(), default=None)


def _is_ours(labels: Labels) -> bool:
    return labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY_VALUE
