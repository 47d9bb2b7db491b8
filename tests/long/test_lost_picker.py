"""A picker that is frozen or killed under load costs what was in flight and one request an Envoy worker.

The real picker and the real Envoy with the operator's own bootstrap, no cluster: 50 freezes and 50 kills,
each on one worker and on two. After every second freeze the picker thaws; after the others it is killed and
begun anew, as its liveness probe does. Half of the losses come at once after the last return. A trial ends
when requests go through the picker again, so the requests that its return costs count too.

`make test-lost-picker` takes about 20 minutes. ARGS='-k "freeze and 2"' runs one of the four parts, and
LOST_PICKER_TRIALS=5 in the environment shortens each.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from typing_extensions import override

import pool_proxy
from pool_proxy import Proxy, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

TRIALS = int(os.environ.get("LOST_PICKER_TRIALS", "50"))
IN_FLIGHT = 16
#: What is sent this long after the loss must be served.
GRACE_S = 1.0
#: How long a picker stays away: longer than Envoy takes to drop the last connection to a frozen one.
AWAY_S = 3.0
ANSWER_S = 0.05
#: A client's pause after a failure. Envoy's threads need milliseconds to tell each other of a dead picker,
#: more on a starved machine. What is sent again sooner can meet the dead picker a second time.
RESEND_S = 0.05


@dataclass(slots=True)
class Sent:
    """One request: when it was sent and answered, and how."""

    start: float
    end: float
    status: int
    picked: bool


@dataclass(slots=True)
class Load:
    """Keeps IN_FLIGHT requests under way, each client on a connection of its own."""

    proxy: Proxy
    sent: list[Sent] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        clients = [asyncio.create_task(self._client(number)) for number in range(IN_FLIGHT)]
        try:
            yield self
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, number: int) -> None:
        body = json.dumps({"model": "m", "prompt": f"client {number}", "stream": number % 2 == 0})
        headers = {"content-type": "application/json"}
        url = f"{self.proxy.url}/v1/completions"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            while True:
                start, status, picked = time.monotonic(), 0, False
                try:
                    async with session.post(url, data=body, headers=headers) as response:
                        await response.read()
                        status = response.status
                        picked = response.headers.get("x-picked") == "yes"
                except aiohttp.ClientError:
                    pass
                self.sent.append(Sent(start, time.monotonic(), status, picked))
                if status != 200:
                    await asyncio.sleep(RESEND_S)

    async def until(self, count: int, *, picked: bool) -> None:
        """Wait until so many more requests were served, with the picker's help or without."""
        begun = time.monotonic()

        async def served() -> bool:
            recent = [each for each in self.sent[-4 * count :] if each.start > begun]
            return sum(each.status == 200 and each.picked == picked for each in recent) >= count

        await eventually(served, 60)


class Server(pool_proxy.ModelServer):
    """Answers after a while, and says whether the picker had chosen it."""

    @override
    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(ANSWER_S)
        picked = "x-gateway-destination-endpoint" in request.headers
        return web.Response(headers={"x-picked": "yes" if picked else "no"})


@dataclass(slots=True)
class Trial:
    number: int
    how: signal.Signals
    failed: int = 0
    late: int = 0

    @property
    def thaws(self) -> bool:
        return self.how is signal.SIGSTOP and self.number % 2 == 0

    @property
    def settled(self) -> bool:
        """Lost more than a second after its last return; else at once, while Envoy's news is fresh."""
        return self.number // 2 % 2 == 0

    def kept(self, workers: int) -> bool:
        return self.failed <= IN_FLIGHT + workers and not self.late

    @override
    def __str__(self) -> str:
        kind = f"{'settled, ' if self.settled else ''}{'thaws' if self.thaws else 'begun anew'}"
        return f"{self.number} ({kind}): {self.failed} failed, {self.late} of them late"


async def lose(proxy: Proxy, load: Load, folder: Path, how: signal.Signals, trial: Trial) -> list[Sent]:
    """Take the picker away and bring it back; return the requests that failed from then on."""
    if trial.settled:
        await load.until(20 * IN_FLIGHT, picked=True)
    load.sent.clear()
    lost_at = time.monotonic()
    proxy.signal_picker(how)
    await asyncio.sleep(AWAY_S)  # the time away is what is tested, not a condition to await
    await load.until(2 * IN_FLIGHT, picked=False)
    if trial.thaws:
        proxy.signal_picker(signal.SIGCONT)
    else:
        await proxy.end_picker()
        await proxy.start_real_picker(folder)
    await load.until(2, picked=True)
    failed = [each for each in load.sent if each.status != 200]
    for each in failed:
        each.start -= lost_at
        each.end -= lost_at
    return failed


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["freeze", "kill"])
async def test_a_lost_picker_costs_what_is_in_flight_and_one_a_worker(
    how: signal.Signals, workers: int, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        proxy = await pool_proxy.prepare(stack, fail_open=True, server=Server)
        await proxy.start_real_picker(tmp_path)
        log = Path(os.environ.get("LOST_PICKER_LOG", tmp_path / "envoy.log"))
        await pool_proxy.start_envoy(proxy, workers=workers, log=log)
        trials = []
        async with Load(proxy).running() as load:
            for number in range(TRIALS):
                trial = Trial(number, how)
                failed = await lose(proxy, load, tmp_path, how, trial)
                trial.failed, trial.late = len(failed), sum(each.start > GRACE_S for each in failed)
                trials.append(trial)
                print(trial, flush=True)
                for each in () if trial.kept(workers) else failed:
                    print(f"   {each.start:+.3f} .. {each.end:+.3f} s: {each.status}", flush=True)
    broken = [trial for trial in trials if not trial.kept(workers)]
    worst = max(trial.failed for trial in trials)
    print(
        f"{how.name} on {workers}: {len(trials)} trials, max {worst} failed, {len(broken)} beyond the bound"
    )
    assert not broken
