"""The HTTP face of simulated engines: a thin shell over protocol, driver and metrics.

Decides nothing about timing or formats. One ModelServer is one port, with one engine or several data-parallel
ones behind it; ranks on ports of their own are several ModelServers.
"""

import asyncio
import contextlib
import hashlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from aiohttp import web

from model_server_sim import pooling, prompt, protocol
from model_server_sim.dialects import Messages, Responses, as_body
from model_server_sim.driver import Driver, Stream
from model_server_sim.engine import Engine, Request, Sequence, Step
from model_server_sim.faults import Faults
from model_server_sim.headers import (
    ADDRESS_HEADER,
    CONTENT_SHA256_HEADER,
    ECHO_HEADER,
    RANK_HEADER,
    REQUEST_BYTES_HEADER,
    REQUEST_SHA256_HEADER,
    SERVER_HEADER,
)
from model_server_sim.metrics import EngineMetrics
from model_server_sim.params import EngineParams
from model_server_sim.protocol import ApiError, Generation
from model_server_sim.sidecar import Sidecar

VERSION = "0.1.0+sim"
MAX_BODY_BYTES = 64 * 1024 * 1024
ECHO_CHUNK_BYTES = 16 * 1024
JSON_TYPE = "application/json"
#: Adapters that a server keeps registered, so that strangers cannot make the list grow without end.
MAX_ADAPTERS = 1000
#: Responses that a server keeps for later turns, likewise.
MAX_STORED = 1000
FAULTS_PATH: Final = "/sim/faults"
CRASH_PATH: Final = "/sim/crash"


class Role(Enum):
    """The stage that a server works for in a disaggregated pool."""

    NONE = ""
    """It answers whole requests and reads no header of a stage."""
    PREFILL = "prefill"
    """It computes prompts for other servers, and answers nothing else."""
    DECODE = "decode"
    """It answers, and has prompts and media done by the servers that headers name, as a sidecar would."""
    ENCODE = "encode"
    """It encodes media for other servers, and answers nothing else."""


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
    ranks: tuple[int, ...] = (0,)
    """Data-parallel ranks of the engines behind this port, each the `engine` label of its series."""
    runtime_lora: bool = False
    """Adapters may be loaded and unloaded by request, as with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
    dev_mode: bool = False
    """Sleep, wake and reset of the prefix cache are served, as with VLLM_SERVER_DEV_MODE."""
    api_key: str = ""
    """Key that calls under /v1 must bring; "" for none."""
    admin: bool = False
    """Faults can be injected by request."""
    role: Role = Role.NONE
    prefill_limit_s: float = 30.0
    """Longest call of a decode server to another, in real seconds."""


class Publisher(Protocol):
    """Sends to subscribers what happens to an engine's named blocks."""

    def publish(self) -> None:
        """Send what happened since the last call."""
        ...


class Unit:
    """One engine behind a port, with its series and its publisher of KV events."""

    __slots__ = ("driver", "metrics", "publisher")

    def __init__(
        self, engine: Engine, time_scale: float, metrics: EngineMetrics, publisher: Publisher | None
    ) -> None:
        self.driver = Driver(engine, time_scale, self._record)
        self.metrics = metrics
        self.publisher = publisher

    def clear_prefixes(self) -> None:
        """Forget the prefix cache's idle blocks."""
        self.driver.change(lambda engine, _: engine.pool.clear())
        if self.publisher is not None:
            self.publisher.publish()

    def _record(self, engine: Engine, step: Step) -> None:
        self.metrics.record(engine, step)
        if self.publisher is not None:
            self.publisher.publish()

    def load(self) -> int:
        """Return what the next request is sent by: vLLM's sum of four times the waiting and the running."""
        engine = self.driver.engine
        return 4 * engine.waiting + engine.running


class ModelServer:
    """The engines of one port with its routes. `readiness` is shared by all ports of a process.

    `uniform` gives the randomness of each engine, in the order of `settings.ranks`, and last that of the
    faults. `crash` ends the process at once. `publisher` makes the publisher of an engine's KV events from
    the engine and its rank.
    """

    def __init__(
        self,
        settings: ServerSettings,
        uniform: list[Callable[[], float]],
        readiness: "Readiness",
        crash: Callable[[], object],
        publisher: Callable[[Engine, int], Publisher] | None = None,
    ) -> None:
        self._settings = settings
        self._readiness = readiness
        self._crash = crash
        self._created = int(time.time())
        self._answers = 0
        self._turns: dict[str, list[dict[str, Any]]] = {}
        self._stored: dict[str, bytes] = {}
        self._units: list[Unit] = []
        for rank, numbers in zip(settings.ranks, uniform, strict=False):
            metrics = EngineMetrics(
                settings.params,
                settings.models[0],
                rank,
                created=float(self._created),
                with_lora=bool(settings.adapters) or settings.runtime_lora,
            )
            engine = Engine(settings.params, numbers)
            publishes = publisher(engine, rank) if publisher else None
            self._units.append(Unit(engine, settings.time_scale, metrics, publishes))
        self._limits = protocol.Limits(
            models=settings.models,
            adapters=settings.adapters,
            max_model_len=settings.params.longest_sequence,
            block_size=settings.params.block_size,
            mean_output_tokens=settings.mean_output_tokens,
            seed=settings.seed,
            keeps_tokens=publisher is not None,
        )
        decodes = settings.role is Role.DECODE
        self._sidecar = Sidecar(settings.address, settings.prefill_limit_s) if decodes else None
        self._headers = {SERVER_HEADER: settings.name, ADDRESS_HEADER: settings.address}
        self._sleep_level: int | None = None
        self._faults = Faults()
        self._uniform = uniform[-1]
        self._stale_page: bytes | None = None
        self._answering = asyncio.Event()
        self._answering.set()

    @property
    def drivers(self) -> list[Driver]:
        """Return the drivers to run while serving."""
        return [unit.driver for unit in self._units]

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.on_response_prepare.append(self._wind_down)
        if self._sidecar is not None:
            app.cleanup_ctx.append(partial(self._keep_sidecar, self._sidecar))
        router, settings = app.router, self._settings
        router.add_post("/v1/completions", self._completions)
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/messages", self._messages)
        router.add_post("/v1/messages/count_tokens", self._count_tokens)
        router.add_post("/v1/responses", self._responses)
        router.add_get("/v1/responses/{id}", self._response)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            router.add_post(path, self._rerank)
        router.add_post("/v1/embeddings", self._embeddings)
        router.add_post("/v1/audio/transcriptions", self._transcription)
        router.add_post("/v1/images/generations", self._images)
        router.add_post("/tokenize", self._tokenize)
        router.add_post("/detokenize", self._detokenize)
        router.add_get("/v1/models", self._models)
        router.add_get("/health", self._health)
        router.add_get("/version", self._version)
        router.add_get("/metrics", self._metrics_page)
        if settings.runtime_lora:
            router.add_post("/v1/load_lora_adapter", self._load_lora)
            router.add_post("/v1/unload_lora_adapter", self._unload_lora)
        if settings.dev_mode:
            router.add_post("/sleep", self._sleep)
            router.add_post("/wake_up", self._wake)
            router.add_get("/is_sleeping", self._is_sleeping)
            router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        if settings.admin:
            router.add_get(FAULTS_PATH, self._show_faults)
            router.add_patch(FAULTS_PATH, self._change_faults)
            router.add_post(CRASH_PATH, self._crash_now)
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
        """Turn refusals into errors in the API's form; hold everything back while the server hangs."""
        if not self._answering.is_set() and request.path != FAULTS_PATH:
            await self._answering.wait()
        try:
            self._check_key(request)
            return await handler(request)
        except ApiError as error:
            if request.path.startswith("/v1/messages"):
                body = Messages.error(error)
                return web.Response(
                    body=body, status=error.status, content_type=JSON_TYPE, headers=self._headers
                )
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

    def _check_key(self, request: web.Request) -> None:
        """Raise ApiError 401 without the key; as in vLLM, only paths under /v1 need it."""
        key = self._settings.api_key
        if key and request.path.startswith("/v1"):
            given = request.headers.get("authorization", ""), request.headers.get("x-api-key", "")
            if given[0] != f"Bearer {key}" and given[1] != key:
                raise ApiError(401, "Unauthorized", kind="AuthenticationError")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        bodies = [] if ECHO_HEADER in request.headers else protocol.single_prompts(await request.read())
        if bodies:
            return await self._batch(request, bodies)
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        fields = protocol.object_of(await request.read())
        return await self._generate(request, chat=True, dialect=Messages, fields=Messages.chat(fields))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        fields = Messages.chat(protocol.object_of(await request.read()), counts=True)
        counted = protocol.tokenized(as_body(fields), self._limits)
        return self._json(protocol.dumps({"input_tokens": protocol.object_of(counted)["count"]}))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        asked = protocol.object_of(await request.read())
        fields = Responses.chat(asked, self._turns)
        return await self._generate(request, chat=True, dialect=Responses, fields=fields)

    async def _response(self, request: web.Request) -> web.Response:
        stored = self._stored.get(request.match_info["id"])
        if stored is None:
            message = f"Response with id '{request.match_info['id']}' not found."
            raise ApiError(404, message, kind="NotFoundError", param="response_id")
        return self._json(stored)

    def _store(self, made: Generation, answer_id: str, usage: protocol.Usage, fields: dict[str, Any]) -> None:
        """Keep a response and its turns, the newest MAX_STORED of them."""
        if fields.get("store") is False:
            return
        said = {"role": "assistant", "content": prompt.text(made.digest, made.output_tokens)}
        self._turns[answer_id] = [*fields["messages"], said]
        self._stored[answer_id] = Responses.answer(made, answer_id, int(time.time()), usage)
        while len(self._turns) > MAX_STORED:
            oldest = next(iter(self._turns))
            del self._turns[oldest], self._stored[oldest]

    async def _batch(self, request: web.Request, bodies: list[bytes]) -> web.Response:
        """Answer a list of prompts, one choice for each."""
        whole = await request.read()
        made = [protocol.parse(body, self._limits, chat=False) for body in bodies]
        if made[0].stream:
            raise ApiError(400, "prompt: the simulator streams one prompt only", param="prompt")
        unit, ids = self._unit(request), [self._next_id(each) for each in made]
        streams = [self._submit(unit, each, own) for each, own in zip(made, ids, strict=True)]
        try:
            for stream in streams:
                await stream.more_than(0)
            usages = [_usage(stream.sequence) for stream in streams]
        finally:
            for stream in streams:
                unit.driver.close(stream)
                unit.metrics.ended(stream.sequence, "stop" if stream.sequence.finished else "abort")
        headers = {**self._headers, REQUEST_SHA256_HEADER: hashlib.sha256(whole).hexdigest()}
        answer = protocol.batch_answer(made, ids[0], int(time.time()), usages)
        return web.Response(body=answer, content_type=JSON_TYPE, headers=headers)

    async def _embeddings(self, request: web.Request) -> web.Response:
        fields = protocol.object_of(await request.read())
        model = protocol.model_of(fields, self._limits)
        return self._json(pooling.embeddings(fields, model, self._number("embd"), int(time.time())))

    async def _rerank(self, request: web.Request) -> web.Response:
        fields = protocol.object_of(await request.read())
        model = protocol.model_of(fields, self._limits)
        return self._json(pooling.rerank(fields, model, self._number("rerank")))

    async def _transcription(self, request: web.Request) -> web.Response:
        form = await request.post()
        protocol.model_of({key: value for key, value in form.items() if key == "model"}, self._limits)
        file = form.get("file")
        if not isinstance(file, web.FileField):
            raise ApiError(400, "file must be an uploaded file", param="file")
        return self._json(pooling.transcription(file.file.read()))

    async def _images(self, request: web.Request) -> web.Response:
        fields = protocol.object_of(await request.read())
        protocol.model_of(fields, self._limits)
        return self._json(pooling.images(fields, int(time.time())))

    async def _generate(
        self,
        request: web.Request,
        *,
        chat: bool,
        dialect: type[Messages] | type[Responses] | None = None,
        fields: dict[str, Any] | None = None,
    ) -> web.StreamResponse:
        """Answer a generation; of another API than OpenAI's older two in its `dialect`, `fields` its chat."""
        body = await request.read()
        headers = {
            **self._headers,
            REQUEST_BYTES_HEADER: str(len(body)),
            REQUEST_SHA256_HEADER: hashlib.sha256(body).hexdigest(),
        }
        if request.headers.get(ECHO_HEADER) == "1":
            return await _echo(request, body, headers)
        refusal = self._faults.refusal(self._uniform)
        if refusal:
            raise refusal
        asked = body if fields is None else as_body(fields)
        made = protocol.parse(asked, self._limits, chat=chat)
        self._check_role(made)
        if self._sidecar is not None:
            made = await self._sidecar.prepare(request, body, made, headers)
        headers[CONTENT_SHA256_HEADER] = prompt.content_sha256(made.digest, made.output_tokens)
        answer_id = self._next_id(made, dialect.prefix if dialect else "")
        unit = self._unit(request)
        stream = self._submit(unit, made, answer_id)
        reason = "abort"
        try:
            if made.stream:
                response = await self._send_events(request, made, stream, headers, dialect)
            else:
                await stream.more_than(0)
                usage = _usage(stream.sequence)
                if dialect is None:
                    transfer = self._offer(unit, made, answer_id) if made.remote_decode else None
                    whole = protocol.answer(made, answer_id, int(time.time()), usage, transfer)
                else:
                    whole = dialect.answer(made, answer_id, int(time.time()), usage)
                response = web.Response(body=whole, content_type=JSON_TYPE, headers=headers)
            if dialect is Responses and fields is not None:
                self._store(made, answer_id, _usage(stream.sequence), fields)
            reason = made.finish_reason
        finally:
            unit.driver.close(stream)
            unit.metrics.ended(stream.sequence, reason)
        return response

    def _check_role(self, made: Generation) -> None:
        """Raise ApiError 400 for a request that is not for this server's stage."""
        role = self._settings.role
        if role is Role.PREFILL and not made.remote_decode:
            message = "this server computes prompts for others: it needs kv_transfer_params.do_remote_decode"
            raise ApiError(400, message, param="kv_transfer_params")
        if role is Role.ENCODE and made.max_tokens != 1:
            raise ApiError(
                400, "this server encodes media for others: it needs max_tokens 1", param="max_tokens"
            )

    async def _keep_sidecar(self, sidecar: Sidecar, _: web.Application) -> AsyncIterator[None]:
        async with sidecar:
            yield

    def _unit(self, request: web.Request) -> Unit:
        """Return the engine of the rank that the request names, or the least loaded one."""
        rank = request.headers.get(RANK_HEADER)
        if rank is None:
            return min(self._units, key=Unit.load)
        names = list(map(str, self._settings.ranks))
        if rank not in names:
            raise ApiError(400, f"{RANK_HEADER} must be one of {', '.join(names)}")
        return self._units[names.index(rank)]

    def _offer(self, unit: Unit, made: Generation, answer_id: str) -> dict[str, object]:
        """Say where the prompt's keys and values can be fetched, and free them when that has had its time."""
        params = self._settings.params
        transfer_s = params.kv_transfer_s + made.prompt_tokens * params.kv_transfer_token_s
        unit.driver.later(transfer_s, lambda engine, _: engine.release(answer_id))
        host, _, port = self._settings.address.rpartition(":")
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._settings.name,
            "remote_request_id": answer_id,
            "remote_block_ids": [],
            "remote_host": host,
            "remote_port": int(port),
        }

    def _submit(self, unit: Unit, made: Generation, answer_id: str) -> Stream:
        request = Request(
            request_id=answer_id,
            prompt_tokens=made.prompt_tokens,
            output_tokens=made.output_tokens,
            block_hashes=made.block_hashes,
            adapter=made.adapter,
            remote_prefill=made.remote_prefill,
            remote_decode=made.remote_decode,
            token_ids=made.token_ids,
        )
        try:
            stream = unit.driver.submit(request, whole=not made.stream)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        unit.metrics.accepted(made.max_tokens, made.output_tokens)
        return stream

    async def _send_events(
        self,
        request: web.Request,
        made: Generation,
        stream: Stream,
        headers: Mapping[str, str],
        dialect: type[Messages] | type[Responses] | None,
    ) -> web.StreamResponse:
        """Send the answer as server-sent events. aiohttp sends the headers with the first write: a token."""
        make = protocol.SseWriter if dialect is None else dialect.Writer
        writer = make(made, stream.sequence.request.request_id, int(time.time()))
        response = web.StreamResponse(headers={**headers, "Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        out, sent = writer.opening(), 0
        reset_after = self._faults.reset_after(self._uniform)
        while sent < made.output_tokens:
            if reset_after is not None and sent >= reset_after:
                _reset(request)
                raise ConnectionResetError("an injected fault")
            known = await stream.more_than(sent)
            if reset_after is not None:
                known = min(known, reset_after)  # late, this may have all tokens at once
            await response.write(out + writer.tokens(sent, known))
            out, sent = b"", known
        await response.write(writer.ending(_usage(stream.sequence)))
        await response.write_eof()
        return response

    async def _models(self, _: web.Request) -> web.Response:
        base = self._settings.models[0]
        names = [(name, None) for name in self._settings.models]
        adapters = [(name, base) for name in self._limits.adapters]
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
        if self._faults.metrics == "absent":
            raise ApiError(404, "an injected fault", kind="NotFoundError")
        page = self._page() if self._stale_page is None else self._stale_page
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=page, headers=headers)

    def _page(self) -> bytes:
        pairs = [(unit.metrics, unit.driver.engine) for unit in self._units]
        return EngineMetrics.joint_page(pairs, time.time()).encode()

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self._faults.tokenize == "absent":
            raise ApiError(404, "an injected fault", kind="NotFoundError")
        if self._faults.tokenize == "hang":
            await asyncio.Event().wait()
        return self._json(protocol.tokenized(await request.read(), self._limits))

    async def _detokenize(self, request: web.Request) -> web.Response:
        return self._json(protocol.detokenized(await request.read(), self._limits))

    async def _load_lora(self, request: web.Request) -> web.Response:
        name, adapters = protocol.lora_name(await request.read(), load=True), self._limits.adapters
        if not self._settings.params.max_loras:
            raise ApiError(400, "this engine runs no LoRA adapters")
        if name in adapters or name in self._limits.models:
            raise ApiError(
                400, f"The lora adapter '{name}' has already been loaded.", kind="InvalidUserInput"
            )
        if len(adapters) >= MAX_ADAPTERS:
            raise ApiError(400, f"{MAX_ADAPTERS} adapters are loaded; unload one first")
        self._limits = replace(self._limits, adapters=(*adapters, name))
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_lora(self, request: web.Request) -> web.Response:
        name, adapters = protocol.lora_name(await request.read(), load=False), self._limits.adapters
        if name not in adapters:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", kind="NotFoundError")
        self._limits = replace(self._limits, adapters=tuple(a for a in adapters if a != name))
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _sleep(self, request: web.Request) -> web.Response:
        level = request.query.get("level", "1")
        if level not in {"1", "2"}:
            raise ApiError(400, "level must be 1 or 2", param="level")
        self._sleep_level = int(level)
        for unit in self._units:
            unit.clear_prefixes()
            unit.metrics.asleep(self._sleep_level)
        self._hold_or_run()
        return web.Response()

    async def _wake(self, _: web.Request) -> web.Response:
        self._sleep_level = None
        for unit in self._units:
            unit.metrics.asleep(0)
        self._hold_or_run()
        return web.Response()

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self._sleep_level is not None})

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        for unit in self._units:
            unit.clear_prefixes()
        return web.Response()

    async def _show_faults(self, _: web.Request) -> web.Response:
        return self._json(self._faults.json())

    async def _change_faults(self, request: web.Request) -> web.Response:
        self._faults = faults = self._faults.changed(await request.read())
        if faults.metrics != "stale":
            self._stale_page = None
        elif self._stale_page is None:
            self._stale_page = self._page()
        for unit in self._units:
            unit.driver.change(lambda engine, _: engine.set_speed(1 / faults.slow))
        self._hold_or_run()
        if faults.hang == "server":
            self._answering.clear()
        else:
            self._answering.set()
        return self._json(faults.json())

    async def _crash_now(self, _: web.Request) -> web.Response:
        self._crash()
        return web.Response()

    def _hold_or_run(self) -> None:
        """Freeze the engines while the server sleeps or an injected hang lasts."""
        held = self._sleep_level is not None or self._faults.hang != "no"
        for unit in self._units:
            unit.driver.change(Engine.freeze if held else Engine.thaw)

    def _json(self, body: bytes) -> web.Response:
        return web.Response(body=body, content_type=JSON_TYPE, headers=self._headers)

    def _next_id(self, made: Generation, prefix: str = "") -> str:
        self._answers += 1
        name = f"{prefix}_" if prefix else "chatcmpl-" if made.chat else "cmpl-"
        return f"{name}{made.digest:016x}{self._answers:08x}"

    def _number(self, prefix: str) -> str:
        self._answers += 1
        return f"{prefix}-{self._answers:08x}"


class Readiness:
    """Whether the process is draining."""

    __slots__ = ("draining",)

    def __init__(self) -> None:
        self.draining = False


def _usage(sequence: Sequence) -> protocol.Usage:
    return protocol.Usage(sequence.request.prompt_tokens, sequence.generated, sequence.cached_tokens)


def _reset(request: web.Request) -> None:
    """Reset the connection: the peer sees an error instead of the end of the answer."""
    transport = request.transport
    if transport is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


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
