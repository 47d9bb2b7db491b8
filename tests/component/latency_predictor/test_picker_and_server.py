"""A picker's router and real prediction servers: whatever becomes of these, every request is decided."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal, Waiting
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.prediction_link import PredictionLink
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.waiting_timer import WaitingTimer
from latency_bundle import published
from latency_contract.states import State

CONFIG = """
plugins:
- {type: prediction-profile-handler}
- type: predicted-latency-producer
  parameters: {mode: All, streamingMode: true, holdoutPercent: 0, budgetMs: 200}
- {type: latency-scorer}
- {type: queue-scorer}
schedulingProfiles:
- {name: predicted, plugins: [{pluginRef: latency-scorer}]}
- {name: default, plugins: [{pluginRef: queue-scorer}]}
"""
#: Longest that a test awaits anything, in seconds.
LONG = 60.0


class Server:
    """A prediction server in a process of its own."""

    def __init__(self, models: Path, socket: Path) -> None:
        self.target = f"unix:{socket}"
        self._arguments = ["--models", str(models), "--listen", self.target, "--http", ""]
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "latency_predictor.serving.main", *self._arguments
        )

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


class Stage:
    def __init__(self, link: PredictionLink) -> None:
        self.router: PoolRouter = build_router(config_text=CONFIG, clock=time.monotonic)
        assert not self.router.config_error, self.router.config_error
        self.router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(4))
        rows = self.router.table.ready_rows
        self.router.table.waiting[rows] = [5, 0, 7, 9]
        self.router.table.scraped_at[rows] = time.monotonic()
        self.router.pool.desk.connect(link)
        self.timer = WaitingTimer(self.router, asyncio.get_running_loop())
        self.number = 0

    @property
    def counts(self) -> dict[Reason, int]:
        return self.router.pool.desk.counts

    async def decide(self) -> Decision:
        """Decide on a request, and end it."""
        self.number += 1
        request = InferenceRequest(request_id=str(self.number), model="m", prompt=b"p" * 4000)
        answer = asyncio.get_running_loop().create_future()
        found: Decision | Refusal | Waiting = self.router.decide(request, None, answer.set_result)
        if isinstance(found, Waiting):
            async with asyncio.timeout(LONG):
                found = await answer
        assert isinstance(found, Decision)
        self.router.ended(found, Record(time.monotonic()))
        return found

    async def until(self, reason: Reason) -> None:
        """Decide until a request is picked for this reason."""
        before = self.counts[reason]
        async with asyncio.timeout(LONG):
            while self.counts[reason] == before:
                await self.decide()
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def staged(tmp_path: Path, servers: int = 1) -> AsyncIterator[tuple[Stage, list[Server]]]:
    models = tmp_path / "models"
    models.mkdir()
    listed = [Server(models, tmp_path / f"{n}.sock") for n in range(servers)]
    link = PredictionLink([each.target for each in listed])
    stage = Stage(link)
    try:
        for each in listed:
            await each.start()
        yield stage, listed
    finally:
        stage.timer.close()
        await link.close()
        for each in listed:
            with contextlib.suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGCONT)
                await each.kill()


def test_a_picker_learns_that_a_model_has_come_and_predicts(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path) as (stage, _):
            await stage.until(Reason.WARMING)
            version = published(tmp_path / "models")
            await stage.until(Reason.PREDICTED)
            assert stage.router.pool.desk.version == version
            assert stage.router.state()["latencyPrediction"]["state"] == "trained"

    asyncio.run(run())


def test_a_new_bundle_is_used_without_a_call_that_fails(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path) as (stage, _):
            models = tmp_path / "models"
            published(models, 1)
            await stage.until(Reason.PREDICTED)
            failed = stage.counts[Reason.FAILED]
            for number in range(2, 8):
                version = published(models, number, seed=number)
                async with asyncio.timeout(LONG):
                    while stage.router.pool.desk.version != version:
                        await stage.decide()
            assert stage.counts[Reason.FAILED] == failed

    asyncio.run(run())


def test_killed_servers_cost_no_request_and_revived_ones_predict_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path) as (stage, (server,)):
            published(tmp_path / "models")
            await stage.until(Reason.PREDICTED)
            await server.kill()
            await stage.until(Reason.UNREACHABLE)
            # The heuristic profile picks: the shortest queue.
            assert (await stage.decide()).endpoint == "10.0.0.1:8000"
            await server.start()
            await stage.until(Reason.PREDICTED)

    asyncio.run(run())


def test_a_hung_server_costs_the_budget_and_is_left_out(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path) as (stage, (server,)):
            published(tmp_path / "models")
            await stage.until(Reason.PREDICTED)
            server.process.send_signal(signal.SIGSTOP)
            await stage.until(Reason.UNREACHABLE)
            server.process.send_signal(signal.SIGCONT)
            await stage.until(Reason.PREDICTED)

    asyncio.run(run())


def test_with_a_second_server_requests_stay_predicted_while_one_is_dead(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path, servers=2) as (stage, servers):
            published(tmp_path / "models")
            for number in range(2):
                other = PredictionLink([servers[number].target])
                alone = Stage(other)
                await alone.until(Reason.PREDICTED)
                alone.timer.close()
                await other.close()
            await stage.until(Reason.PREDICTED)
            await servers[0].kill()
            before = stage.counts[Reason.PREDICTED]
            for _ in range(50):
                await stage.decide()
            # Two failures leave the dead one out.
            assert stage.counts[Reason.PREDICTED] - before >= 40
            assert stage.counts[Reason.UNREACHABLE] == 0

    asyncio.run(run())


def test_a_corrupt_bundle_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path) as (stage, _):
            first = published(tmp_path / "models", 1)
            await stage.until(Reason.PREDICTED)
            second = tmp_path / "models" / published(tmp_path / "models", 2, seed=2)
            (second / "ttft.ubj").write_bytes(b"corrupt")
            third = published(tmp_path / "models", 3, state=State.DEGRADED)
            await stage.until(Reason.DEGRADED)
            assert stage.router.pool.desk.version == third != first

    asyncio.run(run())


@pytest.mark.parametrize("drains", [False, True])
def test_requests_are_decided_while_the_picker_drains(tmp_path: Path, drains: bool) -> None:
    async def run() -> None:
        async with staged(tmp_path) as (stage, (server,)):
            published(tmp_path / "models")
            await stage.until(Reason.PREDICTED)
            server.process.send_signal(signal.SIGSTOP)
            waiting = asyncio.create_task(stage.decide())
            await asyncio.sleep(0)
            if drains:
                stage.router.drain()
            assert (await waiting).endpoint
            assert (await stage.decide()).endpoint

    asyncio.run(run())
