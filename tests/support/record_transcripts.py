"""Records the transcripts: real Envoy, a picker and a model server with canned answers. `make transcripts`.

Addresses, ids and dates are fixed, and the entries of metadata sorted, which Envoy sends in any order: a
recording differs from the last one only where Envoy or the picker does.
"""

import asyncio
import gzip
import json
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import envoy_proxy
from counting_router import CountingRouter
from endpoint_picker.decision import BodyReading
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.rewrites import Rewrites
from envoy_messages import pb
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.handler import PROCESS_METHOD, ProcessHandler
from ext_proc.turns import Turns
from inference_api.priority_table import RewriteEntry, RewriteTarget
from lean_grpc import CallError, Channel, Server, StatusCode
from transcripts import ENDPOINT, FOLDER, REWRITE, dump
from transcripts import Exchange as Recorded

MODES = ("FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE")
HOST, PORT = "127.0.7.1", 8080
JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
GRPC = "application/grpc"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
VERTEX = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"


@dataclass
class Case:
    """One call, and the model server's answer to it."""

    name: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: JSON)
    answer: bytes = b"{}"
    answers: str = "application/json"
    """Content type of the answer."""
    method: str = "POST"
    rewrites: bool = False


def said(**more: Any) -> bytes:
    return json.dumps(more).encode()


def events(*each: dict[str, Any], names: bool = False) -> bytes:
    lines = [
        (f"event: {event['type']}\n" if names else "") + f"data: {json.dumps(event)}\n\n" for event in each
    ]
    return "".join([*lines, "" if names else "data: [DONE]\n\n"]).encode()


def form(*fields: tuple[str, str]) -> bytes:
    parts = [
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields
    ]
    return "".join([*parts, "--b--\r\n"]).encode()


def token(model: str = "m", **more: Any) -> dict[str, Any]:
    return {"id": "c-1", "model": model, "choices": [{"index": 0, "delta": {"content": "Hi"}}], **more}


HELLO = [{"role": "user", "content": "Hello"}]
CHAT = said(model="m", messages=HELLO, stream=True)
CASES = (
    Case(
        "chat",
        "/v1/chat/completions",
        CHAT,
        answers="text/event-stream",
        answer=events(token(), token(usage=USAGE)),
    ),
    Case(
        "completions", "/v1/completions", said(model="m", prompt="Once"), answer=said(model="m", usage=USAGE)
    ),
    Case(
        "embeddings", "/v1/embeddings", said(model="m", input=["a", "b"]), answer=said(data=[], usage=USAGE)
    ),
    Case(
        "responses",
        "/v1/responses",
        said(model="m", input="Hello", stream=True),
        answers="text/event-stream",
        answer=events(
            {"type": "response.created", "response": {"id": "resp_1", "model": "m"}},
            {"type": "response.output_text.delta", "delta": "Hi"},
            {
                "type": "response.completed",
                "response": {"id": "resp_1", "usage": {"input_tokens": 7, "output_tokens": 1}},
            },
            names=True,
        ),
    ),
    Case(
        "transcriptions",
        "/v1/audio/transcriptions",
        form(("model", "m"), ("file", "RIFF")),
        FORM,
        said(text="Hi"),
    ),
    Case(
        "speech",
        "/v1/audio/speech",
        said(model="m", input="Hello"),
        answers="audio/mpeg",
        answer=b"\xff\xfb\x90",
    ),
    Case("images", "/v1/images/generations", said(model="m", prompt="a cat"), answer=said(data=[])),
    Case("image edits", "/v1/images/edits", form(("prompt", "a dog"), ("image", "PNG")), FORM, said(data=[])),
    Case("conversations", "/v1/conversations", said(items=[]), answer=said(id="conv_1")),
    Case(
        "messages",
        "/v1/messages",
        said(model="m", max_tokens=9, messages=HELLO, stream=True),
        {**JSON, "anthropic-version": "2023-06-01"},
        answers="text/event-stream",
        answer=events(
            {
                "type": "message_start",
                "message": {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}},
            },
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
            names=True,
        ),
    ),
    Case(
        "vllm generate", "/inference/v1/generate", said(token_ids=[1, 2], sampling_params={"max_tokens": 9})
    ),
    Case("rerank", "/v1/rerank", said(model="m", query="q", documents=["a"]), answer=said(results=[])),
    Case("score", "/v1/score", said(model="m", text_1="q", text_2=["a"]), answer=said(data=[])),
    Case("pooling", "/pooling", said(model="m", input="Hello"), answer=said(data=[])),
    Case("tokenize", "/tokenize", said(model="m", prompt="Hello"), answer=said(count=1)),
    Case("generate", "/generate", said(text="Hello"), answer=said(text="Hi", meta_info=USAGE)),
    Case(
        "count_tokens",
        "/v1/messages/count_tokens",
        said(model="m", messages=HELLO),
        answer=said(input_tokens=7),
    ),
    Case(
        "other path",
        "/v1/load_lora_adapter",
        said(lora_name="a", lora_path="/a"),
        answer=b"ok",
        answers="text/plain",
    ),
    Case("models", "/v1/models", method="GET", headers={}, answer=said(data=[])),
    Case("no model", "/v1/chat/completions", said(messages=HELLO)),
    Case("no model in Anthropic's dialect", "/v1/messages", said(messages=HELLO)),
    Case("unread encoding", "/v1/completions", b"?", {**JSON, "content-encoding": "compress"}),
    Case(
        "too many headers", "/v1/completions", CHAT, {**JSON, **{f"x-{number}": "" for number in range(40)}}
    ),
    Case(
        "rewritten chat",
        "/v1/chat/completions",
        said(n=1, model="alias", messages=HELLO),
        answers="text/event-stream",
        answer=events(token("served"), token("served", usage=USAGE)),
        rewrites=True,
    ),
    Case(
        "rewritten encoded",
        "/v1/completions",
        gzip.compress(said(model="alias", prompt="Once"), mtime=0),
        {**JSON, "content-encoding": "gzip"},
        said(model="served", usage=USAGE),
        rewrites=True,
    ),
    Case(
        "vllm grpc Generate",
        "/vllm.grpc.engine.VllmEngine/Generate",
        b"\x1a\x02hi",
        answers=GRPC,
        answer=b"\x12\x06\x18\x07\x20\x02\x28\x03",
    ),
    Case(
        "vllm grpc Embed",
        "/vllm.grpc.engine.VllmEngine/Embed",
        b"\x1a\x02hi",
        answers=GRPC,
        answer=b"\x10\x07",
    ),
    Case("vertex", VERTEX, b"\x12\x0f\x12\x0d" + said(model="m"), answers=GRPC, answer=b"\x12\x02{}"),
)


def picking(*, rewrites: bool) -> tuple[Picking, BodyBudget]:
    """Return what answers in a transcript: a picker of one endpoint, and its limits."""
    router = CountingRouter(ENDPOINT)
    if rewrites:
        rule = RewriteEntry(models=REWRITE[:1], targets=(RewriteTarget(model=REWRITE[1]),))
        router.reads = BodyReading(router.reads.parsers, rewrites=Rewrites([rule], lambda: 0.0))
    made = Picking(router, PickerMetrics(), 1.0, lambda: 1.0, Turns(None, 1 << 28))
    return made, BodyBudget(max_header_fields=40)


class Recording:
    """The picker's end of one stream, which writes down what passes."""

    def __init__(self, call: Any, into: Recorded, *, rewrites: bool) -> None:
        self._call = call
        self._into = into
        processor, budget = picking(rewrites=rewrites)
        self._handler = ProcessHandler(self, Exchange(processor, budget), lambda: 1.0, self._fail)
        self.opened, self.ended = self._handler.opened, self._handler.ended
        self.aborted, self.writable = self._handler.aborted, self._handler.writable

    def received(self, payload: bytes) -> None:
        payload = pb.ProcessingRequest.FromString(payload).SerializeToString(deterministic=True)
        self._into.messages.append((">", payload))
        self._handler.received(payload)

    def send(self, *payloads: bytes) -> bool:
        self._into.messages += [("<", payload) for payload in payloads]
        return bool(self._call.send(*payloads))

    def finish(self, code: StatusCode = StatusCode.OK, message: str = "", trailers: Any = ()) -> None:
        if code is not StatusCode.OK:
            self._into.status = f"{code.name}: {message}"
        self._call.finish(code, message)

    def _fail(self, fault: Exception, _processor: object) -> None:
        raise fault


async def model_server(stack: AsyncExitStack, current: Callable[[], Case]) -> None:
    """Answer each HTTP/1.1 request as its case says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await head_of(reader):
            await body_of(reader, head)
            case = current()
            writer.write(
                b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
                + f"content-type: {case.answers}\r\ncontent-length: {len(case.answer)}\r\n\r\n".encode()
                + case.answer
            )
            await writer.drain()
        writer.close()

    host, _, port = ENDPOINT.rpartition(":")
    server = await asyncio.start_server(serve, host, int(port))
    stack.callback(server.close)


async def head_of(reader: asyncio.StreamReader) -> dict[str, str]:
    """Return the headers of a message, with "" for its first line; nothing at the end of the connection."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return {}
    first, *lines = text.strip().split("\r\n")
    return {"": first, **{line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}}


async def body_of(reader: asyncio.StreamReader, head: dict[str, str]) -> None:
    if "chunked" in head.get("transfer-encoding", ""):
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        await reader.readexactly(int(head.get("content-length", "0")))


async def grpc_server(stack: AsyncExitStack, current: Callable[[], Case]) -> None:
    server = Server()
    for case in CASES:
        if case.answers == GRPC:
            server.add_unary(case.path, lambda _payload, _call: current().answer)
    host, _, port = ENDPOINT.rpartition(":")
    await server.listen(host, int(port))
    stack.push_async_callback(server.close)


async def ask(case: Case) -> None:
    """Send the case's request to Envoy, and wait for the end of the answer."""
    request_id = "r-" + case.name.replace(" ", "-").replace("'", "")
    if case.answers == GRPC:
        async with Channel([f"{HOST}:{PORT}"]) as channel:
            try:
                await channel.unary(case.path, case.body, metadata=[("x-request-id", request_id)])
            except CallError as error:
                print(case.name, error)
        return
    reader, writer = await asyncio.open_connection(HOST, PORT)
    headers = {"host": "pool.example", "x-request-id": request_id, **case.headers, "connection": "close"}
    if case.body:
        headers["content-length"] = str(len(case.body))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"{case.method} {case.path} HTTP/1.1\r\n{head}\r\n".encode() + case.body)
    await reader.read()
    writer.close()


def bootstrap(picker: str, mode: str, admin: int, *, http2: bool) -> dict[str, Any]:
    config = envoy_proxy.configuration(PORT, picker, tls=False, modes=(mode, mode), admin_port=admin)
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"]["address"] = HOST
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][-1]["typed_config"]["suppress_envoy_headers"] = True
    pool = envoy_proxy.pool_cluster(http2=http2)
    del pool["eds_cluster_config"]
    host, _, port = ENDPOINT.rpartition(":")
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    pool |= {"type": "STATIC", "load_assignment": {"cluster_name": "pool", "endpoints": endpoints}}
    config["static_resources"]["clusters"][0] = pool
    return config


async def record(mode: str, cases: list[Case], *, http2: bool) -> dict[str, Recorded]:
    """Return the exchanges of these cases in a mode."""
    found: dict[str, Recorded] = {}
    now = cases[0]

    def stream(call: Any) -> Recording:
        recorded = found[now.name] = Recorded(mode)
        return Recording(call, recorded, rewrites=now.rewrites)

    async with AsyncExitStack() as stack:
        await (grpc_server if http2 else model_server)(stack, lambda: now)
        picker = Server()
        picker.add(PROCESS_METHOD, stream)
        port = await picker.listen("127.0.0.1", 0)
        stack.push_async_callback(picker.close)
        admin = envoy_proxy.free_port()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        config = bootstrap(f"127.0.0.1:{port}", mode, admin, http2=http2)
        await stack.enter_async_context(envoy_proxy.started(config, Path(folder) / "log", PORT, admin))
        for now in cases:
            await ask(now)
    return found


async def main() -> None:
    by_case: dict[str, list[Recorded]] = {case.name: [] for case in CASES}
    for mode in MODES:
        for http2 in (False, True):
            cases = [case for case in CASES if (case.answers == GRPC) == http2]
            for name, exchange in (await record(mode, cases, http2=http2)).items():
                by_case[name].append(exchange)
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name, exchanges in by_case.items():
        (FOLDER / f"{file_name(name)}.txt").write_text(dump(name, exchanges))


def file_name(name: str) -> str:
    return name.lower().replace(" ", "-").replace("'", "")


if __name__ == "__main__":
    asyncio.run(main())
