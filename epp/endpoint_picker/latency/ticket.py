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
_NO_SECONDS: Final[NDArray[np.float64]] = np.zeros((0, 0, 0))


class Ticket:
    """Candidates that are asked about. The answer comes once, or the budget ends first."""

    __slots__ = (
        "asked_at",
        "due",
        "hold",
        "input_tokens",
        "is_complete",
        "is_over",
        "limits",
        "marks",
        "matched",
        "matrix",
        "model",
        "output_tokens",
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

    def __init__(self, rows: Rows, asked_at: float, due: float) -> None:
        self.rows = rows
        self.asked_at = asked_at
        self.due = due
        """When the decision stops waiting."""
        # The request's features.
        self.model = ""
        self.input_tokens = 0
        self.output_tokens = 0.0
        """Expected; NaN is unknown."""
        self.matched: Floats | None = None
        """Each row's part of the prompt that it is believed to hold; None: not known."""
        self.matrix: Matrix | None = None
        """float32[rows, WIDTH]; None until the question is sent."""
        # The decision.
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
        # The answer.
        self.is_over = False
        """The decision goes on: by the answer or without."""
        self.reason = Reason.PREDICTED
        self.seconds: Floats = _NO_SECONDS
        """[targets, quantiles, rows]; empty until the answer."""
        self.is_complete = False
        """No second is NaN."""
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
