"""CPU cost of one exchange in the state machine, without transport and decision.

Prints one JSON line a figure: microseconds of process CPU, the median of the rounds.

    python bench/exchange.py                   this tree
    python bench/exchange.py --against DIR     CPU ratios to another checkout, with 95 % intervals
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle

import paired

sys.path.insert(0, str(paired.measured_tree() / "tests" / "support"))

import envoy_messages as wire
from endpoint_picker.decision import BodyReading, Decision, Refusal, Reservation, Resume, Waiting
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.processor import Ending
from ext_proc.turns import Turns

READING = BodyReading(frozenset({"openai-parser"}))
TURNS = Turns(None, 1 << 28)
ROUNDS = 9
EXCHANGES = 3000
CHUNKS = 64
HEADERS = {
    "user-agent": "python-httpx/0.28",
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "authorization": "Bearer sk-0123456789abcdef",
    "x-forwarded-proto": "http",
    "x-envoy-expected-rq-timeout-ms": "15000",
    ":authority": "gateway.example.com",
    ":scheme": "http",
}


class FixedRouter:
    """Hands out the given destinations in turn, so that a decision costs nothing in the measured exchange."""

    def __init__(self, names: list[str]) -> None:
        self._next = cycle([(each, each.partition(",")[0]) for each in names]).__next__

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        destination, endpoint = self._next()
        return Decision(
            destination=destination,
            endpoint=endpoint,
            reservations=(Reservation(row=0, generation=0, tokens=0),),
        )

    def failed(self, request_id: str, status: int) -> None:
        raise AssertionError

    def unrouted(self, request: InferenceRequest, refusal: Refusal) -> None:
        pass

    def first_byte(self, decision: Decision, record: Record) -> None:
        pass

    def reading(self) -> BodyReading:
        return READING

    def response_headers(self, decision: Decision, record: Record) -> Sequence[tuple[str, str]]:
        return ()

    def response_complete(self, decision: Decision, record: Record) -> Sequence[tuple[str, str, float]]:
        return ()

    def ended(self, decision: Decision, record: Record) -> None:
        pass


def exchange_messages() -> list[bytes]:
    """Return the four messages of an exchange: 1 KB of request, 1 KB of answer. Five replies answer them."""
    usage = {"prompt_tokens": 250, "completion_tokens": 100, "total_tokens": 350}
    answer = json.dumps({"choices": [{"text": "y" * 900}], "usage": usage}).encode()
    return [
        wire.request_headers(HEADERS),
        wire.request_body(wire.body_of(prompt="x" * 950), end=True),
        wire.response_headers(served="10.0.0.1:8000"),
        wire.response_body(answer, end=True),
    ]


def chunk() -> bytes:
    choice = {"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}
    event = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        "usage": None,
    }
    return wire.response_body(f"data: {json.dumps(event)}\n\n".encode(), end=False)


def cpu_us(work: Callable[[], None], count: int) -> float:
    begun = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - begun) / count * 1e6


def destinations(endpoints: int) -> list[str]:
    """Return destinations of a pool with this many endpoints: three endpoints each, in random order."""
    rng = random.Random(1)
    names = [f"10.0.{n // 250}.{n % 250}:8000" for n in range(endpoints)]
    return [",".join(rng.sample(names, 3)) for _ in range(EXCHANGES)]


def whole(endpoints: int, metrics: PickerMetrics) -> Callable[[], None]:
    """Return one exchange with the destinations of a pool of `endpoints` endpoints."""
    router, budget, messages = FixedRouter(destinations(endpoints)), BodyBudget(), exchange_messages()

    def act() -> None:
        exchange = Exchange(Picking(router, metrics, 1.0, time.monotonic, TURNS), budget)
        for message in messages:
            exchange.received(message, 2.0)

    return act


def chunks(metrics: PickerMetrics) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a streamed exchange with `CHUNKS` body chunks, and the same without a chunk."""
    router, budget, messages = FixedRouter(destinations(3)), BodyBudget(), exchange_messages()
    head, piece = [*messages[:2], wire.response_headers("text/event-stream")], chunk()

    def stream() -> None:
        exchange = Exchange(Picking(router, metrics, 1.0, time.monotonic, TURNS), budget)
        for message in head:
            exchange.received(message, 2.0)
        for _ in range(CHUNKS):
            exchange.received(piece, 3.0)
        exchange.closed(Ending.DISCONNECTED, 4.0)

    def stream_head() -> None:
        exchange = Exchange(Picking(router, metrics, 1.0, time.monotonic, TURNS), budget)
        for message in head:
            exchange.received(message, 2.0)
        exchange.closed(Ending.DISCONNECTED, 4.0)

    return stream, stream_head


def rounds() -> dict[str, list[float]]:
    """Measure all figures in turn, `ROUNDS` times."""
    metrics = PickerMetrics()
    wholes = {f"exchange_cpu_{count}_endpoints": whole(count, metrics) for count in (3, 32, 100)}
    stream, stream_head = chunks(metrics)
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for figure, act in wholes.items():
            found.setdefault(figure, []).append(cpu_us(act, EXCHANGES))
        found.setdefault("chunk_cpu", []).append(_chunk_us(stream, stream_head))
    return found


def worker() -> dict[str, float]:
    """Measure once, for a comparison with another tree."""
    return {figure: statistics.median(values) for figure, values in rounds().items()}


def alone() -> None:
    """Measure and print."""
    for figure, values in rounds().items():
        line = {
            "figure": figure,
            "value": round(statistics.median(values), 2),
            "unit": "us",
            "spread": [round(min(values), 2), round(max(values), 2)],
        }
        print(json.dumps(line))


def _chunk_us(stream: Callable[[], None], stream_head: Callable[[], None]) -> float:
    count = EXCHANGES // CHUNKS * 4
    return (cpu_us(stream, count) - cpu_us(stream_head, count)) / CHUNKS


if __name__ == "__main__":
    paired.command("exchange", worker, alone)
