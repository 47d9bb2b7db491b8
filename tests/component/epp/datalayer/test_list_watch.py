"""List and watch against a scripted API server: what a real one does too seldom to wait for."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from endpoint_picker.datalayer.kubernetes_api import ApiAccess, ApiError, KubernetesApi
from endpoint_picker.datalayer.list_watch import LONGEST_PAUSE_S, ListWatch
from pool_space import until

PATH = "/api/v1/namespaces/ns/pods"
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}

Watch = Callable[[web.StreamResponse], Awaitable[None]]


def pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": version}}


@dataclass
class Script:
    """What the server answers: the next list and the next watch each time, the last ones for ever."""

    lists: list[Any]
    watches: list[Watch]
    queries: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if "watch" not in request.query:
            answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            if isinstance(answer, int):
                return web.json_response({"kind": "Status", "message": f"no: {answer}"}, status=answer)
            return web.json_response(answer)
        watch = self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]
        response = web.StreamResponse()
        await response.prepare(request)
        await watch(response)
        return response

    @property
    def watched_from(self) -> list[str]:
        return [query["resourceVersion"] for query in self.queries if "watch" in query]


def listed(version: str, *names: str, more: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return {"metadata": metadata, "items": [pod(name, "1") for name in names]}


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


HANG = events(then_hang=True)


@asynccontextmanager
async def following(
    script: Script, token_file: Path | None = None, rng: random.Random | None = None
) -> AsyncIterator[ListWatch[str]]:
    app = web.Application()
    app.router.add_get(PATH, script.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubernetesApi(ApiAccess(f"http://127.0.0.1:{runner.addresses[0][1]}", token_file=token_file))
    watch: ListWatch[str] = ListWatch(
        api,
        PATH,
        selector={"labelSelector": "app=x"},
        reduce=lambda item: str(item["metadata"]["resourceVersion"]),
        changed=lambda: None,
        rng=rng or random.Random(1),
    )
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        await runner.cleanup()


def names(watch: ListWatch[str]) -> set[str]:
    return {name for _, name in watch.objects}


async def test_lists_come_in_pages_and_watches_start_where_they_end() -> None:
    script = Script([listed("7", "a", more="next"), listed("7", "b")], [HANG])
    async with following(script) as watch:
        await until(lambda: script.watched_from == ["7"])
        assert names(watch) == {"a", "b"}
        assert script.queries[1]["continue"] == "next"
        assert all(query["labelSelector"] == "app=x" for query in script.queries)


async def test_an_ended_watch_goes_on_where_the_last_bookmark_was() -> None:
    first = events(
        {"type": "ADDED", "object": pod("b", "8")},
        {"type": "DELETED", "object": pod("a", "9")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
    )
    script = Script([listed("7", "a")], [first, HANG])
    async with following(script) as watch:
        await until(lambda: script.watched_from == ["7", "20"])
        assert names(watch) == {"b"}


@pytest.mark.parametrize("as_status", [True, False])
async def test_a_watch_too_old_lists_again_and_what_is_gone_is_gone(as_status: bool) -> None:
    async def refused(response: web.StreamResponse) -> None:
        await events(GONE)(response)

    script = Script([listed("7", "a", "b"), listed("30", "b", "c")], [refused, HANG])
    if as_status:
        script = Script([listed("7", "a", "b"), 410, listed("30", "b", "c")], [refused, HANG])
    async with following(script) as watch:
        await until(lambda: script.watched_from[-1:] == ["30"])
        assert names(watch) == {"b", "c"}


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_refusals_are_told_and_waited_out(status: int) -> None:
    script = Script([status, status, listed("7", "a")], [HANG])
    async with following(script) as watch:
        await until(lambda: f"no: {status}" in watch.error)
        assert not watch.synced
        await until(lambda: names(watch) == {"a"})
        assert watch.error == ""


async def test_what_is_known_stays_while_the_server_is_away() -> None:
    async def broken(response: web.StreamResponse) -> None:
        await response.write(b"this is no JSON\n")

    script = Script([listed("7", "a")], [broken, broken, HANG])
    async with following(script) as watch:
        await until(lambda: watch.error)
        assert names(watch) == {"a"}
        await until(lambda: len(script.watched_from) == 3)
        assert len([query for query in script.queries if "watch" not in query]) == 1


async def test_an_object_that_we_cannot_read_does_not_end_the_watch() -> None:
    strange = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "x"}}]}
    script = Script([strange, listed("8", "a")], [HANG])
    async with following(script) as watch:
        await until(lambda: names(watch) == {"a"})


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


def test_access_from_inside_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="KUBERNETES_SERVICE_HOST"):
        ApiAccess.in_cluster(tmp_path, {})
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ApiError, match="ServiceAccount token"):
        ApiAccess.in_cluster(tmp_path, env)
    (tmp_path / "token").write_text("t")
    access = ApiAccess.in_cluster(tmp_path, env)
    assert access.server == "https://[fd00::1]:6443"
    assert access.headers() == {"Authorization": "Bearer t"}


CONTEXT = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "contexts: []",
        "current-context: x\ncontexts: []",
        "{",
        "!!int ''",
        CONTEXT + "clusters: [{name: c, cluster: {server: https://x, certificate-authority-data: '#'}}]\n"
        "users: [{name: u, user: {}}]",
        CONTEXT + "clusters: [{name: c, cluster: {server: https://x, certificate-authority: nowhere}}]\n"
        "users: [{name: u, user: {}}]",
    ],
)
def test_a_kubeconfig_without_a_usable_context(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ApiError, match="current context"):
        ApiAccess.from_kubeconfig(path)


async def test_a_watch_that_breaks_goes_on_where_it_was() -> None:
    async def breaks(response: web.StreamResponse) -> None:
        await events({"type": "ADDED", "object": pod("b", "8")})(response)
        await response.write(b"this is no JSON\n")

    script = Script([listed("7", "a")], [breaks, HANG])
    async with following(script) as watch:
        await until(lambda: len(script.watched_from) == 2)
        assert script.watched_from == ["7", "8"]
        assert names(watch) == {"a", "b"}


class Short(random.Random):
    """Remembers the longest pause of each draw, and makes it short."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drawn: list[float] = []

    @override
    def uniform(self, a: float, b: float) -> float:
        self.drawn.append(b)
        return b / 1000


NO_JSON = b"this is no JSON\n"


@pytest.mark.parametrize("said", [json.dumps(GONE).encode() + b"\n", NO_JSON, b""])
async def test_watches_that_bring_nothing_are_asked_for_less_and_less_often(said: bytes) -> None:
    async def watch(response: web.StreamResponse) -> None:
        if said:
            await response.write(said)

    pauses, script = Short(), Script([listed("7", "a")], [watch])
    async with following(script, rng=pauses):
        await until(lambda: LONGEST_PAUSE_S in pauses.drawn)
    assert len(script.watched_from) < 12
