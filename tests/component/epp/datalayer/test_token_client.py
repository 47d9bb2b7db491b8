"""The calls for tokens against real HTTP servers that answer wrongly, and against a failing library."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from endpoint_picker.datalayer.prompt_reading import MAX_TOKENS
from endpoint_picker.datalayer.token_client import MAX_ANSWER, TokenClient
from endpoint_picker.datalayer.tokenizing import TokenizePlan, Tokenizing, Wait
from endpoint_picker.request import InferenceRequest
from simulator_process import new_host

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Asking:
    """A tokenizing pool of one server."""

    def __init__(self, backend: TokenizePlan) -> None:
        loop = asyncio.get_running_loop()
        self.released = asyncio.Event()
        self.tokenizing = Tokenizing(self.released.set)
        self.tokenizing.use(backend)
        self.client = TokenClient(self.tokenizing, loop, clock=loop.time)
        self.address = f"{new_host()}:8000"

    async def ask(self) -> tuple[str, bool]:
        """Ask about a prompt; return why there are no tokens, and whether the tokenizer is trusted."""
        request = InferenceRequest(request_id="r", model="m", headers={":path": "/v1/completions"})
        request.chunks = (b'{"prompt": "text"}',)
        now = asyncio.get_running_loop().time()
        assert isinstance(self.tokenizing.ask(request, [self.address], now), Wait)
        async with asyncio.timeout(30):
            await self.released.wait()
        assert request.tokens is not None
        assert not self.tokenizing.under_way
        return request.tokens.reason, self.tokenizing.is_trusted


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    made = Asking(TokenizePlan(budget=60.0, timeout=20.0))
    yield made
    await made.client.close()


async def answer_by(asking: Asking, handler: Handler, stack: list[web.AppRunner]) -> None:
    app = web.Application()
    app.router.add_post("/tokenize", handler)
    app.router.add_route("*", "/elsewhere", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    host, _, port = asking.address.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    stack.append(runner)


@pytest.fixture
async def serve(asking: Asking) -> AsyncIterator[Callable[[Handler], Awaitable[None]]]:
    runners: list[web.AppRunner] = []
    yield lambda handler: answer_by(asking, handler, runners)
    for runner in runners:
        await runner.cleanup()


async def test_a_redirect_is_not_followed(
    asking: Asking, serve: Callable[[Handler], Awaitable[None]]
) -> None:
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        if request.path == "/tokenize":
            raise web.HTTPTemporaryRedirect("/elsewhere")
        return web.json_response({"tokens": [1]})

    await serve(handler)
    assert await asking.ask() == ("failed", False)
    assert seen == ["/tokenize"]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(b"<html>", ("failed", False), id="no JSON"),
        pytest.param(b'{"tokens": [99999999999]}', ("failed", False), id="no token ids"),
        pytest.param(b'{"tokens": []}', ("refused", True), id="an empty prompt"),
        pytest.param(b'{"tokens": [' + b"1," * MAX_TOKENS + b"1]}", ("refused", True), id="many tokens"),
        pytest.param(b" " * (MAX_ANSWER + 1), ("refused", True), id="a long answer"),
    ],
)
async def test_wrong_answers(
    asking: Asking, serve: Callable[[Handler], Awaitable[None]], answer: bytes, found: tuple[str, bool]
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=answer)

    await serve(handler)
    assert await asking.ask() == found


async def test_an_answer_that_breaks_off(asking: Asking, serve: Callable[[Handler], Awaitable[None]]) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"tokens": [1')
        assert request.transport is not None
        request.transport.abort()
        return response

    await serve(handler)
    assert await asking.ask() == ("failed", False)


async def test_an_error_of_the_tokenizer_library_ends_the_call() -> None:
    # The library raises plain exceptions, for example for a text that its vocabulary cannot spell.
    made = Asking(TokenizePlan(backend="local", budget=60.0, file="/absent"))

    def encode(_text: str) -> list[int]:
        raise Exception("Missing [UNK] token")

    made.client._encode = encode
    assert await made.ask() == ("failed", False)
    await made.client.close()
