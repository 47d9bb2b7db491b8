"""Each body mode of the real Envoy: what a client and a model server see, and what the picker learns."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import zstandard
from aiohttp import web

from envoy_stage import JSON, Stage
from inference_api.priority_table import PriorityTable, RewriteEntry, RewriteTarget

BODY = b'{ "a": 9007199254740993, "model" : "asked", "b": [1e400, -0, "\\u00e9<>&"], "stream": %s }\n'
REWRITES = PriorityTable(rewrites=(RewriteEntry(targets=(RewriteTarget(model="served-model"),)),)).dump()
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


class ModelServer:
    """Answers with the model that it was asked for and the digest of the body, as JSON or as events."""

    def __init__(self) -> None:
        self.address = ""
        self.bodies: list[bytes] = []
        self.lengths: list[str | None] = []

    async def post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.lengths.append(request.headers.get("content-length"))
        asked = json.loads(body)
        said = {"model": asked["model"], "digest": hashlib.sha256(body).hexdigest(), "usage": USAGE}
        if not asked.get("stream"):
            return web.json_response(said)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            event = {"model": asked["model"], "choices": [{"delta": {"content": f"t{number}"}}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: " + json.dumps(said).encode() + b"\n\ndata: [DONE]\n\n")
        await response.write_eof()
        return response

    async def get(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": []})


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    made = ModelServer()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/{tail:.*}", made.post)
    app.router.add_get("/{tail:.*}", made.get)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.address = f"127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, tmp_path / "envoy.log")


async def start(stage: Stage, server: ModelServer, modes: tuple[str, str], rewrites: str = "") -> None:
    stage.router.apply_priorities(rewrites)
    stage.model_servers.append(server)
    await stage.start(servers=0, modes=modes)


async def ask(stage: Stage, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    async with stage.client.post(stage.url + path, data=body, headers=JSON) as response:
        return response.status, await response.read()


READ = ("BUFFERED", "FULL_DUPLEX_STREAMED")
UNREAD = ("NONE", "STREAMED")
ALL = (*READ, *UNREAD)
MIXED = [("FULL_DUPLEX_STREAMED", "BUFFERED"), ("BUFFERED", "STREAMED"), ("STREAMED", "FULL_DUPLEX_STREAMED")]


@pytest.mark.parametrize("modes", [*((mode, mode) for mode in ALL), *MIXED], ids="/".join)
async def test_bodies_pass_unchanged_and_are_read_in_each_mode(
    stage: Stage, server: ModelServer, modes: tuple[str, str]
) -> None:
    await start(stage, server, modes)
    large = b'{"model":"asked","prompt":"%s"}' % (b"x" * 300_000)
    bodies = [BODY % b"false", BODY % b"true", large]
    for body in bodies:
        status, answer = await ask(stage, body)
        assert (status, server.bodies[-1]) == (200, body)
        assert hashlib.sha256(body).hexdigest().encode() in answer
    async with stage.client.get(f"{stage.url}/v1/models") as response:
        assert await response.json() == {"data": []}
    await stage.settled()
    model = "asked" if modes[0] in READ else ""
    assert total(stage, "llm_d_epp_request_total", model) == len(bodies) + (0 if model else 1)
    seen = 0 if modes[1] == "NONE" else len(bodies) * USAGE["completion_tokens"]
    assert total(stage, "llm_d_epp_request_output_tokens_sum", model) == seen
    status, _ = await ask(stage, b'{"messages":[]}')
    assert (status == 400) == (modes[0] in READ)


@pytest.mark.parametrize("response_mode", ALL)
@pytest.mark.parametrize("request_mode", READ)
async def test_a_models_name_is_rewritten_and_given_back(
    stage: Stage, server: ModelServer, request_mode: str, response_mode: str
) -> None:
    await start(stage, server, (request_mode, response_mode), REWRITES)
    for stream in (b"false", b"true"):
        body = BODY % stream
        status, answer = await ask(stage, body)
        sent = body.replace(b"asked", b"served-model")
        assert (status, server.bodies[-1:]) == (200, [sent]), answer
        assert hashlib.sha256(sent).hexdigest().encode() in answer
        names = answer.count(b'"asked"'), answer.count(b'"served-model"')
        count = 4 if stream == b"true" else 1
        assert names == ((0, count) if response_mode == "NONE" else (count, 0))
    await stage.settled()


@pytest.mark.parametrize("request_mode", READ)
async def test_an_encoded_body_is_rewritten_and_goes_on_decoded(
    stage: Stage, server: ModelServer, request_mode: str
) -> None:
    await start(stage, server, (request_mode, "FULL_DUPLEX_STREAMED"), REWRITES)
    body = b'{"prompt":"%s","model" : "asked"}' % (b"text " * 50_000)
    headers = JSON | {"content-encoding": "zstd"}
    url = f"{stage.url}/v1/completions"
    async with stage.client.post(url, data=zstandard.compress(body), headers=headers) as response:
        assert (response.status, (await response.json())["model"]) == (200, "asked")
    assert server.bodies == [body.replace(b"asked", b"served-model")]
    async with stage.client.post(url, data=b"x", headers=JSON | {"content-encoding": "compress"}) as response:
        assert response.status == 415
        assert 'content-encoding "compress"' in (await response.json())["error"]["message"]
    await stage.settled()


@pytest.mark.parametrize("mode", UNREAD)
async def test_where_the_body_is_not_read_a_pool_with_rewrites_names_the_mode_to_set(
    stage: Stage, server: ModelServer, mode: str
) -> None:
    await start(stage, server, (mode, "STREAMED"), REWRITES)
    status, answer = await ask(stage, BODY % b"false")
    assert status == 500
    assert (
        "set request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED" in json.loads(answer)["error"]["message"]
    )
    assert server.bodies == []
    async with stage.client.get(f"{stage.url}/v1/models") as response:
        assert response.status == 200
    await stage.settled()


@pytest.mark.parametrize("modes", [("BUFFERED_PARTIAL", "NONE"), ("NONE", "BUFFERED_PARTIAL")], ids="/".join)
async def test_a_mode_that_cuts_bodies_off_is_refused_with_a_sentence_for_the_proxys_log(
    stage: Stage, server: ModelServer, modes: tuple[str, str]
) -> None:
    await start(stage, server, modes)
    status, answer = await ask(stage, BODY % b"false")
    assert status == 500
    assert "BUFFERED_PARTIAL_may_cut_a_body_off" in json.loads(answer)["error"]["message"]


def total(stage: Stage, name: str, model: str) -> float:
    """Return the sum of a metric's samples of a model."""
    families = stage.picker.metrics.collect()
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if sample.labels.get("model_name") == model)
