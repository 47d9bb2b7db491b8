"""CPU of the request life alone: one exchange of the state machine, no transport and no decision.

Prints one JSON line a figure: microseconds of process CPU, the median of the rounds.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import ext_proc as wire
from endpoint_picker.decision import Decision, Refusal, Reservation, Resume, Waiting
from endpoint_picker.extproc.buffers import BufferBudget
from endpoint_picker.extproc.stream import Exchange
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.record import Ending, Record
from endpoint_picker.request import InferenceRequest

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
    """Decides nothing: what is measured is the rest."""

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        return Decision(
            destination="10.0.0.1:8000",
            endpoint="10.0.0.1:8000",
            reservations=(Reservation(row=0, generation=0, tokens=0),),
        )

    def first_byte(self, decision: Decision, record: Record) -> None:
        pass

    def ended(self, decision: Decision, record: Record) -> None:
        pass


def exchange_messages() -> list[bytes]:
    """A request of 1 KB and an answer of 1 KB: four messages that are answered by five."""
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


def main() -> None:
    router, budget, metrics = FixedRouter(), BufferBudget(), PickerMetrics()
    messages = exchange_messages()
    head, piece = [*messages[:2], wire.response_headers("text/event-stream")], chunk()

    def whole() -> None:
        exchange = Exchange(router, budget, metrics, 1.0)
        for message in messages:
            exchange.received(message, 2.0)

    def stream() -> None:
        exchange = Exchange(router, budget, metrics, 1.0)
        for message in head:
            exchange.received(message, 2.0)
        for _ in range(CHUNKS):
            exchange.received(piece, 3.0)
        exchange.closed(Ending.DISCONNECTED, 4.0)

    def stream_head() -> None:
        exchange = Exchange(router, budget, metrics, 1.0)
        for message in head:
            exchange.received(message, 2.0)
        exchange.closed(Ending.DISCONNECTED, 4.0)

    rounds = [(cpu_us(whole, EXCHANGES), _chunk_us(stream, stream_head)) for _ in range(ROUNDS)]
    for at, figure in enumerate(("exchange_state_machine_cpu", "chunk_state_machine_cpu")):
        values = [each[at] for each in rounds]
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
    main()
