"""What is predicted about the candidates of one request, and the headroom to its objectives."""

from typing import Final

import numpy as np

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.latency.objectives import NO_MARKS, NO_OBJECTIVES, Marks, Objectives
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.latency.ticket import Ticket
from latency_contract.states import Policy

_NO_FLOATS: Final[Floats] = np.zeros(0)
_NO_ROWS: Final[Rows] = np.zeros(0, dtype=np.intp)


class Prediction:
    """Predictions for the rows that were candidates when they were asked for. Seconds; NaN is unknown.

    A filter may have narrowed the candidates since, or an endpoint may have come: consumers read a value by
    `of`. Where there is no prediction at all, `reason` says why and there are no rows.
    """

    __slots__ = (
        "first",
        "first_bound",
        "headroom",
        "is_complete",
        "marks",
        "objectives",
        "policy",
        "reason",
        "rows",
        "ticket",
        "tpot",
        "tpot_bound",
    )

    def __init__(
        self,
        rows: Rows,
        first: Floats,
        first_bound: Floats,
        tpot: Floats | None,
        tpot_bound: Floats | None,
        objectives: Objectives = NO_OBJECTIVES,
        *,
        queued_s: float = 0.0,
        tpot_limits: Floats | None = None,
        buffer: float = 1.0,
        reason: Reason = Reason.PREDICTED,
    ) -> None:
        """`rows` ascend. `first` is the time to the first token, or to the end when TPOT is None.

        An objective is judged by the bound, less the time that the request has been queued already. Of two
        objectives only those given are judged: the headroom to the other is 0. A request without any has the
        negated predictions as its headroom, so that the fastest endpoint misses by least.

        `tpot_limits` are the strictest TPOT objectives of the requests that run on each row, infinity for
        none: an endpoint that would break them has no headroom for this request either. `buffer` multiplies
        objectives of TPOT.
        """
        self.rows = rows
        self.reason = reason
        """Why nothing is predicted; PREDICTED, which is "", when something is."""
        self.objectives = objectives
        self.policy = Policy.HEURISTIC
        """How the request is picked."""
        self.marks = NO_MARKS
        self.ticket: Ticket | None = None
        """What was asked for it, also when no answer was used."""
        self.is_complete = False
        """No value is NaN, as far as is known."""
        self.first, self.first_bound = first, first_bound
        self.tpot = _NO_FLOATS if tpot is None else tpot
        self.tpot_bound = _NO_FLOATS if tpot_bound is None else tpot_bound
        self.headroom: Floats = np.empty((2, rows.size))
        """To the objectives of the first token and of TPOT; below 0 is a miss."""
        self.headroom[0] = (
            objectives.ttft_s - queued_s - first_bound
            if objectives.ttft_s
            else _unjudged(first)
            if objectives.tpot_s and tpot is not None
            else -first
        )
        if tpot is None or tpot_bound is None:
            self.headroom[1] = 0.0
        elif objectives.tpot_s:
            limit: float | Floats = objectives.tpot_s * buffer
            if tpot_limits is not None:
                limit = np.minimum(limit, tpot_limits * buffer)
            self.headroom[1] = limit - tpot_bound
        else:
            self.headroom[1] = _unjudged(tpot) if objectives.ttft_s else -tpot

    @property
    def times(self) -> Floats:
        """Return [2, rows]: the predicted times of the first token, and of TPOT, 0 without one."""
        return np.stack((self.first, self.tpot if self.tpot.size else np.zeros(self.first.size)))

    @property
    def first_headroom(self) -> Floats:
        """Return the headroom to the objective of the first token."""
        found: Floats = self.headroom[0]
        return found

    @property
    def tpot_headroom(self) -> Floats:
        """Return the headroom to the objective of TPOT."""
        found: Floats = self.headroom[1]
        return found

    def of(self, values: Floats, rows: Rows) -> Floats:
        """Return the values of these rows, in the last dimension; NaN where nothing was predicted."""
        mine = self.rows
        if rows is mine or (rows.size == mine.size and bool((rows == mine).all())):
            return values
        if not mine.size:
            return np.full((*values.shape[:-1], rows.size), np.nan)
        at = np.minimum(np.searchsorted(mine, rows), mine.size - 1)
        return np.where(mine[at] == rows, values[..., at], np.nan)


def _unjudged(seconds: Floats) -> Floats:
    """Return headroom 0 for what has no objective, NaN where nothing is predicted."""
    return np.where(np.isnan(seconds), seconds, 0.0)


def unpredicted(reason: Reason, marks: Marks = NO_MARKS) -> Prediction:
    """Return the prediction of a request for which there is none."""
    made = Prediction(_NO_ROWS, _NO_FLOATS, _NO_FLOATS, None, None, marks.objectives, reason=reason)
    made.marks = marks
    if reason is Reason.HOLDOUT:
        made.policy = Policy.HOLDOUT
    return made


def to_come(policy: Policy, marks: Marks) -> Prediction:
    """Return what stands for a prediction that is going to be asked for."""
    made = Prediction(_NO_ROWS, _NO_FLOATS, _NO_FLOATS, None, None, marks.objectives)
    made.policy, made.marks = policy, marks
    return made


def prediction_of(ticket: Ticket, *, streaming: bool, buffer: float) -> Prediction:
    """Return what a ticket that is over gives; `streaming`: TTFT and TPOT were asked for, else E2E."""
    if ticket.reason:
        made = unpredicted(ticket.reason, ticket.marks)
    else:
        seconds = ticket.seconds
        tpot: Floats | None = None
        tpot_bound: Floats | None = None
        # Another configuration may have come between question and answer.
        has_tpot = streaming and len(seconds) > 1
        if has_tpot and (ticket.is_complete or not np.isnan(seconds[1]).all()):
            tpot, tpot_bound = seconds[1, 0], seconds[1, -1]
        made = Prediction(
            ticket.rows,
            seconds[0, 0],
            seconds[0, -1],
            tpot,
            tpot_bound,
            ticket.marks.objectives,
            queued_s=ticket.queued_s,
            tpot_limits=ticket.limits,
            buffer=buffer,
        )
        made.policy = ticket.policy
        made.marks = ticket.marks
        made.is_complete = ticket.is_complete
    made.ticket = ticket
    return made
