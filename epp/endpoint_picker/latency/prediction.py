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
        "first_headroom",
        "marks",
        "objectives",
        "policy",
        "reason",
        "rows",
        "ticket",
        "tpot",
        "tpot_bound",
        "tpot_headroom",
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
        self.first, self.first_bound = first, first_bound
        self.tpot = _NO_FLOATS if tpot is None else tpot
        self.tpot_bound = _NO_FLOATS if tpot_bound is None else tpot_bound
        self.first_headroom: Floats
        self.tpot_headroom: Floats
        if objectives.ttft_s:
            self.first_headroom = objectives.ttft_s - queued_s - first_bound
        elif objectives.tpot_s and tpot is not None:
            self.first_headroom = np.where(np.isnan(first), first, 0.0)
        else:
            self.first_headroom = -first
        if tpot is None or tpot_bound is None:
            self.tpot_headroom = np.zeros(rows.size)
        elif objectives.tpot_s:
            limit: float | Floats = objectives.tpot_s * buffer
            if tpot_limits is not None:
                limit = np.minimum(limit, tpot_limits * buffer)
            self.tpot_headroom = limit - tpot_bound
        elif objectives.ttft_s:
            self.tpot_headroom = np.where(np.isnan(tpot), tpot, 0.0)
        else:
            self.tpot_headroom = -tpot

    def of(self, values: Floats, rows: Rows) -> Floats:
        """Return the values of these rows, NaN for a row that nothing was predicted for."""
        mine = self.rows
        if rows is mine or (rows.size == mine.size and bool((rows == mine).all())):
            return values
        if not mine.size:
            return np.full(rows.size, np.nan)
        at = np.minimum(np.searchsorted(mine, rows), mine.size - 1)
        return np.where(mine[at] == rows, values[at], np.nan)


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
        seconds = ticket.seconds.astype(np.float64)
        tpot: Floats | None = None
        tpot_bound: Floats | None = None
        if streaming and not np.isnan(seconds[1]).all():
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
    made.ticket = ticket
    return made
