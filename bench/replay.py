"""CPU cost of a request in the picker's process without sockets: Envoy's bytes in, the picker's bytes out.

    python bench/replay.py                     this tree, by shape of the request and by part
    python bench/replay.py --against DIR       CPU ratios to another checkout, with 95 % intervals

The messages are laid out as Envoy 1.40 sends them to a picker in full-duplex mode, with its metadata behind
each. A wave of exchanges comes together: one read has the requests of all, one the answers or the next event
of each, one their ends. Parts: `transport` is what the HTTP/2 connection adds, `decision` what the pool's
router adds to a fixed answer, `exchange` the rest. Prints one JSON line a figure: microseconds of process CPU
a request, the least of the rounds, as the work is the same in each.
"""

import asyncio
import gc
import inspect
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, cast

import numpy as np
import paired
from envoy.service.ext_proc.v3 import external_processor_pb2 as _untyped_pb
from hpack import Encoder

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.extproc.route import process_route
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.transport import LIMITS
from ext_proc.budget import BodyBudget
from ext_proc.handler import PROCESS_METHOD
from lean_grpc import Server, StatusCode
from lean_grpc.aio.server import _ServerLink
from lean_grpc.http2 import codes

pb = cast("Any", _untyped_pb)

ROUNDS: Final = 9
#: Exchanges that come together: as many as a read has of the 64 connections of `bench/picker.py`.
WAVE: Final = 10
ENDPOINTS: Final = 10
#: Requests of one measurement, about; a stream counts as many as it has events, divided by eight.
REQUESTS: Final = 600
WINDOW: Final = 1 << 30


class Meter:
    """Reads the CPU time, in seconds; `instructions` puts a counter of instructions in its place."""

    def __init__(self) -> None:
        self.read: Callable[[], float] = time.process_time


METER: Final = Meter()

_DESTINATION: Final = re.compile(rb"x-gateway-destination-endpoint\x1a.([0-9.:,]+)", re.DOTALL)
_USAGE: Final = {"prompt_tokens": 250, "completion_tokens": 100, "total_tokens": 350}
_NUMBER: Final = count()


@dataclass(frozen=True)
class Shape:
    """One kind of exchange."""

    name: str
    path: str
    body: Callable[[], bytes]
    events: int = 0
    """Events of the answer; 0: one document."""

    @property
    def weight(self) -> int:
        """How many plain requests it stands for, roughly."""
        return max(1, self.events // 8)


def completion() -> bytes:
    """Return a prompt of 1 KB that is like no other."""
    return json.dumps({"model": "m", "stream": False, "prompt": f"{next(_NUMBER)} " + "x" * 940}).encode()


def chat(size: int, *, stream: bool = False) -> Callable[[], bytes]:
    """Return a maker of chats of `size` bytes, half of it a system prompt that one in eight others has."""
    half = (size - 150) // 2
    systems = [f"{number} " + "You are helpful. " * (half // 17) for number in range(8)]

    def body() -> bytes:
        number = next(_NUMBER)
        messages = [
            {"role": "system", "content": systems[number % 8]},
            {"role": "user", "content": f"{number} " + "word " * (half // 5)},
        ]
        more = {"stream_options": {"include_usage": True}} if stream else {}
        return json.dumps(
            {"model": "m", "messages": messages, "stream": stream, "max_tokens": 256, **more}
        ).encode()

    return body


_CHAT: Final = "/v1/chat/completions"
SHAPES: Final = (
    Shape("completion_1k", "/v1/completions", completion),
    Shape("chat_1k", _CHAT, chat(1024)),
    Shape("chat_4k", _CHAT, chat(4096)),
    Shape("stream_50", _CHAT, chat(1024, stream=True), events=50),
    Shape("stream_100", _CHAT, chat(1024, stream=True), events=100),
)


# What Envoy sends.


def request_messages(shape: Shape) -> list[bytes]:
    """Return the messages of a request: its headers, its body, and the end of the body."""
    body = shape.body()
    headers = {
        ":authority": "gateway.example.com",
        ":path": shape.path,
        ":method": "POST",
        ":scheme": "http",
        "content-type": "application/json",
        "user-agent": "python-httpx/0.28",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
        "authorization": "Bearer sk-0123456789abcdef",
        "content-length": str(len(body)),
        "x-forwarded-proto": "http",
        "x-request-id": f"cee4c42b-9993-4a03-bd12-{next(_NUMBER):012x}",
    }
    first = pb.ProcessingRequest(request_headers=_http_headers(headers))
    first.metadata_context.SetInParent()
    first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = 4
    return [first.SerializeToString(), *(each + b"B\x00" for each in _pieces("request_body", body))]


def answer_messages(shape: Shape, destination: str) -> list[list[bytes]]:
    """Return what the answer brings, one list for each read."""
    message = pb.ProcessingRequest()
    message.metadata_context.filter_metadata["envoy.lb"].update(
        {
            "x-gateway-destination-endpoint": destination,
            "x-gateway-destination-endpoint-served": destination.partition(",")[0],
        }
    )
    metadata = message.SerializeToString()
    headers = {":status": "200", "content-type": "application/json", "x-envoy-upstream-service-time": "1"}
    if not shape.events:
        body = json.dumps({"choices": [{"text": "y" * 900}], "usage": _USAGE}).encode()
        headers["content-length"] = str(len(body))
        steps = [[_response_headers(headers), *_pieces("response_body", body)]]
    else:
        headers["content-type"] = "text/event-stream"
        events = [_event(number, last=number == shape.events - 1) for number in range(shape.events)]
        pieces = [_pieces("response_body", event) for event in events]
        steps = [[_response_headers(headers)], *([piece] for piece, _ in pieces), [pieces[0][1]]]
    return [[each + metadata for each in step] for step in steps]


def _http_headers(headers: dict[str, str]) -> Any:
    found = pb.HttpHeaders()
    for key, value in headers.items():
        found.headers.headers.add(key=key, raw_value=value.encode())
    return found


def _response_headers(headers: dict[str, str]) -> bytes:
    message = pb.ProcessingRequest(response_headers=_http_headers(headers))
    return cast("bytes", message.SerializeToString())


def _pieces(kind: str, body: bytes) -> list[bytes]:
    """Return the body in one message and its end in another, as Envoy cuts a body of one read."""
    parts = (pb.HttpBody(body=body), pb.HttpBody(end_of_stream=True))
    return [cast("bytes", pb.ProcessingRequest(**{kind: part}).SerializeToString()) for part in parts]


def _event(number: int, *, last: bool) -> bytes:
    choice = {"index": 0, "delta": {"content": f" token{number}"}, "logprobs": None, "finish_reason": None}
    text = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return f"data: {json.dumps({**text, 'usage': _USAGE if last else None})}\n\n".encode()


# What takes it.


class Answers:
    """The messages of answers, made once for each destination."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._made: dict[str, list[list[bytes]]] = {}

    def to(self, sent: bytes) -> list[list[bytes]]:
        """Return the answer of the server that the picker's reply names."""
        found = _DESTINATION.search(sent)
        assert found is not None, sent
        destination = found[1].decode()
        made = self._made.get(destination)
        if made is None:
            made = self._made[destination] = answer_messages(self._shape, destination)
        return made


class Socket:
    """Stands in for a connection's transport: keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write = self.written.append

    def get_extra_info(self, _name: str) -> None:
        """Say that there is no TLS."""

    def close(self) -> None:
        """Never called: the peer keeps to the protocol."""
        raise AssertionError(self.written[-1])

    abort = close


class Connection:
    """One connection of an Envoy to the picker."""

    def __init__(self, factory: Any) -> None:
        server = Server(limits=LIMITS)
        server.add(PROCESS_METHOD, factory)
        self._link = _ServerLink(server, asyncio.get_running_loop())
        self._socket = Socket()
        self._link.connection_made(cast("Any", self._socket))
        encoder = Encoder()
        fields = [
            (":method", "POST"),
            (":path", PROCESS_METHOD),
            (":scheme", "http"),
            (":authority", "picker"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-envoy-internal", "true"),
            ("x-forwarded-for", "192.0.2.1"),
        ]
        self._blocks = iter(lambda: encoder.encode(fields), None)
        self._id = 1
        window = codes.UINT32.pack(WINDOW)
        settings = codes.frame(codes.SETTINGS, 0, 0, b"\x00\x04" + window)
        self.take(codes.PREFACE + settings + codes.frame(codes.WINDOW_UPDATE, 0, 0, window))
        self.take(codes.frame(codes.SETTINGS, codes.ACK, 0))

    def take(self, data: bytes) -> tuple[float, bytes]:
        """Let the picker read `data`; return the CPU seconds and what it wrote."""
        written = self._socket.written
        written.clear()
        begun = METER.read()
        self._link.data_received(data)
        took = METER.read() - begun
        return took, b"".join(written)

    def wave(self, shape: Shape, answers: Answers) -> float:
        """Run a wave of exchanges; return the CPU seconds."""
        ids = range(self._id, self._id + 2 * WAVE, 2)
        self._id += 2 * WAVE
        asked = b"".join(
            codes.frame(codes.HEADERS, codes.END_HEADERS, each, next(self._blocks))
            + _frames(each, request_messages(shape))
            for each in ids
        )
        total, sent = self.take(asked)
        replies = _by_stream(sent)
        answered = [answers.to(replies[each]) for each in ids]
        size = 0
        for step in zip(*answered, strict=True):
            data = b"".join([_frames(each, messages) for each, messages in zip(ids, step, strict=True)])
            took, sent = self.take(data)
            total += took
            size += len(sent)
        ends = [codes.frame(codes.RST_STREAM, 0, each, codes.UINT32.pack(2)) for each in ids]
        total += self.take(b"".join(ends))[0]
        # What was sent must not exhaust the windows of the picker.
        self.take(codes.frame(codes.WINDOW_UPDATE, 0, 0, codes.UINT32.pack(size + len(asked))))
        return total


class Call:
    """Stands in for the call that carries an exchange: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, *payloads: bytes) -> bool:
        """Keep messages."""
        self.sent += payloads
        return True

    def finish(self, status: StatusCode = StatusCode.OK, message: str = "") -> None:
        """End the call, which no exchange here does by itself."""
        raise AssertionError(status, message)


class Calls:
    """The same exchanges without HTTP/2."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory

    def wave(self, shape: Shape, answers: Answers) -> float:
        """Run a wave of exchanges; return the CPU seconds."""
        calls = [Call() for _ in range(WAVE)]
        asked = [request_messages(shape) for _ in calls]
        factory = self._factory
        begun = METER.read()
        handlers = []
        for call, messages in zip(calls, asked, strict=True):
            handler = factory(call)
            handler.opened(())
            handlers.append(handler)
            for message in messages:
                handler.received(message)
        total = METER.read() - begun
        answered = [answers.to(b"".join(call.sent)) for call in calls]
        for call in calls:
            call.sent.clear()
        for step in zip(*answered, strict=True):
            begun = METER.read()
            for handler, messages in zip(handlers, step, strict=True):
                for message in messages:
                    handler.received(message)
            total += METER.read() - begun
        begun = METER.read()
        for handler in handlers:
            handler.aborted(StatusCode.CANCELLED)
        return total + METER.read() - begun


def _frames(stream: int, messages: Sequence[bytes]) -> bytes:
    payloads = [b"\x00" + codes.UINT32.pack(len(each)) + each for each in messages]
    return b"".join([codes.frame(codes.DATA, 0, stream, each) for each in payloads])


def _by_stream(sent: bytes) -> dict[int, bytes]:
    """Return the data that the picker sent, by stream."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(sent):
        high, low, kind, _, stream = codes.FRAME_HEADER.unpack_from(sent, at)
        end = at + 9 + (high << 8 | low)
        if kind == codes.DATA:
            found[stream] = found.get(stream, b"") + sent[at + 9 : end]
        at = end
    return found


class FixedRouter:
    """Answers every request with the next of a few decisions, so that the decision costs nothing."""

    def __init__(self, router: PoolRouter) -> None:
        if hasattr(router, "reading"):
            self.reading = router.reading
        names = [f"10.0.0.{number}:8000" for number in range(ENDPOINTS)]
        self._next = iter(
            lambda: Decision(
                destination=",".join(names[:3]),
                endpoint=names[0],
                reservations=(Reservation(row=0, generation=0, tokens=0),),
            ),
            None,
        )

    def decide(self, _request: object, _subset: object, _resume: object) -> Decision:
        """Return the next decision."""
        return next(self._next)

    def first_byte(self, decision: object, record: object) -> None:
        """Do nothing."""

    ended = first_byte


def pool() -> PoolRouter:
    """Return a router over endpoints with unequal load."""
    rng = np.random.default_rng(1)
    registry = Registry(paired.plugin_loaders(paired.measured_tree()))
    router = build_router(rng=rng, registry=registry)
    router.replace_endpoints(
        Endpoint(f"p{n}-rank-0", "default", f"10.0.0.{n}", 8000) for n in range(ENDPOINTS)
    )
    table, rows = router.table, router.table.ready_rows
    table.waiting[rows] = rng.integers(0, 5, ENDPOINTS)
    table.running[rows] = rng.integers(0, 60, ENDPOINTS)
    table.kv_usage[rows] = rng.random(ENDPOINTS)
    table.scraped_at[rows] = time.monotonic()
    return router


def route(router: object) -> Any:
    """Return the factory of handlers, as the process makes it."""
    loop = asyncio.get_running_loop()
    parts: list[Any] = [router, BodyBudget(), PickerMetrics(), time.monotonic]
    if "soon" in inspect.signature(process_route).parameters:
        parts += [None, loop.call_soon]
    return process_route(*parts)


def drivers() -> dict[str, Connection | Calls]:
    """Return what runs the exchanges: whole, without transport, and without the decision as well."""
    router = pool()
    return {
        "whole": Connection(route(router)),
        "calls": Calls(route(router)),
        "exchange": Calls(route(FixedRouter(router))),
    }


async def rounds(names: Sequence[str], shapes: Sequence[Shape]) -> dict[tuple[str, str], list[float]]:
    """Measure in turn, `ROUNDS` times: microseconds a request, by driver and shape."""
    running = {name: driver for name, driver in drivers().items() if name in names}
    answers = {shape.name: Answers(shape) for shape in shapes}
    for driver in running.values():
        for shape in shapes:
            driver.wave(shape, answers[shape.name])
    gc.collect()
    gc.freeze()
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, driver in running.items():
            for shape in shapes:
                waves = max(2, REQUESTS // WAVE // shape.weight)
                cost = sum(driver.wave(shape, answers[shape.name]) for _ in range(waves))
                found.setdefault((name, shape.name), []).append(cost / waves / WAVE * 1e6)
    return found


def worker() -> dict[str, float]:
    """Measure the whole once, for a comparison with another tree."""
    found = asyncio.run(rounds(["whole", "exchange"], SHAPES))
    return {f"replay_{name}_{shape}": min(values) for (name, shape), values in found.items()}


def alone() -> None:
    """Measure and print."""
    found = asyncio.run(rounds(["whole", "calls", "exchange"], SHAPES))
    for shape in SHAPES:
        for part, value, values in _parts(found, shape.name):
            line: dict[str, Any] = {"figure": f"replay_{shape.name}", "part": part, "value": round(value, 2)}
            line |= {"unit": "us"} | ({"events": shape.events} if shape.events else {})
            line |= {"spread": [round(min(values), 2), round(max(values), 2)]} if values else {}
            print(json.dumps(line))


def _parts(found: dict[tuple[str, str], list[float]], shape: str) -> Iterator[tuple[str, float, list[float]]]:
    whole, calls, exchange = (min(found[name, shape]) for name in ("whole", "calls", "exchange"))
    yield "whole", whole, found["whole", shape]
    yield "transport", whole - calls, []
    yield "decision", calls - exchange, []
    yield "exchange", exchange, found["exchange", shape]


if __name__ == "__main__":
    paired.command("replay", worker, alone)
