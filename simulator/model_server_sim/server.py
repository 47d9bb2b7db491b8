"""The HTTP face of one simulated engine: a thin shell over protocol, driver and metrics.

Decides nothing about timing or formats. One ModelServer is one port; data-parallel ranks are several of them.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from model_server_sim import prompt, protocol
from model_server_sim.driver import Driver, Stream
from model_server_sim.engine import Engine, Request, Sequence
from model_server_sim.headers import (
    ADDRESS_HEADER,
    CONTENT_SHA256_HEADER,
    ECHO_HEADER,
    REQUEST_BYTES_HEADER,
    REQUEST_SHA256_HEADER,
    SERVER_HEADER,
)
from model_server_sim.metrics import EngineMetrics
from model_server_sim.params import EngineParams
from model_server_sim.protocol import ApiError, Generation

VERSION = "0.1.0+sim"
MAX_BODY_BYTES = 64 * 1024 * 1024
ECHO_CHUNK_BYTES = 16 * 1024
JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of one model server."""

    name: str
    """Answers carry it in x-sim-server."""
    address: str
    """Its host:port, in x-sim-address."""
    models: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    params: EngineParams = field(default_factory=EngineParams)
    seed: int = 0
    time_scale: float = 1.0
    """Simulated seconds per real second."""
    mean_output_tokens: int = 128
    rank: int = 0


class ModelServer:
    """One engine with its routes. `readiness` is shared by all ranks of a process."""

    def __init__(
        self, settings: ServerSettings, uniform: Callable[[], float], readiness: "Readiness"
    ) -> None:
        self._settings = settings
        self._readiness = readiness
        self._created = int(time.time())
        self._answers = 0
        self._metrics = EngineMetrics(
            settings.params,
            settings.models[0],
            settings.rank,
            created=float(self._created),
            with_lora=bool(settings.adapters),
        )
        self.driver = Driver(Engine(settings.params, uniform), settings.time_scale, self._metrics.record)
        self._limits = protocol.Limits(
            models=settings.models,
            adapters=settings.adapters,
            max_model_len=settings.params.longest_sequence,
            block_size=settings.params.block_size,
            mean_output_tokens=settings.mean_output_tokens,
            seed=settings.seed,
        )
        self._headers = {SERVER_HEADER: settings.name, ADDRESS_HEADER: settings.address}

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.on_response_prepare.append(self._wind_down)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics_page)
        return app

    async def _wind_down(self, _: web.Request, response: web.StreamResponse) -> None:
        """While draining, end each connection after its answer, before the listener goes."""
        if self._readiness.draining:
            response.force_close()
            response.headers["Connection"] = "close"

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Turn refusals into OpenAI-style errors."""
        try:
            return await handler(request)
        except ApiError as error:
            return self._error(error)
        except web.HTTPRequestEntityTooLarge:
            refusal = ApiError(413, f"the body exceeds {MAX_BODY_BYTES} bytes", kind="RequestTooLargeError")
            return self._error(refusal)
        except web.RequestPayloadError:
            return self._error(ApiError(400, "the body is broken: bad chunks or content encoding"))
        except web.HTTPException as error:
            return self._error(ApiError(error.status, error.reason, kind=error.reason.replace(" ", "")))

    def _error(self, error: ApiError) -> web.Response:
        headers = self._headers
        return web.Response(body=error.body(), status=error.status, content_type=JSON_TYPE, headers=headers)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.read()
        headers = {
            **self._headers,
            REQUEST_BYTES_HEADER: str(len(body)),
            REQUEST_SHA256_HEADER: hashlib.sha256(body).hexdigest(),
        }
        if request.headers.get(ECHO_HEADER) == "1":
            return await _echo(request, body, headers)
        made = protocol.parse(body, self._limits, chat=chat)
        headers[CONTENT_SHA256_HEADER] = prompt.content_sha256(made.digest, made.output_tokens)
        answer_id = self._next_id(made)
        stream = self._submit(made, answer_id)
        reason = "abort"
        try:
            if made.stream:
                response = await self._send_events(request, made, stream, headers)
            else:
                await stream.more_than(0)
                usage = _usage(stream.sequence)
                whole = protocol.answer(made, answer_id, int(time.time()), usage)
                response = web.Response(body=whole, content_type=JSON_TYPE, headers=headers)
            reason = made.finish_reason
        finally:
            self.driver.close(stream)
            self._metrics.ended(stream.sequence, reason)
        return response

    def _submit(self, made: Generation, answer_id: str) -> Stream:
        request = Request(
            request_id=answer_id,
            prompt_tokens=made.prompt_tokens,
            output_tokens=made.output_tokens,
            block_hashes=made.block_hashes,
            adapter=made.adapter,
        )
        try:
            stream = self.driver.submit(request, whole=not made.stream)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        self._metrics.accepted(made.max_tokens, made.output_tokens)
        return stream

    async def _send_events(
        self, request: web.Request, made: Generation, stream: Stream, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send the answer as server-sent events. aiohttp sends the headers with the first write: a token."""
        writer = protocol.SseWriter(made, stream.sequence.request.request_id, int(time.time()))
        response = web.StreamResponse(headers={**headers, "Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        out, sent = writer.opening(), 0
        while sent < made.output_tokens:
            known = await stream.more_than(sent)
            await response.write(out + writer.tokens(sent, known))
            out, sent = b"", known
        await response.write(writer.ending(_usage(stream.sequence)))
        await response.write_eof()
        return response

    async def _models(self, _: web.Request) -> web.Response:
        base = self._settings.models[0]
        names = [(name, None) for name in self._settings.models]
        adapters = [(name, base) for name in self._settings.adapters]
        data = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": name if parent else base,
                "parent": parent,
                "max_model_len": self._limits.max_model_len,
            }
            for name, parent in [*names, *adapters]
        ]
        return web.json_response({"object": "list", "data": data}, headers=self._headers)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._readiness.draining else 200, headers=self._headers)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION}, headers=self._headers)

    async def _metrics_page(self, _: web.Request) -> web.Response:
        page = self._metrics.page(self.driver.engine, time.time()).encode()
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=page, headers=headers)

    def _next_id(self, made: Generation) -> str:
        self._answers += 1
        return f"{'chatcmpl' if made.chat else 'cmpl'}-{made.digest:016x}{self._answers:08x}"


class Readiness:
    """Whether the process is draining."""

    __slots__ = ("draining",)

    def __init__(self) -> None:
        self.draining = False


def _usage(sequence: Sequence) -> protocol.Usage:
    return protocol.Usage(sequence.request.prompt_tokens, sequence.generated, sequence.cached_tokens)


async def _echo(request: web.Request, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send the body back in chunks, without the engine: for checks that every byte arrives both ways."""
    response = web.StreamResponse(headers=headers)
    response.content_type = request.content_type
    await response.prepare(request)
    view = memoryview(body)
    for start in range(0, len(body), ECHO_CHUNK_BYTES):
        await response.write(view[start : start + ECHO_CHUNK_BYTES])
    await response.write_eof()
    return response
