"""Asking a picker over a real socket: what it says, what it cannot say, and that nobody waits for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from inference_api.offered import OFFERED_PATH, Offered, OfferedText, Uses
from inference_api.picker_health import PickerHealth, PortHealth
from inference_operator.core.endpoints import EndpointTally
from inference_operator.core.kinds import Kind, Object, PoolKey
from inference_operator.core.picker_answers import PickerAnswer, Question
from inference_operator.shell.api import Api, ApiUnavailable
from inference_operator.shell.ask_picker import PickerAsker

KEY: PoolKey = ("ns", "llm")
HOST = "127.0.94.1"
GOOD = Offered(config=OfferedText(mark="new"))
OLD = Offered(config=OfferedText(mark="old"))
BAD = Offered(config=OfferedText(mark="new", error="plugins[0].type", uses=Uses.DEFAULT))


class Pods(Api):
    """An API server that knows one picker pod; or is away."""

    __slots__ = ("away", "ready")

    def __init__(self) -> None:
        self.away = False
        self.ready = True

    @override
    async def list_all(
        self, kind: Kind, namespace: str | None = None, selector: str = "", *, cached: bool = False
    ) -> tuple[list[Object], int]:
        if self.away:
            raise ApiUnavailable("away")
        assert "app=llm-epp" in selector
        conditions = [{"type": "Ready", "status": "True" if self.ready else "False"}]
        status = {"podIP": HOST, "conditions": conditions}
        return [{"metadata": {"name": "p0"}, "status": status}], 1


class Picker:
    """The metrics port of a picker: answers with `body`, and counts."""

    def __init__(self) -> None:
        self.bodies: list[str | Offered] = []
        self.asked = 0
        self.status = 200
        self.port = 0

    async def answer(self, _request: web.Request) -> web.Response:
        self.asked += 1
        body = self.bodies[0] if len(self.bodies) == 1 else self.bodies.pop(0)
        text = body.model_dump_json() if isinstance(body, Offered) else body
        return web.Response(text=text, status=self.status, headers={"location": "/elsewhere"})


@asynccontextmanager
async def serving(*bodies: str | Offered) -> AsyncIterator[Picker]:
    picker = Picker()
    picker.bodies = list(bodies)
    app = web.Application()
    app.router.add_get(OFFERED_PATH, picker.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    picker.port = runner.addresses[0][1]
    try:
        yield picker
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(pods: Pods, again_after: float = 1000.0) -> AsyncIterator[tuple[PickerAsker, asyncio.Event]]:
    woken = asyncio.Event()
    asker = PickerAsker(pods, lambda _key: woken.set(), again_after)
    try:
        yield asker, woken
    finally:
        await asker.close()


def about(port: int, mark: str = "new", deployment: str = "1") -> Question:
    return Question(namespace="ns", app="llm-epp", port=port, mark=mark, deployment=deployment)


async def answer_of(asker: PickerAsker, woken: asyncio.Event, question: Question) -> PickerAnswer:
    """Ask, wait for the news, and return it."""
    woken.clear()
    assert asker.ask(KEY, question).asking
    async with asyncio.timeout(60):
        await woken.wait()
    return asker.ask(KEY, question)


@pytest.mark.parametrize("answer", [GOOD, BAD])
async def test_it_hands_on_what_the_picker_says(answer: Offered) -> None:
    async with serving(answer) as picker, asking(Pods()) as (asker, woken):
        assert await answer_of(asker, woken, about(picker.port)) == PickerAnswer(answer=answer)
        assert picker.asked == 1


async def test_it_asks_until_the_picker_has_seen_the_text() -> None:
    async with serving(OLD, OLD, BAD) as picker, asking(Pods()) as (asker, woken):
        assert await answer_of(asker, woken, about(picker.port)) == PickerAnswer(answer=BAD)
        assert picker.asked == 3


async def test_the_same_question_is_not_asked_twice_and_another_one_at_once() -> None:
    async with serving(GOOD) as picker, asking(Pods()) as (asker, woken):
        await answer_of(asker, woken, about(picker.port))
        for _ in range(3):
            assert asker.ask(KEY, about(picker.port)) == PickerAnswer(answer=GOOD)
        await answer_of(asker, woken, about(picker.port, deployment="2"))
        assert picker.asked == 2


async def test_a_round_that_was_killed_does_not_end_the_asking() -> None:
    async with serving(GOOD) as picker, asking(Pods(), again_after=0.0) as (asker, woken):
        assert asker.ask(KEY, about(picker.port)).asking
        (task,) = (each for each in asyncio.all_tasks() if each.get_name().startswith("ask "))
        task.cancel()
        await asyncio.wait([task])
        asker.ask(KEY, about(picker.port))
        async with asyncio.timeout(60):
            await woken.wait()
        assert asker.ask(KEY, about(picker.port)) == PickerAnswer(answer=GOOD)


async def test_a_resync_asks_again_and_wakes_only_for_news() -> None:
    async with serving(GOOD, GOOD, BAD) as picker, asking(Pods(), again_after=0.0) as (asker, woken):
        await answer_of(asker, woken, about(picker.port))
        woken.clear()
        asker.ask(KEY, about(picker.port))
        await until(lambda: picker.asked == 2)
        assert not woken.is_set()
        await until(lambda: asker.ask(KEY, about(picker.port)).answer == BAD)
        assert woken.is_set()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param("not JSON", 200, id="not JSON"),
        pytest.param("[" * 100_000, 200, id="too long"),
        pytest.param(GOOD, 404, id="another version"),
        pytest.param(GOOD, 302, id="a redirect"),
    ],
)
async def test_what_is_no_answer_leaves_the_last_one(body: Any, status: int) -> None:
    async with serving(GOOD, body) as picker, asking(Pods(), again_after=0.0) as (asker, woken):
        await answer_of(asker, woken, about(picker.port))
        picker.status = status
        woken.clear()
        asker.ask(KEY, about(picker.port))
        async with asyncio.timeout(60):
            await woken.wait()
        now = asker.ask(KEY, about(picker.port))
        assert now.answer == GOOD
        assert "pod p0" in now.problem


async def test_nothing_raises_when_nobody_is_there() -> None:
    pods = Pods()
    async with serving(GOOD) as picker, asking(pods, again_after=0.0) as (asker, woken):
        await answer_of(asker, woken, about(picker.port))
        pods.away = True
        await until(lambda: "listed" in asker.ask(KEY, about(picker.port)).problem)
        pods.away, pods.ready = False, False
        await until(lambda: "ready" in asker.ask(KEY, about(picker.port)).problem)
        assert asker.ask(KEY, about(picker.port)).answer == GOOD
        assert asker.ask(KEY, None) == PickerAnswer(answer=GOOD)
        asker.forget(KEY)
        assert asker.ask(KEY, None) == PickerAnswer()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the state of another task has no event
            await asyncio.sleep(0.01)


def seeing(refused: int, *, settled: bool) -> Offered:
    health = PickerHealth(ports=(PortHealth(port=8000, total=3, refused=refused),), settled=settled)
    return GOOD.model_copy(update={"health": health})


async def test_what_a_picker_sees_is_told_at_once_and_asked_again_until_it_is_settled() -> None:
    first, last = seeing(0, settled=False), seeing(3, settled=True)
    async with serving(first, last) as picker, asking(Pods()) as (asker, woken):
        asker.ask(KEY, about(picker.port))
        for expected in (first, last):
            async with asyncio.timeout(60):
                await woken.wait()
            woken.clear()
            assert asker.ask(KEY, about(picker.port)).health == expected.health


@pytest.mark.parametrize(
    "early",
    [
        pytest.param(PickerHealth(), id="no ready endpoint yet"),
        pytest.param(PickerHealth(ports=(PortHealth(port=8000, total=3),)), id="the ports of before"),
        pytest.param(PickerHealth(ports=(PortHealth(port=8001, total=2),)), id="some of the endpoints"),
    ],
)
async def test_it_asks_until_the_picker_has_heard_of_all_endpoints_that_the_pool_has(
    early: PickerHealth,
) -> None:
    last = PickerHealth(ports=(PortHealth(port=8001, total=3, refused=3),))
    said = [GOOD.model_copy(update={"health": health}) for health in (early, early, last)]
    async with serving(*said) as picker, asking(Pods()) as (asker, _woken):
        question = replace(about(picker.port), endpoints=EndpointTally(3, 3), ports=(8001,))
        await until(lambda: asker.ask(KEY, question).health == last)
        assert picker.asked == 3


async def test_a_change_of_the_endpoints_is_asked_about_at_once() -> None:
    async with serving(seeing(0, settled=True), seeing(3, settled=True)) as picker:
        async with asking(Pods()) as (asker, woken):
            question = about(picker.port)
            asker.ask(KEY, question)
            async with asyncio.timeout(60):
                await woken.wait()
            woken.clear()
            asker.ask(KEY, replace(question, endpoints=EndpointTally(3, 3)))
            async with asyncio.timeout(60):
                await woken.wait()
            assert picker.asked == 2
