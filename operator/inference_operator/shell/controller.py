"""The reconcile loop: events wake keys, workers run passes, a periodic resync lists everything anew.

A pass is level-triggered: it reads, decides and acts on the whole pool, and does not know which event woke
it. The clock is an argument, in seconds. The default is the event loop's, so that timers and clock agree.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import ValidationError

from inference_operator.core.cache import Cache, ObjectKey, resource_version
from inference_operator.core.event_mapping import keys_of
from inference_operator.core.kinds import (
    CHILD_KINDS,
    CRD,
    OBJECTIVES,
    PICKER,
    POOL,
    REWRITES,
    Kind,
    Object,
    PoolKey,
)
from inference_operator.core.overlap import Scope, in_words
from inference_operator.core.ownership import Stance
from inference_operator.core.queue import WorkQueue
from inference_operator.core.repair_backoff import RepairBackoff
from inference_operator.core.selectors import watch_selector
from inference_operator.core.settings import Settings
from inference_operator.core.watch_health import DOWN_AFTER
from inference_operator.shell import metrics
from inference_operator.shell.access import Reach, look
from inference_operator.shell.api import Api, ApiError, ApiUnavailable
from inference_operator.shell.apply import Applier
from inference_operator.shell.ask_picker import PickerAsker
from inference_operator.shell.observe import Reader
from inference_operator.shell.operator_lease import OperatorLease
from inference_operator.shell.pods import PodWatches
from inference_operator.shell.reconcile import Pass, Result
from inference_operator.shell.report import Reporter
from inference_operator.shell.supervision import Clock, Supervisor

log = logging.getLogger(__name__)

#: Seconds by which an event's pass is delayed, so that a burst of events makes one pass.
_GATHER: Final = 0.05
#: Back-off, in seconds, of watches that ended and of lists that failed.
_RETRY: Final = (0.5, 1.0, 2.0, 3.0)
#: Seconds between a CRD's event and the resync: several CRDs are usually installed together.
_CRD_GATHER: Final = 0.5
#: Seconds between two checks of the watches.
_LOOK_EVERY: Final = 0.5
#: Seconds within which a watch must report a change that a list has shown.
_REPORT_WITHIN: Final = 10.0
#: Seconds without a stream down after which a new watch resets the back-off.
_SETTLED_AFTER: Final = 10.0
#: Seconds after which an abandoned watch thread that still runs counts as hung.
_HUNG_AFTER: Final = 60.0
#: Most hung threads. With one more, no new watch is begun and /healthz fails, and the kubelet restarts the
#: operator.
_MOST_HUNG: Final = 5
#: Seconds after which a pass or a resync is cancelled. Each API call has a time-out of its own, too.
_PASS_LIMIT: Final = 300.0
_RESYNC_LIMIT: Final = 600.0
#: Part of the resync interval over which a resync spreads its routine passes.
_SPREAD: Final = 0.8
#: API groups whose CRDs, when installed or removed, start a resync.
_CRD_GROUPS: Final = frozenset(
    kind.group
    for kind in (POOL, PICKER, *OBJECTIVES, *REWRITES, *(kind for kind in CHILD_KINDS if kind.optional))
)


class RunningWatch(Protocol):
    """Watches of some kinds; `kopf_watch.Watch` implements it."""

    kinds: frozenset[Kind]

    @property
    def has_ended(self) -> bool:
        """Whether its thread has ended."""

    def down(self) -> dict[Kind, tuple[float, str]]:
        """Return the kinds without an open stream: seconds without one, and why."""

    def neglect(self) -> str:
        """Return why it counts as dead; "" when it does not."""

    def abandon(self) -> None:
        """Stop it without waiting for its end; it reports nothing any more."""


StartWatch = Callable[[frozenset[Kind], "Controller"], RunningWatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The answer of the health port."""

    dead: tuple[str, ...]
    """Background parts for which only a new process helps; not empty fails /healthz."""
    is_listed: bool
    """Whether there was a full list."""
    resync_age: float | None
    """Seconds since the last full list; None before the first."""
    resync_problem: str
    """Why the last full list failed; "" when it did not."""
    watching: tuple[str, ...]
    """Kinds whose watch is open."""
    not_watching: dict[str, str]
    """Kinds whose watch is down for more than DOWN_AFTER seconds or not begun, each with the reason."""
    denied: tuple[str, ...]
    """Missing rights."""
    aside: dict[str, str]
    """Older operators, each with the namespaces that are left to it, in words; not empty fails /readyz."""
    younger: dict[str, str]
    """Younger operators that stand aside for this one, each with the namespaces."""
    lease_problem: str
    """Why overlaps with other operators may go unnoticed; "" when there is no reason."""

    @property
    def ready(self) -> bool:
        """Whether the API server is reachable and no namespace is left to an older operator."""
        return self.reachable and not self.aside

    @property
    def reachable(self) -> bool:
        """Whether the API server answered the last full list and no watch is down for long."""
        return self.is_listed and not self.resync_problem and not self.not_watching


class Controller:
    """The queue, its workers, the watches and the resync. `run` runs them all."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        start_watch: StartWatch,
        clock: Clock | None = None,
        *,
        may_write: asyncio.Event | None = None,
        lease: OperatorLease | None = None,
    ) -> None:
        """Call it in the event loop that will run the controller.

        Workers take keys only while `may_write` is set; None means always. Watches, caches and resyncs do not
        wait for it, so that all due keys run as soon as it is set. Clearing it does not stop a pass that
        runs. With a `lease` workers wait for its standing, too, and leave alone the pools of namespaces in
        which an older installation works.
        """
        self._lease = lease
        if lease is not None:
            lease.on_change = self._wake_all
        if may_write is None:
            may_write = asyncio.Event()
            may_write.set()
        self._may_write = may_write
        self._clock = clock or asyncio.get_running_loop().time
        self._settings = settings
        self._api = api
        self._start_watch = start_watch
        self._supervisor = Supervisor(self._clock)
        self._cache = Cache()
        self._pods = PodWatches(api, lambda key: self.wake(key, _GATHER), self._supervisor)
        self._reader = Reader(api, self._cache, self._pods, settings, self._clock)
        # Less than a resync's interval, so that the pass of each resync asks the picker.
        again_after = settings.resync_interval / 2
        self._asker = PickerAsker(
            api,
            lambda key: self.wake(key, _GATHER),
            again_after,
            watched_pods=self._pods.pods,
            clock=self._clock,
        )
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
        self._list_lock = asyncio.Lock()
        # Kinds to list, each with its count of requests. A count that grew during a list asks for another
        # list.
        self._to_list: dict[Kind, int] = {}
        self._list_now = asyncio.Event()
        self._watch: RunningWatch | None = None
        self._watch_begun = 0.0
        self._watch_due = 0.0
        self._watch_failures = 0
        # Abandoned watches whose threads have not ended, with the time of `abandon`.
        self._lingering: list[tuple[RunningWatch, float]] = []
        # Changes that a list has shown and no watch has reported: their version, and the time by which one
        # must.
        self._unreported: dict[tuple[Kind, ObjectKey], tuple[int, float]] = {}
        self._repairs = RepairBackoff()
        self._stances: dict[PoolKey, Stance] = {}
        self._resynced: float | None = None
        self._resync_problem = ""
        self.reach: Reach | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        start = self._supervisor.start
        start("resync", self._resync_for_ever)
        start("lists", self._list_for_ever)
        start("watchdog", self._look_after_watch)
        if self._lease is not None:
            start("lease", self._lease.run)
        for number in range(self._settings.workers):
            start("worker", self._work, f"worker-{number}")
        try:
            await asyncio.Event().wait()
        finally:
            if self._watch is not None:
                self._abandon_watch(self._watch)
            await self._supervisor.close()
            await self._asker.close()

    def wake(self, key: PoolKey, delay: float = 0.0, *, routine: bool = False) -> None:
        """Queue a pass of the pool after the delay, in seconds; routine passes go behind urgent ones."""
        self._queue.add(key, self._clock() + delay, routine=routine)
        self._woken.set()

    def backlog(self) -> int:
        """Return how many pools are due for a pass now."""
        return self._queue.backlog(self._clock())

    def health(self) -> Health:
        """Return the health of the operator now."""
        watch, reach = self._watch, self.reach
        down = {} if watch is None else watch.down()
        kinds = frozenset() if watch is None else watch.kinds
        wanted = kinds if reach is None else reach.watchable
        lasting = {kind.resource: why for kind, (seconds, why) in down.items() if seconds > DOWN_AFTER}
        lasting |= {kind.resource: "the watch is being begun anew" for kind in wanted - kinds}
        standing = None if self._lease is None else self._lease.standing
        dead = self._supervisor.dead()
        if self._hung() > _MOST_HUNG:
            dead.append("watch")
        return Health(
            dead=tuple(dead),
            is_listed=self._resynced is not None,
            resync_age=None if self._resynced is None else self._clock() - self._resynced,
            resync_problem=self._resync_problem,
            watching=tuple(sorted(kind.resource for kind in kinds - down.keys())),
            not_watching=lasting,
            denied=() if reach is None else reach.access.denied,
            aside={} if standing is None else _in_words(standing.aside),
            younger={} if standing is None else _in_words(standing.younger),
            lease_problem="" if self._lease is None else self._lease.problem,
        )

    def on_event(self, kind: Kind, gone: bool, body: Object) -> None:
        """Put a watch's event into the cache, and wake the pools that it concerns."""
        if kind is CRD:
            if body.get("spec", {}).get("group") in _CRD_GROUPS:
                self._resync_now.set()
            return
        metadata = body["metadata"]
        mark = kind, (metadata.get("namespace", ""), metadata["name"])
        awaited = self._unreported.get(mark)
        if awaited is not None and resource_version(body) >= awaited[0]:
            del self._unreported[mark]
        keys = keys_of(kind, body, self._cache)
        news = self._cache.drop(kind, body) if gone else self._cache.put(kind, body)
        if news:
            for key in keys | keys_of(kind, body, self._cache):
                self.wake(key, _GATHER)

    def on_listed(self, watch: RunningWatch, kind: Kind) -> None:
        """List the kind: a new stream does not report what was deleted before it began."""
        if watch is self._watch and kind is not CRD:
            self._to_list[kind] = self._to_list.get(kind, 0) + 1
            self._list_now.set()
            for mark in [mark for mark in self._unreported if mark[0] is kind]:
                del self._unreported[mark]

    def on_end(self, watch: RunningWatch, problem: str, *, not_found: bool = False) -> None:
        """Give up a watch that has ended or is about to; resync if the API server does not serve a kind."""
        if watch is self._watch:
            self._give_up(watch, "ended", problem)
            if not_found:
                self._resync_now.set()

    async def _work(self) -> None:
        await self._listed.wait()  # before the first full list, existing children would look deleted
        while True:
            await self._may_write.wait()
            if self._lease is not None:
                await self._lease.wait()
            key = self._queue.take(self._clock())
            if key is None:
                await self._sleep_until(self._queue.next_due())
                continue
            try:
                await self._run_pass(key)
            except asyncio.CancelledError:
                self._queue.failed(key, self._clock())  # else the key would stay marked as running
                raise
            self._woken.set()

    async def _sleep_until(self, due: float | None) -> None:
        self._woken.clear()
        await _wait(self._woken, None if due is None else max(0.0, due - self._clock()))

    async def _run_pass(self, key: PoolKey) -> None:
        if self._lease is not None and self._lease.owner(key[0]):
            self._pass.leave(key)
            self._count(key, None)
            self._queue.done(key)
            return
        started = self._clock()
        pool = "/".join(key)
        try:
            async with asyncio.timeout(_PASS_LIMIT):
                result = await self._pass.run(key, lambda: self._queue.waiting(key))
        except ApiUnavailable as error:
            self._queue.failed(key, self._clock())
            metrics.PASSES.labels("error").inc()
            log.warning("passes fail: %s", error)
            return
        except (ApiError, ValidationError, TimeoutError) as error:
            back_off = self._queue.failed(key, self._clock())
            metrics.PASSES.labels("error").inc()
            log.warning(
                "pass failed: %s",
                str(error) or "it took too long",
                extra={"pool": pool, "again_in_seconds": round(back_off, 1)},
            )
            return
        except Exception:
            # A bug that one pool triggers must not stop the passes of the others.
            back_off = self._queue.failed(key, self._clock())
            metrics.PASSES.labels("fault").inc()
            log.exception("pass broke", extra={"pool": pool, "again_in_seconds": round(back_off, 1)})
            return
        finally:
            metrics.PASS_SECONDS.observe(self._clock() - started)
        self._count(key, result.stance)
        now = self._clock()
        if result.refused:
            metrics.PASSES.labels("refused").inc()
            self._queue.failed(key, now)
            return
        metrics.PASSES.labels("wrote" if result.wrote else "quiet").inc()
        again = None if result.recheck_after is None else now + result.recheck_after
        self._queue.done(key, again, not_before=self._pause(key, result, now))

    def _count(self, key: PoolKey, stance: Stance | None) -> None:
        before = self._stances.pop(key, None)
        if before is not None:
            metrics.POOLS.labels(before.value).dec()
        if stance is not None:
            self._stances[key] = stance
            metrics.POOLS.labels(stance.value).inc()

    def _pause(self, key: PoolKey, result: Result, now: float) -> float | None:
        """Return until when to leave the pool alone, or None."""
        if result.stance is None:
            self._repairs.forget(key)
        if not result.repaired:
            self._repairs.quiet(key, now)
            return None
        pause = self._repairs.repaired(key, now)
        if not pause:
            return None
        log.warning(
            "repaired again and again: another writer changes it back",
            extra={"pool": "/".join(key), "pause_in_seconds": pause},
        )
        return now + pause

    async def _resync_for_ever(self) -> None:
        failures = 0
        while True:
            # Clear it before the resync: a CRD that is installed during one needs another.
            self._resync_now.clear()
            delay = _RETRY[min(failures, len(_RETRY) - 1)]
            try:
                async with asyncio.timeout(_RESYNC_LIMIT):
                    await self.resync()
                failures = 0
                self._resync_problem = ""
                delay = self._settings.resync_interval
                metrics.RESYNCS.labels("ok").inc()
            except (ApiUnavailable, ApiError, TimeoutError) as error:
                failures += 1
                self._resync_problem = str(error) or "it took too long"
                metrics.RESYNCS.labels("error").inc()
                log.warning("resync failed: %s", self._resync_problem, extra={"again_in_seconds": delay})
            except Exception as error:
                # A bug in the operator must not stop watches and workers.
                failures += 1
                self._resync_problem = f"{type(error).__name__}: {error}"
                metrics.RESYNCS.labels("fault").inc()
                log.exception("resync broke", extra={"again_in_seconds": delay})
            self._publish()
            if await _wait(self._resync_now, delay):
                await asyncio.sleep(_CRD_GATHER)

    async def resync(self) -> None:
        """Ask for rights and served kinds, list every kind, and queue a pass of every pool."""
        reach = await look(self._api, self._settings.namespaces)
        changed = self._note(reach)
        self._reader.access = reach.access
        before = self._keys()
        for kind in reach.watchable - {CRD}:
            await self._list(kind)
        if self._watch is not None and self._watch.kinds != reach.watchable:
            for kind in self._watch.kinds - reach.watchable:
                self._cache.clear(kind)
            self._abandon_watch(self._watch)
            self._watch_due = self._clock()
        self._begin_watch()
        # Include pools that are no longer visible, so that their EndpointPickers report it.
        keys = sorted(before | self._keys())
        at_once = changed or self._resynced is None
        step = 0.0 if at_once else _SPREAD * self._settings.resync_interval / max(1, len(keys))
        for place, key in enumerate(keys):
            self.wake(key, place * step, routine=not at_once)
        self._resynced = self._clock()
        self._listed.set()

    def _wake_all(self) -> None:
        for key in self._keys():
            self.wake(key)

    def _keys(self) -> set[PoolKey]:
        bodies = [body for kind in (POOL, PICKER) for body in self._cache.all(kind)]
        return {(body["metadata"]["namespace"], body["metadata"]["name"]) for body in bodies}

    async def _list_for_ever(self) -> None:
        failures = 0
        while True:
            await self._list_now.wait()
            self._list_now.clear()
            for kind in list(self._to_list):
                asked = self._to_list[kind]
                try:
                    await self._list(kind)
                    failures = 0
                    if self._to_list[kind] == asked:
                        del self._to_list[kind]
                except (ApiUnavailable, ApiError) as error:
                    log.warning("list failed: %s", error, extra={"kind": kind.resource})
            if self._to_list:
                await asyncio.sleep(_RETRY[min(failures, len(_RETRY) - 1)])
                failures += 1
                self._list_now.set()
                if self.reach is not None:
                    for kind in self._to_list.keys() - self.reach.watchable:
                        del self._to_list[kind]

    async def _list(self, kind: Kind) -> None:
        spaces: tuple[str | None, ...] = self._settings.namespaces or (None,)
        bodies: list[Object] = []
        versions: list[int] = []
        async with self._list_lock:  # of two lists at a time, the older could come last
            for space in spaces:
                items, at = await self._api.list_all(kind, space, watch_selector(kind))
                bodies += items
                versions.append(at)
            before = {
                (b["metadata"].get("namespace", ""), b["metadata"]["name"]): b for b in self._cache.all(kind)
            }
            changes = self._cache.replace(kind, bodies, min(versions))
        for changed in changes:
            space, name = changed
            held = self._cache.get(kind, space, name)
            self._await_report(kind, changed, resource_version(held or before[changed]))
            for body in (before.get(changed), held):
                if body is not None:
                    for key in keys_of(kind, body, self._cache):
                        self.wake(key)

    def _await_report(self, kind: Kind, key: ObjectKey, version: int) -> None:
        """Require the watch to report a change that a list has shown, unless it began just now or is down."""
        watch, now = self._watch, self._clock()
        if watch is None or kind not in watch.kinds or now - self._watch_begun < _REPORT_WITHIN:
            return
        if kind in watch.down() or kind in self._to_list:
            return  # its next stream begins with a list
        self._unreported.setdefault((kind, key), (version, now + _REPORT_WITHIN))

    async def _look_after_watch(self) -> None:
        while True:
            self._look_at_watch()
            self._publish()
            await asyncio.sleep(_LOOK_EVERY)

    def _look_at_watch(self) -> None:
        now = self._clock()
        self._lingering = [(each, since) for each, since in self._lingering if not each.has_ended]
        watch = self._watch
        if watch is None:
            self._begin_watch()
            return
        if problem := watch.neglect():
            self._give_up(watch, "dead", problem)
            return
        down = watch.down()
        if not down and now - self._watch_begun >= _SETTLED_AFTER:
            self._watch_failures = 0
        for mark in [mark for mark in self._unreported if mark[0] in down]:
            del self._unreported[mark]  # the kind's next stream begins with a list
        late = next((mark for mark, (_, by) in self._unreported.items() if by <= now), None)
        if late is not None:
            kind, (space, name) = late
            self._give_up(watch, "blind", f"no watch reported a change of {kind.resource} {space}/{name}")

    def _hung(self) -> int:
        """Return how many abandoned threads still run after _HUNG_AFTER seconds."""
        now = self._clock()
        return sum(now - since > _HUNG_AFTER for _, since in self._lingering)

    def _begin_watch(self) -> None:
        """Begin a watch if none runs, the served kinds are known, and the back-off is over."""
        now = self._clock()
        if self._watch is not None or self.reach is None or now < self._watch_due:
            return
        if self._hung() > _MOST_HUNG:
            return
        metrics.WATCH_STARTS.inc()
        self._watch_begun = now
        self._watch = self._start_watch(self.reach.watchable, self)

    def _give_up(self, watch: RunningWatch, reason: str, problem: str) -> None:
        back_off = _RETRY[min(self._watch_failures, len(_RETRY) - 1)]
        self._watch_failures += 1
        self._watch_due = self._clock() + back_off
        metrics.WATCH_RESTARTS.labels(reason).inc()
        log.warning("watches given up: %s", problem, extra={"again_in_seconds": back_off})
        self._abandon_watch(watch)

    def _abandon_watch(self, watch: RunningWatch) -> None:
        watch.abandon()
        self._lingering.append((watch, self._clock()))
        self._watch = None
        self._unreported.clear()

    def _publish(self) -> None:
        health = self.health()
        metrics.KINDS_NOT_WATCHED.set(len(health.not_watching))
        metrics.API_REACHABLE.set(int(health.reachable))

    def _note(self, reach: Reach) -> bool:
        """Keep the new reach, log what changed, and return whether anything did."""
        before, self.reach = self.reach, reach
        metrics.DENIED_RIGHTS.set(len(reach.access.denied))
        if before is None or before.access.denied != reach.access.denied:
            if reach.access.denied:
                log.warning("rights missing: %s", ", ".join(reach.access.denied))
            elif before is not None:
                log.info("no right is missing any more")
        if before is None or before.watchable != reach.watchable:
            log.info("watching %s", ", ".join(sorted(kind.resource for kind in reach.watchable)))
        return before != reach


def _in_words(scopes: Mapping[str, Scope]) -> dict[str, str]:
    return {other: in_words(scope) for other, scope in scopes.items()}


async def _wait(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event, at most that many seconds (None: without limit); return whether it is set.

    Not `asyncio.wait_for`: before Python 3.12 it drops a cancellation that arrives together with the event.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
