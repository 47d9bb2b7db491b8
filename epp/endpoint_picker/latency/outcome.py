"""What became of a picked request: its sample, its errors, and its part in the proof. Pure."""

import math
import struct
from typing import Final

from endpoint_picker.decision import Reservation
from endpoint_picker.latency.desk import Desk
from endpoint_picker.latency.prediction import Prediction
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.latency.samples import Values
from endpoint_picker.latency.ticket import Ticket
from endpoint_picker.record import Record
from ext_proc.processor import Ending
from latency_contract.regimes import regime_of
from latency_contract.schema import COLUMN, TARGETS, Role, Target
from latency_contract.states import Ended, Policy

_NOTHING: Final[Values] = (math.nan,) * len(TARGETS)
_ROLE: Final = 4 * COLUMN["role"]
_AHEAD: Final = 4 * COLUMN["ahead_requests"]
_UNCACHED: Final = 4 * COLUMN["uncached_tokens"]
#: One feature of a row.
_FEATURE: Final = struct.Struct("<f").unpack_from
#: Tokens of the answer that count as being decoded where nothing is known of its length.
_SOME_OUTPUT: Final = 256.0


class Open:
    """A picked request that has not ended: one for each reservation."""

    __slots__ = (
        "_at",
        "_context",
        "_streaming",
        "_ticket",
        "arm",
        "context",
        "features",
        "generation",
        "marks",
        "model",
        "policy",
        "predicted",
        "row",
        "sent_at",
        "tokens",
        "took_s",
        "version",
    )

    def __init__(
        self, ticket: Ticket, at: int, reservation: Reservation, now: float, *, streaming: bool
    ) -> None:
        """`at` is the position of the endpoint in a ticket whose matrix is there."""
        self._ticket: Ticket | None = ticket
        """Until it is answered."""
        self._at = at
        self._streaming = streaming
        self.row, self.generation = reservation.row, reservation.generation
        """Endpoint that was picked; the row may have another one by now."""
        self.tokens = float(reservation.tokens)
        """Uncached prompt tokens; 0 after the first byte."""
        output = ticket.output_tokens
        self._context = ticket.input_tokens + (output if output > 0.0 else _SOME_OUTPUT)
        self.context = 0.0
        """Tokens being decoded; 0 before the first byte."""
        self.model = ticket.model
        self.marks = ticket.marks
        self.sent_at = now
        self.policy = Policy.HEURISTIC
        self.arm: bool | None = None
        """Whether it counts for prediction or for the heuristic in the proof; None: for neither."""
        self.features = b""
        """float32[WIDTH] of the endpoint that was picked, and what was predicted for it: medians, bounds."""
        self.predicted = (_NOTHING, _NOTHING)
        self.version = ""
        """Of the bundle that predicted; "" without an answer."""
        self.took_s = 0.0
        self.read()

    def read(self) -> None:
        """Take features and prediction from the ticket, if it still has to be asked."""
        ticket, at = self._ticket, self._at
        if ticket is None or ticket.matrix is None:
            return
        self.features = ticket.matrix[at].tobytes()
        if not ticket.seconds.size:
            return
        medians, bounds = ticket.seconds[:, 0, at].tolist(), ticket.seconds[:, -1, at].tolist()
        if self._streaming and len(medians) == 2:
            self.predicted = (*medians, math.nan), (*bounds, math.nan)
        else:
            self.predicted = (math.nan, math.nan, medians[-1]), (math.nan, math.nan, bounds[-1])
        self.version, self.took_s = ticket.version, ticket.took_s
        self._ticket = None

    def arm_of(self, prediction: Prediction) -> None:
        """Take from the decision's prediction how the request was picked."""
        self.policy = prediction.policy
        asked = prediction.ticket
        if asked is not None:
            # Also when the answer was late: waiting for it in vain is part of what prediction costs.
            self.arm = True
        elif prediction.reason in (Reason.HOLDOUT, Reason.NO_GAIN):
            self.arm = False

    def first_byte(self, desk: Desk) -> None:
        """Note that the prompt is computed."""
        if self.context:
            return
        self.context = self._context
        if desk.board.has(self.row, self.generation):
            desk.board.computed(self.row, self.tokens, self.context)
        self.tokens = 0.0


def conclude(
    desk: Desk, opened: Open, record: Record, *, is_primary: bool, is_shared: bool, elsewhere: bool
) -> None:
    """Note the end of a request: `is_shared` with prefill and decode on two endpoints."""
    is_here = desk.board.has(opened.row, opened.generation)
    if is_here:
        desk.board.ended(opened.row, opened.tokens, opened.context)
    if elsewhere:
        return  # the features are another endpoint's
    opened.read()
    ended = _ended(record)
    times = _times(record) if ended is Ended.SERVED else _NOTHING
    served = times
    if ended is Ended.SERVED and is_primary:
        tokens = record.output_tokens
        if tokens:
            desk.board.produced(opened.model, opened.marks.tenant, tokens)
        if is_here and times[Target.TPOT] > 0.0:
            desk.board.answered(opened.row, times[Target.TPOT])
    features = opened.features
    streaming = desk.settings.streaming
    if not streaming:
        times = (math.nan, math.nan, times[Target.E2E])
    elif is_shared:
        prefill = _FEATURE(features, _ROLE)[0] == Role.PREFILL
        times = (times[0], math.nan, math.nan) if prefill else (math.nan, times[1], math.nan)
    medians, bounds = opened.predicted
    desk.samples.add(
        opened.sent_at + desk.wall_offset_s,
        opened.policy,
        ended,
        opened.version,
        times,
        opened.predicted,
        features,
    )
    if is_primary:
        figures = desk.figures
        if ended is Ended.SERVED:
            figures.streams += record.streaming
            figures.others += not record.streaming
        figures.ended(
            opened.model, opened.marks.objectives, served, medians, opened.took_s, streaming=streaming
        )
        _prove(desk, opened, record, ended, served)
    if ended is not Ended.SERVED or not opened.version:
        return
    regime = regime_of(_FEATURE(features, _AHEAD)[0], _FEATURE(features, _UNCACHED)[0])
    for target in TARGETS:
        if times[target] == times[target]:
            desk.accuracy.judge(target, regime, times[target], medians[target], bounds[target])


def _ended(record: Record) -> Ended:
    if (
        record.failed_in_body
        or record.response_status >= 400
        or (record.ending is Ending.COMPLETED and not record.first_byte_at)
    ):
        return Ended.FAILED
    if record.ending is Ending.DISCONNECTED:
        return Ended.ABORTED
    return Ended.SERVED if record.ending is Ending.COMPLETED else Ended.FAILED


def _times(record: Record) -> Values:
    """Return the true times of a request that was served; TTFT and TPOT only of a stream."""
    ttft = tpot = math.nan
    end = record.last_token_at or record.ended_at
    if record.streaming:
        ttft = record.first_byte_at - record.decided_at
        tokens = record.output_tokens
        # An answer that came in one piece shows no time between its tokens.
        if tokens > 1 and record.last_token_at > record.first_token_at:
            tpot = (record.last_token_at - record.first_token_at) / (tokens - 1)
    return ttft, tpot, end - record.decided_at


def _prove(desk: Desk, opened: Open, record: Record, ended: Ended, times: Values) -> None:
    """Count the request for its arm; the client's time counts, from its arrival on."""
    if opened.arm is None or ended in (Ended.ABORTED, Ended.REFUSED):
        return
    objectives = opened.marks.objectives
    waited = record.decided_at - record.started_at
    first = times[Target.TTFT if desk.settings.streaming else Target.E2E] + waited
    met: bool | None = None
    if objectives.any:
        met = ended is Ended.SERVED
        if objectives.ttft_s:
            met = met and first <= objectives.ttft_s
        if objectives.tpot_s and desk.settings.streaming and not math.isnan(times[Target.TPOT]):
            met = met and times[Target.TPOT] <= objectives.tpot_s
    elif ended is not Ended.SERVED or not math.isfinite(first):
        return
    desk.proof.served(desk.clock(), predicted=opened.arm, latency_s=first, met=met)
