"""List and watch against a scripted API server: what a real one does too seldom to wait for."""

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from cluster_client import list_watch
from cluster_client.access import ApiAccess
from cluster_client.api import KubernetesApi
from cluster_client.backoff import LONGEST_S
from cluster_client.collection import Change
from cluster_client.list_watch import STEADY_S, WATCH_S, ListWatch
from pool_space import until

PATH = "/api/v1/namespaces/ns/pods"
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
NO_JSON = b"this is no JSON\n"
LIMIT = 64 * 1024

Watch = Callable[[web.StreamResponse], Awaitable[None]]


def pod(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": version}, **more}


@dataclass(frozen=True)
class Refusal:
    """An answer that is neither list nor watch."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    """What the server answers: the next list and the next watch each time, the last ones for ever."""

    lists: list[Any]
    watches: list[Watch | Refusal]
    queries: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        answers = self.watches if "watch" in request.query else self.lists
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Refusal):
            body = {"kind": "Status", "message": f"no: {answer.status}"}
            return web.json_response(body, status=answer.status, headers=answer.headers)
        if not callable(answer):
            return web.json_response(answer)
        response = web.StreamResponse()
        if answer is not MUTE:
            await response.prepare(request)
        await answer(response)
        return response

    @property
    def watched_from(self) -> list[str]:
        return [query["resourceVersion"] for query in self.queries if "watch" in query]

    @property
    def listed(self) -> int:
        return len(self.queries) - len(self.watched_from)


def listed(version: str, *names: str, more: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return {"metadata": metadata, "items": [pod(name, "1") for name in names]}


def added(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"type": "ADDED", "object": pod(name, version, **more)}


def events(*sent: dict[str, Any], then_hang: bool = False) -> Watch:
    async def watch(response: web.StreamResponse) -> None:
        for event in sent:
            # In two pieces, as a network may.
            line = json.dumps(event).encode() + b"\n"
            await response.write(line[:10])
            await response.write(line[10:])
        if then_hang:
            await asyncio.Event().wait()

    return watch


def raw(*pieces: bytes, cut: bool = False) -> Watch:
    async def watch(response: web.StreamResponse) -> None:
        for piece in pieces:
            await response.write(piece)
        if cut:
            raise ConnectionResetError  # aiohttp closes the connection without the end of the body

    return watch


HANG = events(then_hang=True)


async def MUTE(_response: web.StreamResponse) -> None:  # noqa: N802 - one of the scripted answers
    """Take the request and send nothing, not even a head."""
    await asyncio.Event().wait()


class Short(random.Random):
    """Remembers the longest pause of each draw, and makes it short."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drawn: list[float] = []

    @override
    def uniform(self, a: float, b: float) -> float:
        if b == 1.0:  # a watch's share of WATCH_S
            return 1.0
        self.drawn.append(b)
        return b / 1000


@dataclass
class Following:
    """A list-watch under test and what it handed on."""

    watch: ListWatch[str]
    changes: list[Sequence[Change[str]]]

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.watch.objects}


def version_of(item: Any) -> str:
    return str(item["metadata"]["resourceVersion"])


@asynccontextmanager
async def following(
    script: Script,
    token_file: Path | None = None,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.monotonic,
    silence_s: float = 90.0,
    answer_s: float = 90.0,
    slack_s: float = 30.0,
    reduce: Callable[[Any], str | None] = version_of,
) -> AsyncIterator[Following]:
    app = web.Application()
    app.router.add_get(PATH, script.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubernetesApi(
        ApiAccess(f"http://127.0.0.1:{runner.addresses[0][1]}", token_file=token_file),
        watch_silence_s=silence_s,
        answer_timeout_s=answer_s,
        watch_slack_s=slack_s,
        max_object_bytes=LIMIT,
    )
    changes: list[Sequence[Change[str]]] = []
    watch: ListWatch[str] = ListWatch(
        api,
        PATH,
        selector={"labelSelector": "app=x"},
        reduce=reduce,
        changed=changes.append,
        rng=rng or Short(),
        clock=clock,
    )
    task = asyncio.create_task(watch.run())
    try:
        yield Following(watch, changes)
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        await runner.cleanup()


async def test_lists_come_in_pages_and_watches_start_where_they_end() -> None:
    script = Script([listed("7", "a", more="next"), listed("7", "b")], [HANG])
    async with following(script) as seen:
        await until(lambda: script.watched_from == ["7"])
        assert seen.names == {"a", "b"}
        assert [query.get("continue") for query in script.queries] == [None, "next", None]
        assert all(query["labelSelector"] == "app=x" for query in script.queries)
        assert script.queries[0]["limit"] == "250"
        assert script.queries[-1]["timeoutSeconds"] == str(WATCH_S)
        assert script.queries[-1]["allowWatchBookmarks"] == "true"


async def test_a_list_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_watch, "MAX_PAGES", 3)
    script = Script([listed("7", "a", more="next")], [HANG])
    async with following(script) as seen:
        await until(lambda: "more than 3 pages" in seen.watch.error)
        assert not seen.watch.synced


async def test_an_ended_watch_goes_on_where_the_last_bookmark_was() -> None:
    first = events(
        added("b", "8"),
        {"type": "DELETED", "object": pod("a", "9")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
    )
    script = Script([listed("7", "a")], [first, HANG])
    async with following(script) as seen:
        await until(lambda: script.watched_from == ["7", "20"])
        assert seen.names == {"b"}
        assert script.listed == 1


async def test_changes_are_handed_on_with_the_value_before_and_after() -> None:
    same = {"type": "MODIFIED", "object": pod("b", "8")}
    script = Script([listed("7", "a")], [events(added("b", "8"), same, then_hang=True)])
    async with following(script) as seen:
        await until(lambda: len(seen.changes) == 2)
        assert seen.changes == [
            [Change(("ns", "a"), None, "1")],
            [Change(("ns", "b"), None, "8")],
        ]


async def test_an_empty_collection_is_handed_on_too() -> None:
    async with following(Script([listed("7")], [HANG])) as seen:
        await until(lambda: seen.changes == [[]])
        assert seen.watch.synced


@pytest.mark.parametrize("refused", [events(GONE), Refusal(410), Refusal(504), Refusal(404), Refusal(400)])
async def test_a_watch_that_cannot_go_on_lists_again_and_what_is_gone_is_gone(
    refused: Watch | Refusal,
) -> None:
    script = Script([listed("7", "a", "b"), listed("30", "b", "c")], [refused, HANG])
    async with following(script) as seen:
        await until(lambda: script.watched_from == ["7", "30"])
        assert seen.names == {"b", "c"}


async def test_a_list_that_expires_between_pages_is_begun_anew() -> None:
    script = Script([listed("7", "a", more="next"), Refusal(410), listed("30", "b")], [HANG])
    async with following(script) as seen:
        await until(lambda: script.watched_from == ["30"])
        assert seen.names == {"b"}


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_refusals_are_told_and_waited_out(status: int) -> None:
    script = Script([Refusal(status), Refusal(status), listed("7", "a")], [HANG])
    async with following(script, rng=random.Random(1)) as seen:
        await until(lambda: f"no: {status}" in seen.watch.error)
        assert not seen.watch.synced
        await until(lambda: seen.names == {"a"})
        assert seen.watch.error == ""


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_refused_watch_goes_on_without_a_new_list(status: int) -> None:
    script = Script([listed("7", "a")], [Refusal(status), HANG])
    async with following(script):
        await until(lambda: script.watched_from == ["7", "7"])
        assert script.listed == 1


async def test_a_server_that_asks_to_be_left_alone_is() -> None:
    pauses = Short()
    script = Script([Refusal(429, {"Retry-After": "7"}), listed("7", "a")], [HANG])
    async with following(script, rng=pauses) as seen:
        await until(lambda: seen.names == {"a"})
    assert 1.25 * 7 in pauses.drawn


async def test_a_silent_watch_is_given_up_and_the_collection_listed_again() -> None:
    script = Script(
        [listed("7", "a", "b"), listed("30", "b")], [events(added("c", "8"), then_hang=True), HANG]
    )
    async with following(script, silence_s=0.3) as seen:
        await until(lambda: script.watched_from[:2] == ["7", "30"])
        assert seen.names == {"b"}


async def test_a_watch_that_is_not_answered_is_given_up() -> None:
    script = Script([listed("7", "a"), listed("30", "b")], [MUTE, HANG])
    async with following(script, answer_s=0.3) as seen:
        await until(lambda: script.watched_from == ["7", "30"])
        assert seen.names == {"b"}


async def test_a_watch_that_outlives_its_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores timeoutSeconds and goes on with bookmarks, perhaps of a watch that is stuck."""
    monkeypatch.setattr(list_watch, "WATCH_S", 0)

    async def for_ever(response: web.StreamResponse) -> None:
        while True:
            await events({"type": "BOOKMARK", "object": pod("", "8")})(response)
            await asyncio.sleep(0.05)

    script = Script([listed("7", "a"), listed("30", "b")], [for_ever, HANG])
    async with following(script, slack_s=0.5) as seen:
        await until(lambda: "30" in script.watched_from)
        assert seen.names == {"b"}


async def test_what_is_known_stays_while_the_server_is_away() -> None:
    script = Script([listed("7", "a")], [raw(NO_JSON), raw(NO_JSON), HANG])
    async with following(script, rng=random.Random(1)) as seen:
        await until(lambda: seen.watch.error)
        assert seen.names == {"a"}
        await until(lambda: len(script.watched_from) == 3)
        assert script.listed == 1


HALF = json.dumps(added("c", "9")).encode()[:20]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(raw(NO_JSON), id="no JSON"),
        pytest.param(raw(b"[]\n"), id="no object"),
        pytest.param(raw(HALF), id="half a line"),
        pytest.param(raw(HALF, cut=True), id="cut in a line"),
        pytest.param(raw(b"{" * (LIMIT + 1)), id="a line that does not end"),
    ],
)
async def test_a_watch_that_breaks_goes_on_where_it_was(end: Watch) -> None:
    async def breaks(response: web.StreamResponse) -> None:
        await events(added("b", "8"))(response)
        await end(response)

    script = Script([listed("7", "a")], [breaks, HANG])
    async with following(script) as seen:
        await until(lambda: script.watched_from == ["7", "8"])
        assert seen.names == {"a", "b"}
        assert script.listed == 1


async def test_a_long_event_is_read() -> None:
    long = added("b", "8", spec={"text": "x" * (LIMIT - 1000)})
    async with following(Script([listed("7", "a")], [events(long, then_hang=True)])) as seen:
        await until(lambda: seen.names == {"a", "b"})


async def test_a_list_page_that_is_too_long_is_refused() -> None:
    page = {**listed("7"), "items": [pod("a", "1", spec="x" * LIMIT)]}
    async with following(Script([page, listed("8", "b")], [HANG]), rng=random.Random(1)) as seen:
        await until(lambda: "too long" in seen.watch.error)
        await until(lambda: seen.names == {"b"})


async def test_an_object_that_cannot_be_read_counts_as_absent_and_the_others_are_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strange = {"metadata": {"namespace": "ns", "name": "x"}}
    page = {"metadata": {"resourceVersion": "7"}, "items": [strange, pod("a", "1"), pod("b", "1")]}
    changed = events({"type": "MODIFIED", "object": strange | {"spec": {}}}, added("c", "9"), then_hang=True)
    async with following(Script([page], [changed])) as seen:
        await until(lambda: seen.names == {"a", "b", "c"})
        assert seen.watch.error == ""
    assert len([each for each in caplog.records if "cannot be read" in each.message]) == 1


async def test_an_object_that_reduces_to_nothing_is_not_held() -> None:
    script = Script([listed("7", "a", "b")], [HANG])
    async with following(
        script, reduce=lambda item: None if item["metadata"]["name"] == "a" else "1"
    ) as seen:
        await until(lambda: seen.watch.synced)
        assert seen.names == {"b"}


async def test_the_token_is_read_again_for_every_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    turn = asyncio.Event()

    async def until_renewed(_response: web.StreamResponse) -> None:
        await turn.wait()

    script = Script([listed("7", "a")], [until_renewed, HANG])
    async with following(script, token):
        await until(lambda: len(script.tokens) == 2)
        token.write_text("second\n")
        turn.set()
        await until(lambda: len(script.tokens) == 3)
    assert script.tokens == ["Bearer first", "Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    "said", [json.dumps(GONE).encode() + b"\n", NO_JSON, b"", json.dumps(added("b", "8")).encode() + b"\n"]
)
async def test_watches_that_end_at_once_are_asked_for_less_and_less_often(said: bytes) -> None:
    pauses, script = Short(), Script([listed("7", "a")], [raw(said) if said else raw()])
    async with following(script, rng=pauses):
        await until(lambda: LONGEST_S in pauses.drawn)
    assert len(script.watched_from) < 12


async def test_a_watch_that_worked_for_a_while_is_asked_for_again_at_once() -> None:
    now = [0.0]

    async def a_while(response: web.StreamResponse) -> None:
        await events(added("b", "8"))(response)
        now[0] += STEADY_S

    pauses, script = Short(), Script([listed("7", "a")], [*[raw()] * 5, a_while, HANG])
    async with following(script, rng=pauses, clock=lambda: now[0]):
        await until(lambda: len(script.watched_from) == 7)
    assert pauses.drawn == [*sorted(pauses.drawn[:-1]), pauses.drawn[0]]


async def test_a_watch_that_flaps_is_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def flaps(response: web.StreamResponse) -> None:
        await events(added("b", "8"))(response)
        await response.write(NO_JSON)

    script = Script([listed("7", "a")], [flaps])
    async with following(script):
        await until(lambda: len(script.watched_from) > 20)
    assert len([each for each in caplog.records if each.name == list_watch.__name__]) <= 2


async def test_a_consumer_that_fails_once_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    script = Script([listed("7", "a"), listed("8", "b")], [HANG])
    async with following(script) as seen:
        failing = [True]

        def changed(_: object) -> None:
            if failing.pop() if failing else False:
                raise RuntimeError("a fault of the consumer")

        seen.watch._changed = changed
        await until(lambda: script.watched_from == ["8"])
        assert seen.names == {"b"}
    assert [each.exc_info for each in caplog.records if "internal fault" in each.message]


@pytest.mark.parametrize("moment", ["listing", "watching", "pausing"])
async def test_it_ends_when_it_is_cancelled(moment: str) -> None:
    lists = [MUTE] if moment == "listing" else [listed("7", "a")]
    script = Script(lists, [Refusal(500)] if moment == "pausing" else [HANG])
    pauses = random.Random(1)
    async with following(script, rng=pauses):
        await until(lambda: len(script.queries) >= (1 if moment == "listing" else 2))
    # Leaving the block cancels the task and waits for it.
