"""Decisions that wait, behind the real Envoy."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from endpoint_picker.decision import Decision, Refusal, Resume, Waiting
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter
from envoy_stage import JSON, Stage, post, prompt, until


class Ticket(Waiting):
    """A request in the gate."""

    def __init__(self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume) -> None:
        self.request, self.subset, self.resume = request, subset, resume
        self.cancelled = False

    @override
    def cancel(self) -> None:
        self.cancelled = True


class Gate:
    """A pool's router whose decisions wait until `open` makes them, or `refuse` refuses them."""

    def __init__(self, router: PoolRouter) -> None:
        self._router = router
        self.tickets: list[Ticket] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def decide(self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume) -> Waiting:
        self.tickets.append(Ticket(request, subset, resume))
        return self.tickets[-1]

    def open(self) -> None:
        for ticket in self._taken():
            decision = self._router.decide(ticket.request, ticket.subset, ticket.resume)
            assert isinstance(decision, (Decision, Refusal))
            ticket.resume(decision)

    def refuse(self) -> None:
        for ticket in self._taken():
            ticket.resume(Refusal(Outcome.SATURATED, "the queue is full"))

    def _taken(self) -> list[Ticket]:
        taken, self.tickets = self.tickets, []
        return [each for each in taken if not each.cancelled]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, tmp_path / "envoy.log")


def gated(stage: Stage) -> Gate:
    gate = Gate(stage.router)
    stage.router = cast("PoolRouter", gate)
    return gate


async def test_requests_that_waited_are_served_whole(stage: Stage) -> None:
    gate = gated(stage)
    await stage.start(servers=2)
    bodies = [prompt(size, seed) for seed, size in enumerate((10, 50_000, 70_000, 3_000_000, 20_000_000))]
    asked = [asyncio.create_task(post(stage, body)) for body in bodies]
    async with asyncio.timeout(30):
        await until(lambda: len(gate.tickets) == len(bodies))
        assert stage.picker.budget.held_bytes == sum(len(body) for body in bodies)
        assert stage.servers[0].requests == stage.servers[1].requests == 0
        gate.open()
        answers = await asyncio.gather(*asked)
    assert [each["digest"] for each in answers] == [hashlib.sha256(body).hexdigest() for body in bodies]
    await stage.settled()


async def test_a_get_that_waited_is_served(stage: Stage) -> None:
    gate = gated(stage)
    await stage.start(servers=1)
    asked = asyncio.create_task(stage.client.get(f"{stage.url}/v1/models"))
    await until(lambda: len(gate.tickets) == 1)
    gate.open()
    async with await asked as response:
        assert await response.json() == {"server": stage.servers[0].address}
    await stage.settled()


async def test_a_request_that_waited_can_be_refused(stage: Stage) -> None:
    gate = gated(stage)
    await stage.start(servers=1)
    asked = asyncio.create_task(
        stage.client.post(f"{stage.url}/v1/completions", data=BytesIO(prompt(3_000_000)), headers=JSON)
    )
    await until(lambda: len(gate.tickets) == 1)
    gate.refuse()
    async with await asked as response:
        assert response.status == 429
        assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert stage.servers[0].requests == 0
    await stage.settled()


async def test_a_client_that_leaves_while_it_waits_is_taken_out(stage: Stage) -> None:
    gate = gated(stage)
    await stage.start(servers=1)
    asked = asyncio.create_task(post(stage, prompt(1_000_000)))
    await until(lambda: len(gate.tickets) == 1)
    asked.cancel()
    (ticket,) = gate.tickets
    await until(lambda: ticket.cancelled)
    gate.open()
    await stage.settled()
    assert stage.servers[0].requests == 0
