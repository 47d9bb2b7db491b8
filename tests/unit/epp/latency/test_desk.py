"""Calls to the prediction servers on a clock that the test sets: coalescing, budgets, failures, come-back."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.latency.desk import WINDOW_S, Desk, DeskSettings
from endpoint_picker.latency.objectives import Marks
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.latency.ticket import Ticket
from endpoint_picker.request import InferenceRequest
from latency_contract.matrix import build
from latency_contract.prediction_wire import Prediction, decode_request, encode_answer
from latency_contract.states import Policy, State

BUDGET_S = 0.1
#: Of the endpoint table.
ROWS = 16


@dataclass
class Call:
    server: int
    rows: int
    timeout_s: float
    message: bytes
    answered: Callable[[bytes | None], None]

    def answer(self, state: State = State.TRAINED, untrusted: int = 0) -> None:
        """Answer each row with its prompt's length in seconds."""
        asked = decode_request(self.message)
        tokens = asked.matrix[:, 0]
        seconds = np.broadcast_to(tokens, (len(asked.targets), 2, len(tokens)))
        marks = np.full(len(tokens), untrusted, dtype=np.uint8)
        self.answered(encode_answer(Prediction(state, "v1", asked.targets, marks, seconds)))


@dataclass
class Link:
    servers: int = 1
    answers_at_once: bool = False
    calls: list[Call] = field(default_factory=list)

    def send(
        self, server: int, message: bytes, timeout_s: float, answered: Callable[[bytes | None], None]
    ) -> None:
        rows = len(decode_request(message).matrix)
        self.calls.append(Call(server, rows, timeout_s, message, answered))


class Stage:
    def __init__(self, servers: int = 1) -> None:
        self.now = 100.0
        self.link = Link(servers)
        self.desk = Desk(EndpointTable(), lambda: self.now)
        self.desk.connect(self.link)
        self.desk.configure(DeskSettings(for_all=True, budget_s=BUDGET_S, holdout_percent=0.0))
        self.desk.state = State.TRAINED
        self.woken = 0

        def wake() -> None:
            self.woken += 1

        self.desk.wake = wake

    def gather(self, tokens: int = 1, rows: int = 2) -> Ticket:
        """Ask; the question goes out with the next `advance`, or later."""
        ticket = Ticket(np.arange(rows) % ROWS, self.now, self.now + BUDGET_S)
        ticket.input_tokens = tokens
        ticket.hold = object()
        self.desk.ask(ticket, self.now)
        if not ticket.is_over:
            self.desk.wait_for(ticket)
        return ticket

    def ask(self, tokens: int = 1, rows: int = 2) -> Ticket:
        """Ask in a turn of the event loop of its own."""
        ticket = self.gather(tokens, rows)
        self.desk.advance(self.now)
        return ticket

    def ask_aside(self) -> bool:
        ticket = Ticket(np.arange(1), self.now, self.now + BUDGET_S)
        ticket.matrix = build({"input_tokens": 1.0}, 1)
        asked = self.desk.ask_aside(ticket, self.now)
        self.desk.advance(self.now)
        return asked

    def advance(self, seconds: float = 0.0) -> tuple[list[Ticket], float | None]:
        self.now += seconds
        return self.desk.advance(self.now)

    def route(self, request_id: str = "r", marks: Marks = Marks()) -> tuple[Policy, Reason]:  # noqa: B008
        return self.desk.route(InferenceRequest(request_id=request_id), marks, self.now)


def test_a_lone_request_is_sent_at_once_and_released_with_its_answer() -> None:
    stage = Stage()
    ticket = stage.ask(3)
    (call,) = stage.link.calls
    assert (call.rows, call.timeout_s) == (2, BUDGET_S)
    assert stage.advance() == ([], stage.now + BUDGET_S)
    call.answer()
    assert stage.woken == 1
    assert stage.advance()[0] == [ticket]
    assert ticket.reason is Reason.PREDICTED
    assert ticket.seconds[0, 0].tolist() == [3.0, 3.0]
    assert stage.advance() == ([], None)


def test_requests_of_one_turn_of_the_event_loop_go_together_at_once() -> None:
    stage = Stage()
    tickets = [stage.gather(tokens) for tokens in (1, 2, 3)]
    assert not stage.link.calls
    _, due = stage.advance()
    (call,) = stage.link.calls
    assert call.rows == 6
    assert due == stage.now + BUDGET_S
    call.answer()
    assert stage.advance()[0] == tickets
    assert [each.seconds[0, 0].tolist() for each in tickets] == [[1.0] * 2, [2.0] * 2, [3.0] * 2]


def test_questions_beyond_the_largest_message_go_in_two_calls() -> None:
    stage = Stage()
    stage.gather(rows=10_000)
    stage.gather(rows=10_000)
    stage.advance()
    assert [call.rows for call in stage.link.calls] == [10_000]
    stage.advance(WINDOW_S)
    assert [call.rows for call in stage.link.calls] == [10_000, 10_000]


def test_a_question_that_no_decision_waits_for_gathers_with_the_others_and_keeps_its_own_row() -> None:
    stage = Stage()
    waiting = stage.gather(7)
    aside = Ticket(np.arange(1), stage.now, stage.now + BUDGET_S)
    aside.matrix = build({"input_tokens": 5.0}, 1)
    assert stage.desk.ask_aside(aside, stage.now)
    stage.advance()
    (call,) = stage.link.calls
    assert call.rows == 3
    call.answer()
    assert stage.advance()[0] == [waiting]
    assert (waiting.seconds[0, 0].tolist(), aside.seconds[0, 0].tolist()) == ([7.0, 7.0], [5.0])
    assert aside.matrix is not None
    assert aside.matrix.base is None  # it does not keep the call's rows in memory


def test_requests_that_come_while_a_call_is_open_go_together_after_the_window() -> None:
    stage = Stage()
    stage.ask()
    second, third = stage.ask(2, rows=3), stage.ask(5, rows=1)
    assert len(stage.link.calls) == 1
    assert stage.advance()[1] == pytest.approx(stage.now + WINDOW_S)
    stage.advance(WINDOW_S)
    assert [call.rows for call in stage.link.calls] == [2, 4]
    stage.link.calls[1].answer()
    assert stage.advance()[0] == [second, third]
    assert (second.seconds[0, 0].tolist(), third.seconds[0, 0].tolist()) == ([2.0] * 3, [5.0])


def test_the_end_of_a_call_sends_what_has_gathered() -> None:
    stage = Stage()
    stage.ask()
    stage.ask()
    stage.link.calls[0].answer()
    assert [call.rows for call in stage.link.calls] == [2, 2]


def test_the_server_with_the_fewest_rows_outstanding_is_asked() -> None:
    stage = Stage(servers=2)
    stage.ask(rows=5)
    stage.ask(rows=1)
    stage.advance(WINDOW_S)
    stage.ask(rows=1)
    stage.advance(WINDOW_S)
    assert [call.server for call in stage.link.calls] == [0, 1, 1]


def test_a_server_without_a_model_is_asked_after_the_others_and_does_not_stop_prediction() -> None:
    stage = Stage(servers=2)
    stage.ask()
    stage.link.calls[0].answer(State.WARMING)
    assert stage.route() == (Policy.PREDICTED, Reason.PREDICTED)
    stage.ask(rows=9)
    stage.link.calls[1].answer()
    stage.ask(rows=9)
    assert [call.server for call in stage.link.calls] == [0, 1, 1]
    stage.link.calls[2].answer()
    stage.now += 1.0
    stage.ask()
    assert stage.link.calls[3].server == 0


def test_a_late_answer_costs_the_budget_and_still_gives_the_sample_its_prediction() -> None:
    stage = Stage()
    ticket = stage.ask(4)
    assert stage.advance(BUDGET_S)[0] == [ticket]
    assert ticket.reason is Reason.LATE
    stage.link.calls[0].answer()
    assert stage.advance()[0] == []
    assert ticket.reason is Reason.LATE
    assert ticket.seconds[0, 0].tolist() == [4.0, 4.0]


@pytest.mark.parametrize("answer", [None, b"", b"nonsense" * 20])
def test_a_failed_call_and_an_answer_that_is_none_release_at_once(answer: bytes | None) -> None:
    stage = Stage()
    ticket = stage.ask()
    stage.link.calls[0].answered(answer)
    assert stage.advance()[0] == [ticket]
    assert ticket.reason is Reason.FAILED


def test_servers_that_fail_are_left_out_until_one_answers_a_question_that_nobody_waits_for() -> None:
    stage = Stage()
    for _ in range(2):
        stage.ask()
        stage.link.calls[-1].answered(None)
    assert stage.route() == (Policy.HEURISTIC, Reason.UNREACHABLE)
    sent = len(stage.link.calls)
    stage.now += 10.0
    assert stage.ask_aside()
    # One probe at a time.
    assert not stage.ask_aside()
    assert len(stage.link.calls) == sent + 1
    assert stage.route()[1] is Reason.UNREACHABLE
    stage.link.calls[-1].answer()
    assert stage.route() == (Policy.PREDICTED, Reason.PREDICTED)


def test_a_hung_server_costs_its_requests_the_budget_and_the_next_ones_go_elsewhere() -> None:
    stage = Stage(servers=2)
    hung = stage.ask(rows=3)
    stage.ask(rows=2)
    stage.advance(WINDOW_S)
    stage.link.calls[1].answer()
    for _ in range(5):
        stage.ask(rows=2)
        stage.advance(WINDOW_S)
        assert stage.link.calls[-1].server == 1
        stage.link.calls[-1].answer()
    released, _ = stage.advance(BUDGET_S)
    assert hung in released
    assert hung.reason is Reason.LATE


@pytest.mark.parametrize(
    ("state", "untrusted", "reason"),
    [
        (State.WARMING, 0, Reason.WARMING),
        (State.DEGRADED, 0, Reason.DEGRADED),
        (State.TRAINED, 1, Reason.DEGRADED),
        (State.SEEDED, 0, Reason.PREDICTED),
    ],
)
def test_an_answer_that_may_not_route_is_no_prediction(state: State, untrusted: int, reason: Reason) -> None:
    stage = Stage()
    ticket = stage.ask()
    stage.link.calls[0].answer(state, untrusted)
    assert stage.advance()[0] == [ticket]
    assert ticket.reason is reason
    expected = Reason.PREDICTED if state.routes else Reason(state.name.lower())
    assert stage.route()[1] is expected


def test_requests_opt_in_unless_all_are_predicted() -> None:
    stage = Stage()
    stage.desk.configure(DeskSettings(holdout_percent=0.0))
    assert stage.route()[1] is Reason.NOT_ASKED
    assert stage.route(marks=Marks(asks=True))[1] is Reason.PREDICTED


def test_a_part_of_the_requests_is_held_out_and_picked_by_prediction_while_it_is_out() -> None:
    stage = Stage()
    stage.desk.configure(DeskSettings(for_all=True, holdout_percent=10.0))
    stage.desk.proof.gains_at = stage.now
    routes = [stage.route(str(number)) for number in range(3000)]
    held_out = [number for number, route in enumerate(routes) if route == (Policy.HOLDOUT, Reason.HOLDOUT)]
    assert 240 < len(held_out) < 360
    stage.desk.proof.is_out = True
    assert stage.route(str(held_out[0])) == (Policy.PROBE, Reason.PREDICTED)
    others = next(number for number in range(3000) if number not in held_out)
    assert stage.route(str(others)) == (Policy.HEURISTIC, Reason.NO_GAIN)


def test_a_given_up_request_is_not_sent_and_not_released() -> None:
    stage = Stage()
    stage.ask()
    second = stage.ask()
    stage.desk.give_up(second, Reason.NO_ROOM)
    stage.link.calls[0].answer()
    assert len(stage.link.calls) == 1
    assert second not in stage.advance()[0]


def test_a_pool_larger_than_a_message_goes_without() -> None:
    stage = Stage()
    assert stage.ask(rows=20_000).reason is Reason.NO_ROOM


def test_a_warming_predictor_is_asked_now_and_then() -> None:
    stage = Stage()
    stage.desk.state = State.WARMING
    for _ in range(100):
        stage.now += 0.01
        if stage.ask_aside():
            stage.link.calls[-1].answer(State.WARMING)
    assert 4 <= len(stage.link.calls) <= 6
