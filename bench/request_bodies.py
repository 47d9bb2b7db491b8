"""What reading a request's body costs, and for how long it keeps the event loop from other requests.

    python bench/request_bodies.py

The cost of a 550 KB chat in the state machine is a ratio to what cannot be saved: one orjson.loads of the
body, one xxhash pass over the prompt, one copy of the chunks. A hold is the longest of the callbacks that a
request takes: a message of the proxy, or a turn in which a large body is read, in CPU time of the thread.
Each is measured several times and the shortest counts, since a machine may not be quiet. Bodies come in
pieces of 64 KiB, as Envoy sends them.
"""

import gc
import itertools
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import orjson
from typing_extensions import override
from xxhash import xxh64_intdigest

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from exchange import FixedRouter, destinations

import envoy_messages as wire
from endpoint_picker.config.parsers import READING
from endpoint_picker.decision import BodyReading, Decision, Refusal, Resume, Waiting
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.request import InferenceRequest
from ext_proc.budget import BodyBudget
from ext_proc.exchange import CHUNK_BYTES, Exchange
from ext_proc.handler import ProcessHandler
from ext_proc.turns import Turns

ROUNDS = 9
PIECE = 65_536
RATIO_GOAL = 2.5
HOLD_GOAL_MS = 10.0
KB, MB = 1024, 1024 * 1024
SIZES = {
    "1KB": KB,
    "64KB": 64 * KB,
    "600KB": 600 * KB,
    "1MB": MB,
    "20MB": 20 * MB,
    "256MB": 256 * MB - 4 * KB,
}
TIMES = {"256MB": 2, "20MB": 3}


class AnyRouter(FixedRouter):
    """Reads every API, and keeps the request asked about last."""

    asked: InferenceRequest

    @override
    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        self.asked = request
        return super().decide(request, subset, resume)

    @override
    def reading(self) -> BodyReading:
        return BodyReading(frozenset(kind.type_name for kind in READING))


class Sink:
    """Takes what a handler sends, as fast as it comes."""

    def send(self, *payloads: bytes) -> bool:
        return True

    def finish(self, *_status: object) -> None:
        pass


class Loop:
    """The turns of an event loop; notes the longest."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.longest = 0.0

    def call(self, function: Callable[[], None]) -> None:
        begun = time.thread_time()
        function()
        self.longest = max(self.longest, time.thread_time() - begun)

    def drain(self) -> None:
        while self.soon:
            self.call(self.soon.popleft())


TEXT = b'It is a truth universally acknowledged, that a \\"single\\" man in want of a wife must be\\n'


def text(size: int) -> Iterator[bytes]:
    return itertools.repeat(TEXT, max(1, size // len(TEXT)))


def quoted(size: int) -> Iterator[bytes]:
    return itertools.repeat(b'\\"' * 512, max(1, size // 1024))


BODIES: dict[str, tuple[str, bytes, Callable[[int], Iterator[bytes]], bytes]] = {
    "text": ("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"', text, b'"}]}'),
    "quotes": ("/v1/completions", b'{"model":"m","prompt":"', quoted, b'"}'),
    "messages": (
        "/v1/chat/completions",
        b'{"model":"m","messages":[',
        lambda size: itertools.repeat(b'{"role":"user","content":"a short one"},', max(1, size // 40)),
        b'{"role":"user","content":"last"}]}',
    ),
    "token_ids": (
        "/v1/completions",
        b'{"model":"m","prompt":[',
        lambda size: itertools.repeat(b"1234,9,56789,", max(1, size // 13)),
        b"1]}",
    ),
    "nested": (
        "/v1/chat/completions",
        b'{"model":"m","messages":[',
        lambda size: itertools.repeat(b'[],{"a":[{}]},', max(1, size // 14)),
        b"1]}",
    ),
    "keys": (
        "/v1/completions",
        b'{"model":"m","metadata":{',
        lambda size: itertools.repeat(b'"k":0,', max(1, size // 6)),
        b'"k":0},"prompt":"p"}',
    ),
}


def pieces(head: bytes, parts: Iterator[bytes], tail: bytes) -> Iterator[bytes]:
    """Yield a body in pieces of 64 KiB without holding it."""
    kept = bytearray(head)
    for part in itertools.chain(parts, (tail,)):
        kept += part
        while len(kept) >= PIECE:
            yield bytes(kept[:PIECE])
            del kept[:PIECE]
    yield bytes(kept)


def hold_ms(kind: str, size: int) -> float:
    """Send one body through a handler; return the longest callback."""
    path, head, make, tail = BODIES[kind]
    loop, metrics = Loop(), PickerMetrics()
    turns = Turns(loop.soon.append, 1 << 28)
    budget = BodyBudget(1 << 28, 1 << 30)
    picking = Picking(AnyRouter(["10.0.0.1:8000"]), metrics, 1.0, time.monotonic, turns)
    handler = ProcessHandler(Sink(), Exchange(picking, budget), time.monotonic, _raise, loop.soon.append)
    gc.collect()
    gc.freeze()
    first = wire.request_headers(path=path)
    loop.call(lambda: handler.received(first))
    for piece in pieces(head, make(size), tail):
        message = wire.request_body(piece, end=False)
        loop.call(partial(handler.received, message))
        if loop.soon:  # one turn for each piece, as in an event loop
            loop.call(loop.soon.popleft())
    last = wire.request_body(b"", end=True)
    loop.call(lambda: handler.received(last))
    loop.drain()
    assert picking.record.outcome is not None, kind
    assert picking.record.outcome.value == "picked", picking.record.outcome
    gc.unfreeze()
    return loop.longest * 1e3


def _raise(fault: Exception, _processor: object) -> None:
    raise fault


def holds() -> None:
    for size, count in SIZES.items():
        for kind in BODIES:
            value = min(hold_ms(kind, count) for _ in range(TIMES.get(size, 5)))
            line = {
                "figure": "longest_hold",
                "body": kind,
                "size": size,
                "value": round(value, 2),
                "unit": "ms",
                "goal": HOLD_GOAL_MS,
                "ok": value <= HOLD_GOAL_MS,
            }
            print(json.dumps(line), flush=True)


def cpu(work: Callable[[], object], times: int = 40) -> float:
    begun = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun) / times


def ratio() -> None:
    """Print the cost of a 550 KB chat: the whole request side, from bytes of the proxy to bytes for it."""
    prompt = TEXT.replace(b"\\", b"") * (550_000 // len(TEXT))
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": prompt.decode()}]})
    messages = [wire.request_headers(path="/v1/chat/completions")]
    parts = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
    messages += [wire.request_body(part, end=part is parts[-1]) for part in parts]
    router, metrics, budget = AnyRouter(destinations(3)), PickerMetrics(), BodyBudget()
    turns = Turns(None, 1 << 28)

    def request() -> None:
        picking = Picking(router, metrics, 1.0, time.monotonic, turns)
        exchange = Exchange(picking, budget)
        for message in messages:
            exchange.received(message, 2.0)
        while exchange.backlog is not None:
            exchange.more()
        xxh64_intdigest(router.asked.prompt)
        assert picking.record.outcome is not None

    def least() -> None:
        orjson.loads(body)
        xxh64_intdigest(prompt)
        for at in range(0, len(body), CHUNK_BYTES):
            body[at : at + CHUNK_BYTES]

    ratios, costs = [], []
    for _ in range(ROUNDS):
        cost, floor = cpu(request), cpu(least)
        ratios.append(cost / floor)
        costs.append(cost * 1e3)
    value = statistics.median(ratios)
    line = {
        "figure": "request_550kb_ratio",
        "value": round(value, 2),
        "unit": "ratio to orjson.loads + xxhash + chunk copies",
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "cpu_ms": round(statistics.median(costs), 3),
        "goal": RATIO_GOAL,
        "ok": value <= RATIO_GOAL,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    ratio()
    holds()
