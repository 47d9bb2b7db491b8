"""One container of a pod over all its restarts: start, probe, stop. Pure modules make the decisions."""

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from local_cluster.node.backoff import Record, after_end, may_restart
from local_cluster.node.objects import Json
from local_cluster.node.probes import EAGER_S, Probe, Streak, ask, http_get
from local_cluster.node.runtime import Launch, Process, start
from local_cluster.node.status import Container, Running, Terminated, Waiting

_log = logging.getLogger(__name__)
_CANNOT_RUN: Final = "StartError"

#: Takes kind (Normal or Warning), reason and message.
PostEvent = Callable[[str, str, str], None]


def utc_now() -> datetime.datetime:
    """Return the time of day."""
    return datetime.datetime.now(datetime.UTC)


class ContainerRunner:
    """Owns the processes and probes of one container; `changed` is called whenever `view` may differ."""

    def __init__(self, spec: Json, pod: Json, changed: Callable[[], None], post_event: PostEvent) -> None:
        self.spec = spec
        self.view = Container(spec["name"], spec["image"])
        self._policy = pod["spec"].get("restartPolicy", "Always")
        self._grace_s = float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        self._changed = changed
        self._post_event = post_event
        self._record = Record()
        self._process: Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._address = ""

    def start_delay(self) -> float | None:
        """Return seconds until it should be started (0: now), None when it runs or has ended for good."""
        if self._life is not None or isinstance(self.view.state, Terminated):
            return None
        return max(self._record.not_before - time.monotonic(), 0.0)

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._life is not None

    def wait_for(self, reason: str, message: str) -> bool:
        """Report that it waits, and why; return False when that is its state already."""
        waiting = Waiting(reason, message)
        if self.view.state == waiting:
            return False
        self.view.state = waiting
        self._changed()
        return True

    async def start(self, launch: Launch, address: str) -> None:
        """Start the program. A failure to do so counts as a run that ended at once."""
        pid_file = launch.directory / "pid"
        self._process = process = await start(launch)
        pid_file.write_text(str(process.setup_pid))
        self._address = address
        if self.view.last is not None:
            self.view.restarts += 1
        self.view.state = Running(utc_now())
        self._life = asyncio.create_task(self._live(process))
        self._probing = asyncio.create_task(self._probe())
        self._life.add_done_callback(lambda _: pid_file.unlink(missing_ok=True))
        self._changed()
        self._post_event("Normal", "Started", f"Started container {self.view.name}")

    def stop(self, grace_s: float) -> asyncio.Task[None]:
        """Start its final stop: preStop, SIGTERM, SIGKILL after `grace_s` seconds. Return the stop's task."""
        self._policy = "Never"
        return self._begin_to_stop(grace_s)

    def _begin_to_stop(self, grace_s: float) -> asyncio.Task[None]:
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._stop(grace_s))
        return self._stopping

    def kill(self) -> None:
        """End all of its processes at once."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Kill it and wait until nothing of it is left."""
        self.kill()
        if self._life is not None:
            await asyncio.shield(self._life)
        if self._stopping is not None:
            self._stopping.cancel()
            await asyncio.gather(self._stopping, return_exceptions=True)

    async def _live(self, process: Process) -> None:
        began, since = time.monotonic(), utc_now()
        code, problem = await process.wait()
        if self._probing is not None:
            self._probing.cancel()
        view = self.view
        view.ready = view.started = False
        end = Terminated(code, since, utc_now(), _CANNOT_RUN if problem else "", problem)
        self._record = after_end(self._record, started=began, ended=time.monotonic())
        self._process = self._life = None
        if may_restart(self._policy, code):
            view.last = end
            wait_s = self._record.not_before - time.monotonic()
            view.state = Waiting("CrashLoopBackOff", f"back-off {wait_s:.0f}s restarting failed container")
        else:
            view.state = end
        self._changed()
        if problem:
            self._post_event("Warning", "Failed", f"Error: {problem}")
        elif isinstance(view.state, Waiting) and wait_s > 0:
            self._post_event("Warning", "BackOff", f"Back-off restarting failed container {view.name}")

    async def _stop(self, grace_s: float) -> None:
        process, life = self._process, self._life
        if process is None or life is None:
            return
        try:
            async with asyncio.timeout(grace_s):
                await self._pre_stop()
                process.terminate()
                await asyncio.shield(life)
        except TimeoutError:
            process.kill()
            await asyncio.shield(life)

    async def _pre_stop(self) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("preStop") or {}
        if "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"].get("seconds") or 0))
        elif "httpGet" in hook:
            with contextlib.suppress(OSError, ValueError, aiohttp.ClientError):
                await http_get(hook["httpGet"], self.spec, self._address)

    async def _probe(self) -> None:
        probes = {
            kind: Probe.parse(self.spec[f"{kind}Probe"])
            for kind in ("startup", "liveness", "readiness")
            if self.spec.get(f"{kind}Probe")
        }
        if "startup" in probes and not await self._has_started(probes["startup"]):
            return
        self.view.started = True
        self.view.ready = "readiness" not in probes
        self._changed()
        async with asyncio.TaskGroup() as group:
            if "readiness" in probes:
                group.create_task(self._watch_readiness(probes["readiness"]))
            if "liveness" in probes:
                group.create_task(self._watch_life("Liveness", probes["liveness"]))

    async def _has_started(self, probe: Probe) -> bool:
        return await self._watch_life("Startup", probe, until_passed=True)

    async def _watch_life(self, kind: str, probe: Probe, *, until_passed: bool = False) -> bool:
        """Probe until the container has to restart (False) or, with `until_passed`, until it is up (True)."""
        streak = Streak(probe)
        await asyncio.sleep(probe.initial_delay_s)
        while True:
            verdict = streak.add(await self._passes(kind, probe, eager=until_passed))
            if verdict is False:
                message = f"Container {self.view.name} failed {kind.lower()} probe, will be restarted"
                self._post_event("Normal", "Killing", message)
                self._begin_to_stop(probe.grace_s(self._grace_s))
                return False
            if verdict and until_passed:
                return True
            if not until_passed:
                await asyncio.sleep(probe.period_s)

    async def _watch_readiness(self, probe: Probe) -> None:
        streak = Streak(probe)
        await asyncio.sleep(probe.initial_delay_s)
        while True:
            verdict = streak.add(await self._passes("Readiness", probe, eager=not self.view.ready))
            if verdict is not None and verdict != self.view.ready:
                self.view.ready = verdict
                self._changed()
            if self.view.ready:
                await asyncio.sleep(probe.period_s)

    async def _passes(self, kind: str, probe: Probe, *, eager: bool) -> bool:
        """Probe once. Eager: repeat the probe every EAGER_S for one period, and fail only at its end."""
        deadline = time.monotonic() + (probe.period_s if eager else 0)
        while why := await ask(probe, self.spec, self._address):
            if time.monotonic() >= deadline:
                self._post_event("Warning", "Unhealthy", f"{kind} probe failed: {why}")
                return False
            await asyncio.sleep(EAGER_S)
        return True
