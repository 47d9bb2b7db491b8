"""A router that picks in turn, and raises when a decision is ended twice or was never made."""

from collections.abc import Sequence
from typing import Any

from endpoint_picker.config.parsers import READING
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import BodyReading, Decision, Refusal, Reservation, Resume, Waiting
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.observability.explain import Pausing
from endpoint_picker.observability.queue_page import queue_page
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from inference_api.offered import Offered


class CountingRouter:
    """Picks the allowed endpoints in turn; `held` has the decisions that have not ended."""

    def __init__(self, *endpoints: str, refusal: Refusal | None = None) -> None:
        self.endpoints = list(endpoints)
        self.refusal = refusal
        self.requests: list[InferenceRequest] = []
        self.subsets: list[Sequence[str] | None] = []
        self.held: list[Decision] = []
        self.ends = 0
        self.fails_after = False
        """Whether `ended` raises after it has released the decision."""
        self.first_bytes = 0
        self.reads = BodyReading(frozenset(kind.type_name for kind in READING))
        """Which bodies are read."""
        self.listeners: list[Any] = []
        self.decisions = Decisions(EndpointTable(), lambda: 0.0)
        self.headers: tuple[tuple[str, str], ...] = ()
        """Set on each request, as a decision says."""
        self.failures: list[tuple[str, int]] = []
        """(request id, status) of model servers' errors."""
        self.unrouted_refusals: list[Refusal] = []

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        self.requests.append(request)
        self.subsets.append(subset)
        allowed = [
            each
            for each in self.endpoints
            if subset is None or each in subset or each.rpartition(":")[0] in subset
        ]
        if self.refusal:
            return self.refusal
        if not allowed:
            return Refusal(Outcome.NO_ENDPOINTS, "no ready endpoint may serve this request")
        chosen = allowed[len(self.requests) % len(allowed)]
        rest = [each for each in allowed if each != chosen]
        reserved = (Reservation(row=0, generation=0, tokens=1),)
        decision = Decision(destination=",".join([chosen, *rest]), endpoint=chosen, reservations=reserved)
        decision.headers = self.headers
        self.held.append(decision)
        return decision

    def unrouted(self, request: InferenceRequest, refusal: Refusal) -> None:
        self.unrouted_refusals.append(refusal)

    def failed(self, request_id: str, status: int) -> None:
        self.failures.append((request_id, status))

    def first_byte(self, decision: Decision, record: Record) -> None:
        assert decision in self.held
        assert record.first_byte_at
        self.first_bytes += 1

    def reading(self) -> BodyReading:
        return self.reads

    def response_headers(self, decision: Decision, record: Record) -> Sequence[tuple[str, str]]:
        return [each for hook in decision.hooks.response_headers for each in hook(decision, record)]

    def response_complete(self, decision: Decision, record: Record) -> Sequence[tuple[str, str, float]]:
        return [each for hook in decision.hooks.response_complete for each in hook(decision, record)]

    def ended(self, decision: Decision, record: Record) -> None:
        assert record.ending is not None
        self.held.remove(decision)  # ValueError on a second end
        self.ends += 1
        if self.fails_after:
            raise ZeroDivisionError

    def subscribe(self, listener: Any) -> None:
        self.listeners.append(listener)

    def replace(self, *endpoints: str) -> None:
        self.endpoints = list(endpoints)
        for listener in self.listeners:
            listener()

    def ready_addresses(self) -> tuple[str, ...]:
        return tuple(self.endpoints)

    @property
    def prediction(self) -> None:
        return None

    @property
    def offered(self) -> Offered:
        return Offered()

    def queue_page(self) -> Pausing:
        return queue_page(None)

    def state(self) -> dict[str, Any]:
        return {"endpoints": self.endpoints, "inFlight": len(self.held)}
