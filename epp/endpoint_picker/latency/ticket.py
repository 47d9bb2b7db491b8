"""One request's question to the prediction servers, and its answer."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.latency.objectives import NO_MARKS
from endpoint_picker.latency.reasons import Reason
from latency_contract.matrix import Matrix
from latency_contract.states import Policy

#: No answer yet.
_NO_SECONDS: Final[NDArray[np.float32]] = np.zeros((0, 0, 0), dtype=np.float32)


class Ticket:
    """A matrix of candidates that is asked about. The answer comes once, or the budget ends first."""

    __slots__ = (
        "asked_at",
        "due",
        "hold",
        "is_over",
        "limits",
        "marks",
        "matrix",
        "policy",
        "previous",
        "profile",
        "queued_s",
        "reason",
        "rows",
        "seconds",
        "took_s",
        "version",
    )

    def __init__(self, rows: Rows, matrix: Matrix, asked_at: float, due: float) -> None:
        self.rows = rows
        self.matrix = matrix
        """float32[rows, WIDTH]; the derived columns are written when it is sent."""
        self.asked_at = asked_at
        self.due = due
        """When the decision stops waiting."""
        self.hold: Any = None
        """The hold of the decision that waits; None: none does."""
        self.profile = ""
        self.previous: Ticket | None = None
        """Of an earlier profile of the same decision."""
        self.policy = Policy.PREDICTED
        self.marks = NO_MARKS
        self.queued_s = 0.0
        self.limits: Floats | None = None
        """Strictest TPOT objective of what runs on each row."""
        self.is_over = False
        """The decision goes on: by the answer or without."""
        self.reason = Reason.PREDICTED
        self.seconds = _NO_SECONDS
        """float32[targets, quantiles, rows]; empty until the answer."""
        self.version = ""
        self.took_s = 0.0

    def position(self, row: int) -> int:
        """Return the position of a row of the endpoint table among the ticket's rows; -1 without it."""
        at = int(np.searchsorted(self.rows, row))
        return at if at < self.rows.size and self.rows[at] == row else -1

    def of_profile(self, profile: str) -> "Ticket | None":
        """Return the ticket of this profile, None when it has none yet."""
        ticket: Ticket | None = self
        while ticket is not None and ticket.profile != profile:
            ticket = ticket.previous
        return ticket
