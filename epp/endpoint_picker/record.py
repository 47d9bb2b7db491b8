"""The facts of one exchange, for metrics and followers. Plain values; times in seconds."""

from collections.abc import Callable
from typing import Protocol

from endpoint_picker.outcomes import Outcome
from ext_proc.body.usage import Usage
from ext_proc.processor import Ending


class Record:
    """Facts of one exchange, filled in as they become known. Times are of the exchange's clock."""

    __slots__ = (
        "decided_at",
        "ended_at",
        "ending",
        "endpoint",
        "failed_in_body",
        "first_byte_at",
        "first_token_at",
        "last_token_at",
        "model",
        "objective",
        "outcome",
        "priority",
        "request_bytes",
        "request_id",
        "response_bytes",
        "response_id",
        "response_status",
        "served_by",
        "started_at",
        "streaming",
        "target_model",
        "tokens_seen",
        "usage",
    )

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.decided_at = 0.0
        """0.0 until the decision."""
        self.first_byte_at = 0.0
        """0.0 until the first byte of the response body."""
        self.first_token_at = 0.0
        """When the prompt had been computed. Of a stream, the end of the first event that holds something
        generated, which one that names the role does not; otherwise the first byte. 0.0 until then."""
        self.last_token_at = 0.0
        """When the last event with a token came; 0.0 without a stream of tokens."""
        self.tokens_seen = 0
        """Events with a token in the stream, known at its end: output tokens as far as events tell."""
        self.ended_at = 0.0
        self.request_id = ""
        self.model = ""
        """Model that the client asked for."""
        self.target_model = ""
        """Model that a rewrite chose, perhaps the same one; "" when no rule matched."""
        self.objective = ""
        self.priority = 0
        self.outcome: Outcome | None = None
        """None when the stream ended before a decision."""
        self.ending: Ending | None = None
        self.endpoint = ""
        """"ip:port" that was picked."""
        self.served_by = ""
        """"ip:port" that answered, as the proxy reports it; "" without a report."""
        self.streaming = False
        """The response is a stream of server-sent events."""
        self.response_status = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.response_id = ""
        """`id` of an answer of the responses API."""
        self.failed_in_body = False
        """The server, after a status of success, said in the body that it failed."""
        self.usage: Usage | None = None

    @property
    def output_tokens(self) -> int:
        """Return the tokens of the answer: by usage, else by the stream's events; 0 where neither tells."""
        usage = self.usage
        return usage.output_tokens if usage is not None and usage.output_tokens else self.tokens_seen

    @property
    def status(self) -> int:
        """Return the status that the client got: a refusal's own, else the server's; 0 before either."""
        if self.outcome is None or self.outcome is Outcome.PICKED:
            return self.response_status
        return self.outcome.http_status


class Observer(Protocol):
    """Follows every exchange. It is called on the hot path, so it only counts."""

    def started(self) -> None:
        """Note that an exchange began."""
        ...

    def decided(self, record: Record, seconds: float) -> None:
        """Note a decision (picked or refused) and the time that it took."""
        ...

    def rewritten(self, rewrite: str, model: str, target: str) -> None:
        """Note that a rule of this rewrite chose `target`; it names the model, or "*" for all of them."""
        ...

    def gap_counter(self, record: Record) -> Callable[[float], None]:
        """Return a counter of the times between two tokens of this streamed response; called once."""
        ...

    def ended(self, record: Record) -> None:
        """Note the end; called exactly once for each `started`."""
        ...
