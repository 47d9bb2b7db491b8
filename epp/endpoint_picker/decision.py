"""The contract between an exchange and the router: what `Router.decide` takes and returns. No I/O."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.rewrites import Rewrites


class Reservation:
    """One request and its prompt tokens, counted on one endpoint; the ledger makes and ends it."""

    __slots__ = (
        "answered",
        "decode_tokens",
        "expects_events",
        "generation",
        "is_primary",
        "prefix_chain",
        "profile",
        "released",
        "row",
        "sequence",
        "session",
        "tokens",
    )

    def __init__(self, row: int, generation: int, tokens: int) -> None:
        self.row = row
        """Row in the endpoint table, valid while `generation` matches the row's."""
        self.generation = generation
        self.sequence = 0
        """Number among the reservations of its row, from 1; set by the ledger. -1 after `Ledger.move`."""
        self.tokens = tokens
        """Estimated uncached prompt tokens reserved on the row; 0 once the prompt has been computed."""
        self.decode_tokens = 0
        """Tokens reserved on the row until the end: the expected answer, if answers are counted, and the
        prompt, if another server computes it."""
        self.released = False
        self.answered = False
        """The first byte of the response has come."""
        self.is_primary = False
        """Its endpoint is the destination."""
        self.profile = ""
        """Name of the profile that chose the endpoint."""
        self.session = ""
        """Session that was bound to the endpoint with this decision; "" when none was."""
        self.prefix_chain: Sequence[int] = ()
        """Hashes of the prompt's blocks, kept until the first byte shows which endpoint computed them."""

    expects_events: bool
    """Its server has blocks to compute, of which KV events will tell; not set where they are not followed."""


class Decision:
    """An answer with what it reserved. The receiver calls `Router.ended` for it, once.

    The first byte of the response ends all reservations but the primary's, which ends with the response.
    """

    __slots__ = ("destination", "endpoint", "headers", "hooks", "prefix_hit", "reservations", "scores")

    def __init__(
        self,
        *,
        destination: str,
        endpoint: str,
        reservations: tuple[Reservation, ...],
        hooks: "Hooks | None" = None,
    ) -> None:
        self.destination = destination
        """Address ("ip:port") of the primary, then its fallbacks in order, comma-separated."""
        self.endpoint = endpoint
        """Address ("ip:port") of the primary."""
        self.reservations = reservations
        """One for each endpoint that works on the request, the primary's first."""
        self.hooks = NO_HOOKS if hooks is None else hooks
        """The followers to call for this decision: those of the configuration that made it."""
        self.headers: tuple[tuple[str, str], ...] = ()
        """(name, value) of the headers set on the request beside its destination."""
        self.prefix_hit = 0.0
        """Fraction of the prompt's blocks believed to be cached on the primary, [0, 1]."""
        self.scores: Sequence[tuple[str, float]] = ()
        """("ip:port", total of the weighted scores) of each candidate that was scored; empty unless
        `Scheduler.emit_scores` is set."""


@dataclass(frozen=True, slots=True)
class BodyReading:
    """Which request bodies are read, and for what. All others are routed without model and prompt."""

    parsers: frozenset[str]
    """Types of the parsers whose APIs are read (`Api.parser`)."""
    others: bool = True
    """JSON bodies of calls to paths of no known API are read."""
    prompt: bool = True
    """Prompts are laid out."""
    rewrites: Rewrites | None = None
    """Rules that change the model's name; None when there are none."""


Hook = Callable[[Decision, Record], None]
HeadersHook = Callable[[Decision, Record], Iterable[tuple[str, str]]]
MetadataHook = Callable[[Decision, Record], Iterable[tuple[str, str, float]]]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The followers' functions, each called with a decision and its record."""

    first_byte: tuple[Hook, ...] = ()
    ended: tuple[Hook, ...] = ()
    response_headers: tuple[HeadersHook, ...] = ()
    response_complete: tuple[MetadataHook, ...] = ()


NO_HOOKS: Final = Hooks()


class Refusal:
    """A decision not to route, with the client's answer."""

    __slots__ = ("message", "outcome", "retry_after")

    def __init__(self, outcome: Outcome, message: str, retry_after: int | None = None) -> None:
        self.outcome = outcome
        self.message = message
        """One sentence for the client."""
        self.retry_after = retry_after
        """Seconds after which a retry makes sense, for `Retry-After`; 0: never, None: the outcome's own."""


Resume = Callable[[Decision | Refusal], None]
"""Receives the answer of a decision that waited. It must not raise.

After a Decision it may be called once more, with a Refusal: the request is to be taken back from its server.
Where that can still be, `Router.ended` is called before it returns; where it cannot, it does nothing."""


class Waiting(ABC):
    """A decision that is made later; its answer goes to the `resume` that `Router.decide` was given."""

    __slots__ = ()

    @abstractmethod
    def cancel(self) -> None:
        """Give the request up: `resume` will not be called. A second call does nothing."""


class Router(Protocol):
    """Decides on requests and keeps the ledger of those in flight. It never blocks and never awaits."""

    def reading(self) -> BodyReading:
        """Return which bodies are read."""
        ...

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        """Pick an endpoint and reserve it, say why not, or put the decision off.

        `subset` is the proxy's hint. None: any endpoint may be picked. Otherwise only its "ip" or "ip:port"
        entries may be picked; an empty one means NO_ENDPOINTS.

        `resume` is called only when `Waiting` was returned and is not cancelled, once, and never from within
        `decide` or `cancel`. After a Decision a Refusal may follow: see `Resume`.
        """
        ...

    def unrouted(self, request: InferenceRequest, refusal: Refusal) -> None:
        """Note a request that was refused without a call of `decide`: its body cannot be read or held."""
        ...

    def failed(self, request_id: str, status: int) -> None:
        """Note that the model server answered with an error; `status` is 400 or above."""
        ...

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note the first token of the response: the prompt has been computed. A stream may have none.

        Of `record`, `first_byte_at`, `first_token_at`, `response_status` and `served_by` are set by now.
        """
        ...

    def response_headers(self, decision: Decision, record: Record) -> Sequence[tuple[str, str]]:
        """Return (name, value) of the headers to set on the response.

        Called only for a decision with such hooks. `response_status` and `served_by` of `record` are set.
        """
        ...

    def response_complete(self, decision: Decision, record: Record) -> Sequence[tuple[str, str, float]]:
        """Return (namespace, key, number) of the metadata for the proxy about the whole response.

        Called only for a decision with such hooks, before `ended`. `usage` of `record` is set.
        """
        ...

    def ended(self, decision: Decision, record: Record) -> None:
        """Release all reservations, however the request ended; `record` is complete.

        Called once for each decision. A further call releases nothing.
        """
        ...
