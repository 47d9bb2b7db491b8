"""The contract between the request life and the decision: what a router is asked and answers. No I/O."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest


class Reservation:
    """One request and its prompt tokens, counted on one endpoint; the ledger makes and ends it."""

    __slots__ = ("generation", "prefix_chain", "released", "row", "sequence", "tokens")

    def __init__(self, row: int, generation: int, tokens: int) -> None:
        self.row = row
        """Row in the endpoint table, valid while `generation` matches the row's."""
        self.generation = generation
        self.sequence = 0
        """Number of the reservation among those of its row, from 1; set by the ledger."""
        self.tokens = tokens
        """Estimated uncached prompt tokens reserved on the row; 0 once the prompt has been computed."""
        self.released = False
        self.prefix_chain: Sequence[int] = ()
        """Hashes of the prompt's blocks, kept until it is known which endpoint computed them."""


class Decision:
    """An answer with what it reserved. The receiver calls `Router.ended` for it, once."""

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
        """What follows this decision, by the configuration that made it."""
        self.headers: tuple[tuple[str, str], ...] = ()
        """(name, value) of the headers that the request gets beside its destination."""
        self.prefix_hit = 0.0
        """Fraction of the prompt's blocks believed to be cached on the primary, [0, 1]."""
        self.scores: tuple[tuple[str, float], ...] = ()
        """(scorer name, weighted score) of the primary; empty unless decisions are being recorded."""


Hook = Callable[[Decision, Record], None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is called with a decision and its record."""

    first_byte: tuple[Hook, ...] = ()
    ended: tuple[Hook, ...] = ()


NO_HOOKS: Final = Hooks()


class Refusal:
    """A decision not to route: what to tell the client."""

    __slots__ = ("message", "outcome")

    def __init__(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        self.message = message
        """One sentence for the client."""


Resume = Callable[[Decision | Refusal], None]
"""Takes the answer of a decision that waited. It must not raise."""


class Waiting(ABC):
    """A decision that is made later; its answer goes to the `resume` that `Router.decide` was given."""

    __slots__ = ()

    @abstractmethod
    def cancel(self) -> None:
        """Give the request up: `resume` is not called from here on. Any further call does nothing."""


class Router(Protocol):
    """Decides on requests and keeps the ledger of those in flight. It never blocks and never awaits."""

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        """Pick an endpoint and reserve it, say why not, or put the decision off.

        `subset` is the proxy's hint: None when absent; otherwise only "ip" or "ip:port" entries named in it
        may be picked, and an empty one leaves nothing (NO_ENDPOINTS).

        `resume` is called at most once, and only after `Waiting` was returned and while it is not cancelled;
        never from within `decide` or `cancel`.
        """
        ...

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note that the first byte of the response body came: the prompt has been computed.

        `record` is complete up to here: `first_byte_at`, `response_status`, `served_by` are set.
        """
        ...

    def ended(self, decision: Decision, record: Record) -> None:
        """Release all reservations, whatever ended the request; `record` is complete.

        Called once for each decision. A further call releases nothing.
        """
        ...
