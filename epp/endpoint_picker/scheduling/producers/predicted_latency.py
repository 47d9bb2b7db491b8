"""predicted-latency-producer: asks the prediction servers about each candidate, and learns from answers."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.latency.desk import Desk, DeskSettings
from endpoint_picker.latency.objectives import Marks, marks_of
from endpoint_picker.latency.outcome import Open, conclude
from endpoint_picker.latency.prediction import prediction_of, unpredicted
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.latency.ticket import Ticket
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import LATENCY_PREDICTION, PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Follower, MayWait, PluginParams, Pool, Producer

#: Seconds after the budget at which the room would end a wait that the desk has not ended.
_GRACE_S: Final = 1.0


class PredictedLatencyParams(PluginParams):
    """Parameters of predicted-latency-producer."""

    mode: Literal["OptIn", "All"] = "OptIn"
    """`OptIn` predicts for requests with the header `x-prediction-based-scheduling: true`, `All` for each."""
    streaming_mode: bool = False
    """True predicts TTFT and TPOT, for pools whose requests stream; false predicts the time to the end."""
    predict_in_produce: bool = True
    """False collects samples for the trainer and predicts nothing."""
    budget_ms: float = Field(default=100.0, gt=0.0, le=60_000.0)
    """Longest time that a request waits for its prediction; then it is picked without."""
    quantile: float = Field(default=0.9, gt=0.5, lt=1.0)
    """Part of the requests that the upper bound covers; objectives are judged by it."""
    holdout_percent: float = Field(default=2.0, ge=0.0, le=50.0)
    """Percent of the requests that are picked without prediction, to measure its gain; 0 measures nothing."""
    slo_buffer_factor: float = Field(default=1.0, gt=0.0)
    """Factor of TPOT objectives."""
    endpoint_role_label: str = ""
    """Pod label that says `prefill`, `decode` or both."""
    endpoint_class_label: str = ""
    """Pod label whose values name kinds of servers, such as their GPU."""


class PredictedLatencyProducer(Producer, MayWait, Follower):
    """Predicts the latency of the request on each candidate, and sends how it went to the trainer.

    A request waits for its prediction at most for the budget. Without one, consumers go by their fallback.
    """

    __slots__ = ("_desk", "_open", "params")
    type_name = "predicted-latency-producer"
    params_type = PredictedLatencyParams
    produces = frozenset({LATENCY_PREDICTION})
    consumes = frozenset({PREFIX_MATCH})
    reads_adapters = True
    follows_when_idle = True

    def __init__(self, params: PredictedLatencyParams) -> None:
        self.params = params
        self._desk: Desk
        self._open: dict[Reservation, Open] = {}

    @override
    def attach(self, pool: Pool) -> None:
        """Set how the pool's desk predicts."""
        params = self.params
        self._desk = pool.desk
        pool.desk.board.configure(
            role_label=params.endpoint_role_label, class_label=params.endpoint_class_label
        )
        pool.desk.configure(
            DeskSettings(
                for_all=params.mode == "All",
                streaming=params.streaming_mode,
                predicts=params.predict_in_produce,
                budget_s=params.budget_ms / 1000.0,
                quantile=params.quantile,
                holdout_percent=params.holdout_percent,
            )
        )

    # Producing.

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Hold | None:
        """Write the prediction of the candidates, or hold the decision until it comes."""
        before = ticket_of(candidates.held)
        ticket = None if before is None else before.of_profile(candidates.profile)
        if ticket is not None:
            self._write(candidates, ticket)
            return None
        desk = self._desk
        now = desk.clock()
        if candidates.prediction is not None:  # the profile handler has asked the desk
            policy, marks = candidates.prediction.policy, candidates.prediction.marks
        else:
            marks = marks_of(request.headers)
            policy, reason = desk.route(request, marks, now)
            if reason:
                candidates.prediction = unpredicted(reason, marks)
                return None
        ticket = self._ticket(request, candidates, marks, now)
        ticket.policy, ticket.previous = policy, before
        if candidates.held is not None and candidates.held.deadline < ticket.due:
            candidates.prediction = unpredicted(Reason.NO_ROOM, marks)
            return None
        desk.ask(ticket, now)
        if ticket.is_over:
            self._write(candidates, ticket)
            return None
        desk.wait_for(ticket)
        hold = Hold(deadline=ticket.due + _GRACE_S, refusal=None, forget=self._forget, note=ticket)
        ticket.hold = hold
        return hold

    @override
    def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
        """Return the holds whose predictions came or are late."""
        tickets, due = self._desk.advance(now)
        return [ticket.hold for ticket in tickets if ticket.hold is not None], due

    def _forget(self, hold: Hold) -> None:
        self._desk.give_up(hold.note, Reason.NO_ROOM)

    def _ticket(self, request: InferenceRequest, candidates: Candidates, marks: Marks, now: float) -> Ticket:
        desk, rows = self._desk, candidates.rows
        ticket = Ticket(rows, now, now + desk.settings.budget_s)
        desk.board.describe(ticket, request, marks.tenant)
        ticket.matched = matched_part(candidates)
        ticket.profile = candidates.profile
        ticket.marks = marks
        if request.arrived_at:
            ticket.queued_s = max(0.0, now - request.arrived_at)
        if marks.objectives.tpot_s:
            ticket.limits = desk.limits.of(rows)
        return ticket

    def _write(self, candidates: Candidates, ticket: Ticket) -> None:
        candidates.prediction = prediction_of(
            ticket, streaming=self._desk.settings.streaming, buffer=self.params.slo_buffer_factor
        )

    # Following.

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Keep the features of the endpoint that was picked, as they were asked about or as they are now."""
        desk = self._desk
        now = desk.clock()
        prediction = candidates.prediction
        ticket, at = _asked_about(candidates, reservation.row)
        if ticket is None:
            ticket, at = self._aside(request, candidates, now), 0
        opened = Open(ticket, at, reservation, now, streaming=desk.settings.streaming)
        marks = ticket.marks
        if prediction is not None:
            opened.arm_of(prediction)
        self._open[reservation] = opened
        desk.counts[Reason.NOT_ASKED if prediction is None else prediction.reason] += 1
        desk.board.sent(reservation.row, reservation.tokens, now)
        if marks.objectives.tpot_s:
            desk.limits.add(reservation.row, reservation, marks.objectives.tpot_s)

    def _aside(self, request: InferenceRequest, candidates: Candidates, now: float) -> Ticket:
        """Return a ticket of the picked endpoint alone, and ask about it if that is worth it."""
        desk, best, prediction = self._desk, candidates.order[:1], candidates.prediction
        marks = marks_of(request.headers) if prediction is None else prediction.marks
        ticket = Ticket(candidates.rows[best], now, now + desk.settings.budget_s)
        desk.board.describe(ticket, request, marks.tenant)
        ticket.marks = marks
        matched = matched_part(candidates)
        if matched is not None:
            ticket.matched = matched[best]
        ticket.matrix = desk.board.matrix((ticket,), now)
        desk.ask_aside(ticket, now)
        return ticket

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note that the prompt is computed."""
        for opened in self._opened(decision):
            opened.first_byte(self._desk)

    @override
    def ended(self, decision: Decision, record: Record) -> None:
        """Make a sample of the request, and judge its prediction."""
        many = len(decision.reservations) > 1
        for reservation in decision.reservations:
            opened = self._open.pop(reservation, None)
            if opened is None:
                continue
            if opened.marks.objectives.tpot_s:
                self._desk.limits.remove(opened.row, reservation)
            elsewhere = bool(record.served_by) and record.served_by != decision.endpoint
            conclude(
                self._desk,
                opened,
                record,
                is_primary=reservation.is_primary,
                is_shared=many,
                elsewhere=elsewhere,
            )

    def _opened(self, decision: Decision) -> Iterator[Open]:
        for reservation in decision.reservations:
            opened = self._open.get(reservation)
            if opened is not None:
                yield opened


def _asked_about(candidates: Candidates, row: int) -> tuple[Ticket | None, int]:
    """Return the ticket that was sent about this endpoint, answered or not, and its position there."""
    prediction = candidates.prediction
    ticket = None if prediction is None else prediction.ticket
    if ticket is None or ticket.matrix is None:
        return None, -1
    at = candidates.order.item(0) if candidates.rows is ticket.rows else ticket.position(row)
    return (ticket, at) if at >= 0 else (None, -1)


def ticket_of(held: Hold | None) -> Ticket | None:
    """Return the ticket that a hold is for; None when it is another plugin's."""
    note: Any = None if held is None else held.note
    return note if isinstance(note, Ticket) else None


def matched_part(candidates: Candidates) -> Floats | None:
    """Return the part of the prompt that each candidate is believed to hold; None: not known."""
    if not candidates.prompt_blocks:
        return None
    part: Floats = candidates.prefix_matched / candidates.prompt_blocks
    return part
