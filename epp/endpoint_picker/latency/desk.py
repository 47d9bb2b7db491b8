"""The picker's side of prediction: which requests are predicted, in which calls, and when they go on without.

Calls are coalesced. While no call is open, requests go out with the next `advance`, in the event loop's next
turn; while one is, they wait for its end or for `WINDOW_S`, whichever is first. All that wait go together. A
call goes to the server with the fewest rows outstanding. The clock is passed in; a `Link` carries the calls.
Pure.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.latency.accuracy import Accuracy
from endpoint_picker.latency.asked import Asked
from endpoint_picker.latency.board import Board
from endpoint_picker.latency.figures import Figures
from endpoint_picker.latency.limits import Limits
from endpoint_picker.latency.link import Link
from endpoint_picker.latency.objectives import Marks
from endpoint_picker.latency.proof import Proof, is_held_out
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.latency.samples import Samples
from endpoint_picker.latency.servers import PredictionServers
from endpoint_picker.latency.ticket import Ticket
from endpoint_picker.request import InferenceRequest
from latency_contract.errors import ContractError
from latency_contract.matrix import Matrix, derive
from latency_contract.prediction_wire import MAX_ROWS, Prediction, decode_answer, encode_request
from latency_contract.schema import Target
from latency_contract.states import Policy, State

#: Longest time that a request waits to be sent together with others, while a call is open.
WINDOW_S: Final = 0.001
#: Seconds between two calls that only ask whether prediction is possible again.
PROBE_S: Final = 0.2
#: Questions that no decision waits for are dropped while so many are open.
MAX_IDLE: Final = 1_000
#: Seconds between two looks at the gain.
LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class DeskSettings:
    """From the producer's parameters."""

    for_all: bool = False
    """Requests need not opt in."""
    streaming: bool = False
    """TTFT and TPOT are predicted; else E2E."""
    predicts: bool = True
    """False: the picker only trains."""
    budget_s: float = 0.1
    quantile: float = 0.9
    holdout_percent: float = 2.0


class Desk:
    """Prediction in one pool. All methods are for one thread."""

    __slots__ = (
        "_idle",
        "_pending",
        "_pending_rows",
        "_probed_at",
        "_released",
        "_servers",
        "_waiting",
        "_window_due",
        "accuracy",
        "asked",
        "board",
        "calls",
        "clock",
        "counts",
        "figures",
        "limits",
        "link",
        "proof",
        "samples",
        "settings",
        "state",
        "took_s",
        "version",
        "wake",
        "wall_offset_s",
    )

    def __init__(self, table: EndpointTable, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.board = Board(table)
        self.limits = Limits(table)
        self.settings = DeskSettings()
        self.samples = Samples()
        self.accuracy = Accuracy()
        self.proof = Proof()
        self.figures = Figures()
        self.asked = Asked()
        self.link: Link | None = None
        self.wake: Callable[[], None] = lambda: None
        """Requests a call of `advance`."""
        self.wall_offset_s = 0.0
        """Seconds since the epoch minus the clock, for the samples' times."""
        self.state = State.WARMING
        """As the newest answer says."""
        self.version = ""
        self.calls = 0
        self.took_s = 0.0
        """Sum over `calls` of the time to the answer."""
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        """Picked requests by reason."""
        self._servers = PredictionServers(0)
        self._pending: list[Ticket] = []
        self._pending_rows = 0
        self._window_due: float | None = None
        self._waiting: deque[Ticket] = deque()
        """Tickets that decisions wait for, in the order of their deadlines."""
        self._released: list[Ticket] = []
        self._idle = 0
        """Open tickets that no decision waits for."""
        self._probed_at = -np.inf

    # Set-up.

    def connect(self, link: Link) -> None:
        """Use these prediction servers."""
        self.link = link
        self._servers = PredictionServers(link.servers)

    def configure(self, settings: DeskSettings) -> None:
        """Use these settings from the next request on."""
        self.settings = settings

    # Which requests.

    def route(self, request: InferenceRequest, marks: Marks, now: float) -> tuple[Policy, Reason]:
        """Return how a request is to be picked, and why it is not predicted if it is not."""
        settings = self.settings
        if not settings.for_all and not marks.asks:
            return Policy.HEURISTIC, Reason.NOT_ASKED
        reason = self.obstacle()
        if reason:
            return Policy.HEURISTIC, reason
        if now - self.proof.gains_at >= LOOK_S:
            self.proof.look(now)
        held_out = is_held_out(request.request_id, settings.holdout_percent)
        if self.proof.is_out:
            return (Policy.PROBE, Reason.PREDICTED) if held_out else (Policy.HEURISTIC, Reason.NO_GAIN)
        return (Policy.HOLDOUT, Reason.HOLDOUT) if held_out else (Policy.PREDICTED, Reason.PREDICTED)

    def obstacle(self) -> Reason:
        """Return why no request can be predicted at present; PREDICTED: nothing stands in the way."""
        if not self.settings.predicts:
            return Reason.TRAIN_ONLY
        if self.link is None:
            return Reason.NO_SERVER
        state = self.state
        if not state.routes:
            return Reason.DEGRADED if state is State.DEGRADED else Reason.WARMING
        return Reason.PREDICTED if self._servers.some_answer() else Reason.UNREACHABLE

    @property
    def answering(self) -> int:
        """Return how many prediction servers answer, as far as is known."""
        return self._servers.answering()

    # Questions.

    def ask(self, ticket: Ticket, now: float) -> None:
        """Ask about a ticket's rows together with others; `advance` returns it when it is over.

        The caller has `advance` called in the next turn of the event loop, as the router does for a hold. A
        link that answers within the call makes the ticket over before this returns.
        """
        rows = ticket.rows.size
        if rows > MAX_ROWS:
            self._over(ticket, Reason.NO_ROOM)
            return
        if self._pending_rows + rows > MAX_ROWS:
            self._dispatch(now)
        self._pending.append(ticket)
        self._pending_rows += rows
        if self.link is not None and self.link.answers_at_once:
            self._dispatch(now)
        elif self._window_due is None:
            self._window_due = now + WINDOW_S if self._servers.calls else now

    def wait_for(self, ticket: Ticket) -> None:
        """Note that a decision waits for a ticket, which is not over."""
        self._waiting.append(ticket)

    def ask_aside(self, ticket: Ticket, now: float) -> bool:
        """Ask about a ticket that no decision waits for, for its sample and to learn the servers' state.

        Its matrix is there. Return whether it is asked about.
        """
        if self.link is None or self._idle >= MAX_IDLE:
            return False
        answers = self.state is not State.WARMING and self._servers.some_answer()
        if not answers:
            if now - self._probed_at < PROBE_S or self._servers.calls:
                return False
            self._probed_at = now
        self._idle += 1
        ticket.policy = Policy.HEURISTIC
        gathers = self._window_due is None
        self.ask(ticket, now)
        if gathers and not ticket.is_over:
            self.wake()
        return True

    def advance(self, now: float) -> tuple[list[Ticket], float | None]:
        """Return the tickets that are over and waited for, and when to call again."""
        if self._window_due is not None and now >= self._window_due:
            self._dispatch(now)
        waiting = self._waiting
        while waiting and (waiting[0].is_over or waiting[0].due <= now):
            ticket = waiting.popleft()
            if not ticket.is_over:
                self._over(ticket, Reason.LATE)
        released, self._released = self._released, []
        due = waiting[0].due if waiting else None
        if self._window_due is not None:
            due = self._window_due if due is None else min(due, self._window_due)
        return released, due

    def give_up(self, ticket: Ticket, reason: Reason) -> None:
        """Note that the decision of a ticket does not wait for it any more."""
        ticket.hold = None
        self._over(ticket, reason)

    def _over(self, ticket: Ticket, reason: Reason) -> None:
        if ticket.is_over:
            return
        ticket.is_over = True
        ticket.reason = reason
        if ticket.hold is not None:
            self._released.append(ticket)

    def _dispatch(self, now: float) -> None:
        """Send all pending tickets in one call, or give them up when no server answers."""
        tickets, self._pending, self._window_due = self._pending, [], None
        self._pending_rows = 0
        # A ticket whose decision went on may still be a sample's; one that is due has nobody left.
        tickets = [each for each in tickets if not each.is_over]
        if not tickets:
            return
        server = self._servers.choose(now)
        if server is None or self.link is None:
            for each in tickets:
                self._end(each, Reason.UNREACHABLE)
            self.wake()
            return
        matrix = derive(self._matrix(tickets, now))
        settings = self.settings
        targets = (Target.TTFT, Target.TPOT) if settings.streaming else (Target.E2E,)
        message = encode_request(matrix, targets, (0.5, settings.quantile))
        rows = len(matrix)
        self._servers.sent(server, rows)
        self.asked.add(len(tickets), rows, now)

        def answered(answer: bytes | None) -> None:
            self._answered(tickets, server, rows, now, answer)

        self.link.send(server, message, settings.budget_s, answered)

    def _matrix(self, tickets: list[Ticket], now: float) -> Matrix:
        """Return the inputs of all tickets in their order; those asked aside have theirs already."""
        fresh = [each for each in tickets if each.matrix is None]
        parts = [each.matrix for each in tickets if each.matrix is not None]
        if fresh:
            parts.append(self.board.matrix(fresh, now))
            tickets.sort(key=lambda each: each.matrix is None)
        matrix = parts[0] if len(parts) == 1 else np.concatenate(parts)
        at = 0
        for each in tickets:
            end = at + each.rows.size
            each.matrix = matrix[at:end]
            at = end
        return matrix

    def _answered(
        self, tickets: list[Ticket], server: int, rows: int, sent_at: float, answer: bytes | None
    ) -> None:
        now = self.clock()
        try:
            read = None if answer is None else decode_answer(answer)
            if read is not None and read.seconds.shape[2] != rows:
                read = None
        except ContractError:
            read = None
        warms = read is not None and read.state is State.WARMING
        self._servers.ended(server, rows, now, answered=read is not None, has_model=not warms)
        if read is None:
            for each in tickets:
                self._end(each, Reason.FAILED)
        else:
            if not (warms and self._servers.others_have_a_model(server, now)):
                self.state, self.version = read.state, read.version
            self.calls += 1
            self.took_s += now - sent_at
            self._deal(tickets, read, now)
        if self._pending:
            self._dispatch(now)
        if self._released:
            self.wake()

    def _deal(self, tickets: list[Ticket], read: Prediction, now: float) -> None:
        """Give each ticket its part of an answer."""
        reason = Reason.PREDICTED
        if not read.state.routes:
            reason = Reason.DEGRADED if read.state is State.DEGRADED else Reason.WARMING
        seconds = read.seconds.astype(np.float64)
        untrusted, complete = read.untrusted.any(), not np.isnan(seconds).any()
        at = 0
        for each in tickets:
            end = at + each.rows.size
            mine = each.seconds = seconds[:, :, at:end]
            each.version = read.version
            each.is_complete = complete
            each.took_s = now - each.asked_at
            if reason:
                self._end(each, reason)
            elif untrusted and read.untrusted[at:end].any():
                self._end(each, Reason.DEGRADED)
            elif not complete and np.isnan(mine[0, 0]).all():
                self._end(each, Reason.WARMING)
            else:
                self._end(each, reason)
            at = end

    def _end(self, ticket: Ticket, reason: Reason) -> None:
        if ticket.policy is Policy.HEURISTIC:
            self._idle -= 1
            # Its request may run for long, and must not keep the rows of all others in memory.
            if ticket.matrix is not None:
                ticket.matrix = ticket.matrix.copy()
            ticket.seconds = ticket.seconds.copy()
        self._over(ticket, reason)
