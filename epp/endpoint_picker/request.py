"""The values that pass between the request life (extproc/) and the decision (routing.py): no I/O."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from endpoint_picker.outcomes import Outcome

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class InferenceRequest:
    """What is known of one request when it is decided on."""

    __slots__ = ("body_bytes", "headers", "model", "objective", "priority", "prompt", "request_id", "stream")

    def __init__(
        self,
        *,
        request_id: str,
        model: str = "",
        prompt: bytes = b"",
        stream: bool = False,
        objective: str = "",
        body_bytes: int = 0,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.request_id = request_id
        self.model = model
        """Model named in the body; "" when there is no body (GET /v1/models)."""
        self.prompt = prompt
        """Prompt material in the order the server would see it; equal prefixes are equal bytes."""
        self.stream = stream
        self.objective = objective
        """metadata.name of an InferenceObjective, from the request header; "" when none was sent."""
        self.priority = 0
        """Set by the router from the priority table; higher first, negative may be shed."""
        self.body_bytes = body_bytes
        self.headers = headers
        """Request headers by lower-case name, for plugins that read them; may be left empty."""


class Pick:
    """A decision that was reserved in the ledger; it must be released exactly once (`Router.release`)."""

    __slots__ = (
        "destination",
        "endpoint",
        "generation",
        "prefix_hit",
        "released",
        "row",
        "scores",
        "sequence",
        "tokens",
    )

    def __init__(self, *, destination: str, endpoint: str, row: int, generation: int, tokens: int) -> None:
        self.destination = destination
        """Address ("ip:port") of the primary, then its fallbacks in order, comma-separated."""
        self.endpoint = endpoint
        """Address ("ip:port") of the primary."""
        self.row = row
        """Row of the primary in the endpoint table, valid while `generation` matches the row's."""
        self.generation = generation
        self.sequence = 0
        """Number of the reservation among those of its row, from 1; set by the ledger."""
        self.tokens = tokens
        """Estimated uncached prompt tokens reserved on the row."""
        self.prefix_hit = 0.0
        """Fraction of the prompt's blocks believed to be cached on the primary, [0, 1]."""
        self.scores: tuple[tuple[str, float], ...] = ()
        """(scorer type, weighted score) of the primary; for explain output, empty when not asked for."""
        self.released = False


class Refusal:
    """A decision not to route: what to tell the client."""

    __slots__ = ("message", "outcome")

    def __init__(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        self.message = message
        """One sentence for the client."""


class Router(Protocol):
    """Decides on requests and keeps the ledger of those in flight. Synchronous: it never awaits."""

    def route(self, request: InferenceRequest, subset: Sequence[str] | None) -> Pick | Refusal:
        """Pick an endpoint and reserve it, or say why not.

        `subset` is the proxy's hint: None when absent; otherwise only "ip" or "ip:port" entries named in it
        may be picked, and an empty one leaves nothing (NO_ENDPOINTS).
        """
        ...

    def first_token(self, pick: Pick) -> None:
        """Tell that the first response body byte came: the prompt has been computed."""
        ...

    def release(self, pick: Pick) -> None:
        """Give the reservation back. A second call for the same pick does nothing."""
        ...
