"""The official client libraries and curl, through the real Envoy and the picker, against simulated servers.

What they return and raise is compared with the same call to a server itself.
"""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from envoy_stage import Stage, until
from simulator_process import Simulator, new_host, spawn

KEY = "sk-right"
PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG not really").decode()
FLAGS = ("--model", "m", "--time-scale", "50", "--api-key", KEY, "--admin", "--mean-output-tokens", "24")


@dataclass(frozen=True)
class Server:
    """A model server as the stage offers it."""

    address: str


class Clients:
    """Both libraries' clients of one base URL."""

    def __init__(self, url: str, key: str = KEY, retries: int = 0) -> None:
        # Any: the overloads of their methods take no plain dictionaries.
        self.openai: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries)
        self.anthropic: Any = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=retries)

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()


class Libraries:
    """A stage with simulated servers, and clients of it (`via`) and of the first server itself (`direct`)."""

    def __init__(self, stage: Stage, servers: list[Simulator]) -> None:
        self.stage = stage
        self.servers = servers
        self.via = Clients(stage.url)
        self.direct = Clients(servers[0].url)


@pytest.fixture
async def libraries(tmp_path: Path) -> AsyncIterator[Libraries]:
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            server = await spawn(*FLAGS, host=new_host())
            stack.push_async_callback(server.process.communicate)
            stack.callback(server.process.kill)
            servers.append(server)
        for server in servers:
            await server.until_health(200)
        stage = Stage(stack, tmp_path / "envoy.log")
        await stage.start(servers=0)
        stage.offer(*(Server(f"{server.host}:8000") for server in servers))
        made = Libraries(stage, servers)
        stack.push_async_callback(made.via.close)
        stack.push_async_callback(made.direct.close)
        yield made


Call = Callable[[Clients], Awaitable[Any]]
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


async def chat(clients: Clients) -> Any:
    done = await clients.openai.chat.completions.create(model="m", messages=HELLO)
    assert done.usage
    return done.choices[0].message.content, done.usage.completion_tokens, done.choices[0].finish_reason


async def chat_stream(clients: Clients) -> Any:
    stream = await clients.openai.chat.completions.create(
        model="m",
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage
    text = "".join([each.choices[0].delta.content or "" for each in chunks if each.choices])
    return text, chunks[-1].usage.completion_tokens, len(chunks)


async def tools(clients: Clients) -> Any:
    done = await clients.openai.chat.completions.create(
        model="m",
        messages=HELLO,
        tools=[TOOL],
        tool_choice="required",
    )
    (call,) = done.choices[0].message.tool_calls
    return call.function.name, json.loads(call.function.arguments), done.choices[0].finish_reason


async def tools_stream(clients: Clients) -> Any:
    stream = await clients.openai.chat.completions.create(
        model="m",
        messages=HELLO,
        tools=[TOOL],
        tool_choice="required",
        stream=True,
    )
    pieces = [
        call.function.arguments
        async for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    return json.loads("".join(pieces))


async def image(clients: Clients) -> Any:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    done = await clients.openai.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": content}],
    )
    assert done.usage
    return done.choices[0].message.content, done.usage.prompt_tokens


async def batch(clients: Clients) -> Any:
    done = await clients.openai.completions.create(model="m", prompt=["one", "two", "three"], max_tokens=4)
    return [(each.index, each.text) for each in done.choices]


async def responses(clients: Clients) -> Any:
    done = await clients.openai.responses.create(model="m", input="Hello")
    assert done.usage
    return done.output_text, done.usage.output_tokens, done.status


async def responses_stream(clients: Clients) -> Any:
    stream = await clients.openai.responses.create(model="m", input="Hello", stream=True)
    return [(event.type, getattr(event, "delta", "")) async for event in stream]


async def embeddings(clients: Clients) -> Any:
    done = await clients.openai.embeddings.create(model="m", input=["a", "b"])
    return [each.embedding for each in done.data], done.usage.prompt_tokens


async def audio(clients: Clients) -> Any:
    file = ("speech.wav", io.BytesIO(bytes(range(256)) * 300), "audio/wav")
    return (await clients.openai.audio.transcriptions.create(model="m", file=file)).text


async def drawing(clients: Clients) -> Any:
    done = await clients.openai.images.generate(model="m", prompt="a cat", n=2)
    return [each.b64_json for each in done.data or ()]


async def models(clients: Clients) -> Any:
    return [each.id async for each in clients.openai.models.list()]


async def messages(clients: Clients) -> Any:
    done = await clients.anthropic.messages.create(
        model="m",
        max_tokens=12,
        system="Be brief.",
        messages=HELLO,
    )
    return [block.to_dict() for block in done.content], done.stop_reason, done.usage.output_tokens


async def messages_stream(clients: Clients) -> Any:
    asked = clients.anthropic.messages.stream(model="m", max_tokens=12, messages=HELLO)
    async with asked as stream:
        text = "".join([part async for part in stream.text_stream])
        last = await stream.get_final_message()
    return text, last.stop_reason, last.usage.output_tokens


async def messages_tool(clients: Clients) -> Any:
    asked = clients.anthropic.messages.stream(
        model="m",
        max_tokens=12,
        messages=HELLO,
        tools=[{"name": "look_up", "input_schema": {"type": "object"}}],
        tool_choice={"type": "any"},
    )
    async with asked as stream:
        last = await stream.get_final_message()
    block = last.content[0].to_dict()
    return block["name"], block["input"], last.stop_reason


async def count_tokens(clients: Clients) -> Any:
    counted = await clients.anthropic.messages.count_tokens(model="m", messages=HELLO)
    return counted.input_tokens


CALLS = (
    chat, chat_stream, tools, tools_stream, image, batch, responses, responses_stream, embeddings, audio,
    drawing, models, messages, messages_stream, messages_tool, count_tokens,
)  # fmt: skip


async def test_every_call_returns_what_the_server_itself_returns(libraries: Libraries) -> None:
    for call in CALLS:
        assert await call(libraries.via) == await call(libraries.direct), call.__name__
    await libraries.stage.settled()


async def test_a_response_goes_on_where_its_state_is(libraries: Libraries) -> None:
    client = libraries.via.openai
    for _ in range(6):
        first = await client.responses.create(model="m", input="Hello")
        second = await client.responses.create(model="m", input="Go on", previous_response_id=first.id)
        assert second.output_text
    await libraries.stage.settled()


async def raised(call: Awaitable[Any]) -> Exception:
    try:
        await call
    except (openai.OpenAIError, anthropic.AnthropicError) as error:
        return error
    raise AssertionError("nothing was raised")


async def wrong_model(clients: Clients) -> Any:
    return await clients.openai.chat.completions.create(model="none", messages=HELLO)


async def wrong_field(clients: Clients) -> Any:
    return await clients.openai.completions.create(model="m", prompt="x", max_tokens=-1)


async def wrong_messages_model(clients: Clients) -> Any:
    return await clients.anthropic.messages.create(model="none", max_tokens=1, messages=HELLO)


@pytest.mark.parametrize("call", [wrong_model, wrong_field, wrong_messages_model])
async def test_an_error_of_the_server_is_raised_as_by_the_server_itself(
    libraries: Libraries, call: Call
) -> None:
    through, direct = await raised(call(libraries.via)), await raised(call(libraries.direct))
    assert type(through) is type(direct)
    assert str(through) == str(direct)


async def test_a_wrong_key_is_refused_as_by_the_server_itself(libraries: Libraries) -> None:
    via, direct = (Clients(url, key="sk-wrong") for url in (libraries.stage.url, libraries.servers[0].url))
    through, alone = await raised(chat(via)), await raised(chat(direct))
    assert type(through) is type(alone) is openai.AuthenticationError
    assert str(through) == str(alone)
    assert type(await raised(messages(via))) is anthropic.AuthenticationError
    await via.close()
    await direct.close()


async def test_without_an_endpoint_the_libraries_say_why_and_when_to_ask_again(libraries: Libraries) -> None:
    libraries.stage.offer()
    error = await raised(chat(libraries.via))
    assert type(error) is openai.InternalServerError
    assert isinstance(error, openai.APIStatusError)
    assert (error.code, error.type) == ("rejected-no-endpoints", "server_error")
    assert "no ready endpoint" in str(error)
    assert error.response.headers["retry-after"] == "2"
    assert error.request_id
    other = await raised(messages(libraries.via))
    assert isinstance(other, anthropic.APIStatusError)
    assert isinstance(other.body, dict)
    assert other.body["error"]["type"] == "overloaded_error"
    assert "no ready endpoint" in str(other)


async def test_a_saturated_pool_is_a_rate_limit_to_the_libraries(
    libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Refusal(Outcome.SATURATED, "the pool is saturated", retry_after=3)
    router = libraries.stage.router
    monkeypatch.setattr(type(router), "decide", lambda *_: refusal)
    for call, kind in ((chat, openai.RateLimitError), (messages, anthropic.RateLimitError)):
        error = await raised(call(libraries.via))
        assert type(error) is kind
        assert "the pool is saturated" in str(error)
        assert error.response.headers["retry-after"] == "3"


async def test_a_body_without_a_model_is_a_bad_request_that_names_the_field(libraries: Libraries) -> None:
    error = await raised(
        libraries.via.openai.post("/chat/completions", body={"messages": HELLO}, cast_to=object)
    )
    assert type(error) is openai.BadRequestError
    assert error.param == "model"
    assert "model" in str(error)


@pytest.mark.parametrize("library", ["openai", "anthropic"])
async def test_a_client_that_leaves_mid_stream_aborts_the_engine(libraries: Libraries, library: str) -> None:
    long: dict[str, Any] = {"model": "m", "messages": HELLO, "max_tokens": 20_000, "stream": True}
    long["extra_body"] = {"ignore_eos": True}
    client = getattr(libraries.via, library)
    create = client.chat.completions.create if library == "openai" else client.messages.create
    stream = await create(**long)
    async for _ in stream:
        break
    await stream.close()

    async def idle() -> bool:
        running = [await server.metric("vllm:num_requests_running") for server in libraries.servers]
        return sum(running) == 0

    async with asyncio.timeout(20):
        while not await idle():  # noqa: ASYNC110 (what is awaited lives in another process)
            await asyncio.sleep(0.02)
    await until(lambda: not libraries.stage.router.ledger.held)
    await libraries.stage.settled()


async def test_a_server_that_breaks_off_a_stream_is_noticed(libraries: Libraries) -> None:
    for server in libraries.servers:
        body = {"reset_after_tokens": 3, "reset_rate": 1.0}
        async with libraries.stage.client.patch(f"{server.url}/sim/faults", json=body) as response:
            assert response.status == 200, await response.text()
    for call in (chat_stream, messages_stream, responses_stream):
        with pytest.raises((openai.APIError, anthropic.APIError, httpx2.HTTPError)):
            await call(libraries.via)
    await libraries.stage.settled()


async def test_curl_gets_a_stream_and_a_refusal(libraries: Libraries) -> None:
    async def curl(*more: str) -> str:
        command = ("curl", "-sS", "-N", "-i", "-H", "content-type: application/json", *more)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return output.decode()

    url = f"{libraries.stage.url}/v1/chat/completions"
    body = json.dumps({"model": "m", "messages": HELLO, "stream": True})
    key = ("-H", f"authorization: Bearer {KEY}")
    answer = await curl(url, *key, "-d", body)
    assert "200 OK" in answer
    assert answer.rstrip().endswith("data: [DONE]")
    refused = await curl(url, *key, "-d", "{}")
    assert "400 Bad Request" in refused
    assert json.loads(refused.rpartition("\r\n\r\n")[2])["error"]["param"] == "model"
