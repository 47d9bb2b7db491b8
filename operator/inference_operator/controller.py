"""The reconcile loop: events wake keys, workers run passes, a slow resync replaces what the watches know.

A pass is level-triggered: it looks, decides and acts on the whole pool, whatever woke it.
"""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from inference_operator import metrics
from inference_operator.access import Reach, look
from inference_operator.api import Api, ApiError, ApiUnavailable
from inference_operator.apply import Applier
from inference_operator.ask_picker import PickerAsker
from inference_operator.cache import Cache
from inference_operator.connection import Connection
from inference_operator.handlers import Watch
from inference_operator.kinds import CRD, OBJECTIVES, PICKER, POOL, Kind, Object, PoolKey
from inference_operator.observe import Reader
from inference_operator.ownership import Stance
from inference_operator.pods import PodWatches
from inference_operator.queue import WorkQueue
from inference_operator.reconcile import Pass, Result
from inference_operator.report import Reporter
from inference_operator.selectors import watch_selector
from inference_operator.settings import Settings
from inference_operator.truces import Truces
from inference_operator.waking import keys_of

log = logging.getLogger(__name__)

#: Seconds by which an event's pass is put off, so that the events of one moment make one pass.
_GATHER: Final = 0.05
#: Back-off, in seconds, of watches that ended and of resyncs that failed.
_RETRY: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
#: Seconds between two complaints of passes that the API server cannot be reached.
_COMPLAIN_EVERY: Final = 10.0
#: A CRD of one of these groups, installed or removed, changes what we can do.
_CRD_GROUPS: Final = frozenset({POOL.group, PICKER.group, *(kind.group for kind in OBJECTIVES)})


class Controller:
    """Everything that runs: the queue, its workers, the watches and the resync."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        api = Api(connection)
        self._connection = connection
        self._settings = settings
        self._api = api
        self._cache = Cache()
        self._watches = PodWatches(api, lambda key: self.wake(key, _GATHER))
        self._reader = Reader(api, self._cache, self._watches, settings)
        # Less than a resync's interval, so that each resync asks.
        again_after = settings.resync_interval / 2
        self._asker = PickerAsker(api, lambda key: self.wake(key, _GATHER), again_after)
        self._pass = Pass(
            self._reader,
            Applier(api, self._cache),
            self._asker,
            Reporter(api, self._cache),
            api,
            self._cache,
        )
        self._queue: WorkQueue[PoolKey] = WorkQueue()
        self._woken = asyncio.Event()
        self._listed = asyncio.Event()
        self._resync_now = asyncio.Event()
        self._watch: Watch | None = None
        self._truces = Truces()
        self._silent_until = 0.0
        self._stances: dict[PoolKey, Stance] = {}
        self.last_resync: float | None = None
        """When the last full resync succeeded, by time.monotonic; None before the first."""
        self.reach: Reach | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync_for_ever())
                for _ in range(self._settings.workers):
                    group.create_task(self._work())
        finally:
            await self._watches.close()
            await self._asker.close()
            if self._watch is not None:
                await self._watch.stop()

    def wake(self, key: PoolKey, delay: float = 0.0) -> None:
        """Have the pool looked at after the delay, in seconds."""
        self._queue.add(key, time.monotonic() + delay)
        metrics.QUEUE_LENGTH.set(len(self._queue))
        self._woken.set()

    def observe_event(self, kind: Kind, gone: bool, body: Object) -> None:
        """Take note of what a watch saw, and wake the pools that it concerns."""
        if kind is CRD:
            if body.get("spec", {}).get("group") in _CRD_GROUPS:
                self._resync_now.set()
            return
        keys = keys_of(kind, body, self._cache)
        news = self._cache.drop(kind, body) if gone else self._cache.put(kind, body)
        if news:
            for key in keys | keys_of(kind, body, self._cache):
                self.wake(key, _GATHER)

    async def _work(self) -> None:
        await self._listed.wait()  # half a view of the world would look like damage
        while True:
            now = time.monotonic()
            key = self._queue.take(now)
            if key is None:
                await self._sleep_until(self._queue.next_due())
                continue
            metrics.QUEUE_LENGTH.set(len(self._queue))
            await self._run_pass(key)
            self._woken.set()

    async def _sleep_until(self, due: float | None) -> None:
        self._woken.clear()
        timeout = None if due is None else max(0.0, due - time.monotonic())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), timeout)

    async def _run_pass(self, key: PoolKey) -> None:
        started = time.monotonic()
        pool = "/".join(key)
        try:
            result = await self._pass.run(key, lambda: self._queue.waiting(key))
        except ApiUnavailable as error:
            self._queue.failed(key, time.monotonic())
            metrics.PASSES.labels("error").inc()
            self._complain(error)
            return
        except (ApiError, ValidationError) as error:
            back_off = self._queue.failed(key, time.monotonic())
            metrics.PASSES.labels("error").inc()
            log.warning(
                "pass failed: %s", error, extra={"pool": pool, "again_in_seconds": round(back_off, 1)}
            )
            return
        except Exception:
            # A fault of ours with one pool must not take the others down.
            back_off = self._queue.failed(key, time.monotonic())
            metrics.PASSES.labels("fault").inc()
            log.exception("pass broke", extra={"pool": pool, "again_in_seconds": round(back_off, 1)})
            return
        finally:
            metrics.PASS_SECONDS.observe(time.monotonic() - started)
        self._count(key, result.stance)
        now = time.monotonic()
        if result.refused:
            metrics.PASSES.labels("refused").inc()
            self._queue.failed(key, now)
            return
        metrics.PASSES.labels("wrote" if result.wrote else "quiet").inc()
        again = None if result.recheck_after is None else now + result.recheck_after
        self._queue.done(key, again, not_before=self._truce(key, result, now))

    def _complain(self, error: ApiUnavailable) -> None:
        """Log now and then that the API server is away: every pool would say the same."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _COMPLAIN_EVERY
            log.warning("passes fail: %s", error)

    def _count(self, key: PoolKey, stance: Stance | None) -> None:
        before = self._stances.pop(key, None)
        if before is not None:
            metrics.POOLS.labels(before.value).dec()
        if stance is not None:
            self._stances[key] = stance
            metrics.POOLS.labels(stance.value).inc()

    def _truce(self, key: PoolKey, result: Result, now: float) -> float | None:
        """Return until when to let the pool be, or None."""
        if result.stance is None:
            self._truces.forget(key)
        if not result.repaired:
            self._truces.quiet(key, now)
            return None
        pause = self._truces.repaired(key, now)
        if not pause:
            return None
        log.warning(
            "repaired again and again: somebody changes it back",
            extra={"pool": "/".join(key), "pause_in_seconds": pause},
        )
        return now + pause

    async def _resync_for_ever(self) -> None:
        failures = 0
        while True:
            try:
                await self.resync()
                failures = 0
                delay = self._settings.resync_interval
                metrics.RESYNCS.labels("ok").inc()
            except (ApiUnavailable, ApiError) as error:
                delay = _RETRY[min(failures, len(_RETRY) - 1)]
                failures += 1
                metrics.RESYNCS.labels("error").inc()
                log.warning("resync failed: %s", error, extra={"again_in_seconds": delay})
            except Exception:
                # A fault of ours: the watches and workers go on meanwhile.
                delay = _RETRY[-1]
                metrics.RESYNCS.labels("fault").inc()
                log.exception("resync broke", extra={"again_in_seconds": delay})
            self._resync_now.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._resync_now.wait(), delay)
                await asyncio.sleep(0.5)  # several CRDs are usually installed together

    async def resync(self) -> None:
        """Ask again what we may do, list everything, and look at every pool."""
        reach = await look(self._api, self._settings.namespaces)
        self._note(reach)
        self._reader.access = reach.access
        before = self._keys()
        for kind in reach.watchable - {CRD}:
            await self._list(kind)
        if self._watch is None or self._watch.kinds != reach.watchable:
            await self._restart_watch(reach)
        # Those that are not to be seen any more, too: their EndpointPickers have to say so.
        for key in before | self._keys():
            self.wake(key)
        self.last_resync = time.monotonic()
        self._listed.set()

    def _keys(self) -> set[PoolKey]:
        bodies = [body for kind in (POOL, PICKER) for body in self._cache.all(kind)]
        return {(body["metadata"]["namespace"], body["metadata"]["name"]) for body in bodies}

    async def _list(self, kind: Kind) -> None:
        spaces: tuple[str | None, ...] = self._settings.namespaces or (None,)
        bodies: list[Object] = []
        versions: list[int] = []
        for space in spaces:
            items, at = await self._api.list_all(kind, space, watch_selector(kind))
            bodies += items
            versions.append(at)
        before = {
            (b["metadata"].get("namespace", ""), b["metadata"]["name"]): b for b in self._cache.all(kind)
        }
        for changed in self._cache.replace(kind, bodies, min(versions)):
            space, name = changed
            for body in (before.get(changed), self._cache.get(kind, space, name)):
                if body is not None:
                    for key in keys_of(kind, body, self._cache):
                        self.wake(key)

    async def _restart_watch(self, reach: Reach) -> None:
        if self._watch is not None:
            for kind in self._watch.kinds - reach.watchable:
                self._cache.clear(kind)
            await self._watch.stop()
        metrics.WATCH_STARTS.inc()
        self._watch = Watch(
            self._connection,
            reach.watchable,
            self._settings.namespaces,
            self.observe_event,
            self._watch_ended,
        )
        self._watch.start()

    def _watch_ended(self, watch: Watch, problem: str) -> None:
        if watch is not self._watch:
            return
        log.warning("watches ended: %s", problem, extra={"again_in_seconds": _RETRY[1]})
        self._watch = None
        asyncio.get_running_loop().call_later(_RETRY[1], self._resync_now.set)

    def _note(self, reach: Reach) -> None:
        """Log what has changed of our reach; once, not in every resync."""
        before, self.reach = self.reach, reach
        metrics.DENIED_RIGHTS.set(len(reach.access.denied))
        if before is None or before.access.denied != reach.access.denied:
            if reach.access.denied:
                log.warning("rights missing: %s", ", ".join(reach.access.denied))
            elif before is not None:
                log.info("no right is missing any more")
        if before is None or before.watchable != reach.watchable:
            log.info("watching %s", ", ".join(sorted(kind.resource for kind in reach.watchable)))
