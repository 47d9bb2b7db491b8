"""A processor for tests of the exchange: a test sets its answers and reads its calls; wrong calls raise."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from ext_proc import wire
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.head import NO_NAMES, Head, Names
from ext_proc.processor import Ending, Forward, Reply
from ext_proc.wire import Held

FORWARD = Forward(wire.set_header("x-model", b"m"), wire.dynamic_metadata("space", "key", b"value"))
REPLY = Reply(wire.immediate_reply(429, [("x-why", "busy")], "later", "busy"))

Resume = Callable[[Forward | Reply], None]


class StandInWait:
    """An answer that waits; counts how often it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class StandInProcessor:
    """Gives `answer`, or a `StandInWait` when that is None. Raises in the method named `fails_in`."""

    names: ClassVar[Names] = NO_NAMES

    def __init__(self, answer: Forward | Reply | None = FORWARD, fails_in: str = "") -> None:
        self.answer = answer
        self.fails_in = fails_in
        self.calls: list[str] = []
        self.holds = True
        self.body: bytes | None = None
        self.parts = 0
        self.waiting = StandInWait()
        self.resume: Resume | None = None
        self.response: list[bytes] = []
        self.edit: Callable[[bytes], bytes | None] | None = None
        self.rest = b""
        self.endings: list[Ending] = []
        self.mutation = b""
        self.metadata = b""

    def request_headers(self, head: Head, now: float) -> bool:
        self._call("request_headers")
        return self.holds

    def request_part(self, chunks: Sequence[Held], size: int) -> None:
        assert size == sum(map(len, chunks))
        self.parts += 1

    def request(
        self, body: Sequence[Held] | None, resume: Resume, now: float
    ) -> Forward | Reply | StandInWait:
        self._call("request")
        self.body = None if body is None else b"".join(body)
        if self.answer is not None:
            return self.answer
        self.resume = resume
        return self.waiting

    def resumed(self, late: Forward | Reply, now: float) -> Forward | Reply:
        self._call("resumed")
        assert not self.waiting.cancelled
        return late

    def evicted(self, late: Forward | Reply, now: float) -> Reply:
        self._call("evicted")
        assert isinstance(late, Reply)
        return late

    def headers_too_large(self, fields: int, size: int, now: float) -> Reply:
        self._call("headers_too_large")
        return REPLY

    def body_too_large(self, limit: int, now: float) -> Reply:
        self._call("body_too_large")
        return REPLY

    def buffers_full(self, now: float) -> Reply:
        self._call("buffers_full")
        return REPLY

    def response_headers(self, head: Head, now: float) -> bytes:
        self._call("response_headers")
        return self.mutation

    def response_body(self, piece: bytes, now: float) -> bytes | None:
        self._call("response_body")
        assert piece
        self.response.append(piece)
        return None if self.edit is None else self.edit(piece)

    def response_rest(self) -> bytes:
        return self.rest

    def response_complete(self, now: float) -> bytes:
        self._call("response_complete")
        return self.metadata

    def ended(self, ending: Ending, now: float) -> None:
        self.endings.append(ending)
        self._call("ended")

    def _call(self, name: str) -> None:
        assert name == "ended" or not self.endings, f"{name} after the end"
        self.calls.append(name)
        if name == self.fails_in:
            raise ZeroDivisionError


class Peer:
    """Feeds an exchange with messages, as a handler does, and takes all of its replies."""

    def __init__(
        self,
        answer: Forward | Reply | None = FORWARD,
        *,
        budget: BodyBudget | None = None,
        fails_in: str = "",
    ) -> None:
        self.processor = StandInProcessor(answer, fails_in)
        self.budget = budget or BodyBudget()
        self.exchange = Exchange(self.processor, self.budget)
        self.replies: list[bytes] = []
        self.now = 1.0

    def feed(self, *payloads: bytes) -> list[bytes]:
        """Feed messages; return the replies to them, all of the backlog included."""
        got: list[bytes] = []
        for payload in payloads:
            self.now += 1.0
            got += self.exchange.received(payload, self.now)
            if self.exchange.waits:
                self.exchange.on_resume = self._resumed
            got += self.drain()
        self.replies += got
        return got

    def resume(self, late: Forward | Reply) -> list[bytes]:
        """Give the answer that was waited for; return the replies that follow."""
        before = len(self.replies)
        assert self.processor.resume is not None
        self.processor.resume(late)
        return self.replies[before:]

    def drain(self) -> list[bytes]:
        """Return all of the backlog."""
        got: list[bytes] = []
        while self.exchange.backlog is not None:
            got += self.exchange.more()
        return got

    def close(self) -> None:
        self.exchange.closed(Ending.DISCONNECTED, self.now)

    def _resumed(self, late: Forward | Reply) -> None:
        self.exchange.resumed(late, self.now)
        if self.exchange.status is None:
            self.exchange.on_resume = self._resumed
        self.replies += self.drain()
