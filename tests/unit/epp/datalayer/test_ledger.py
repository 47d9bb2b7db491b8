"""The ledger: conserved whatever the order of reservations, scrapes, releases and changes of the pool."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Reservation


def table_of(*numbers: int) -> EndpointTable:
    table = EndpointTable()
    table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in numbers)
    return table


def picked(table: EndpointTable, row: int, tokens: int = 10) -> Reservation:
    return Reservation(row=row, generation=int(table.generation[row]), tokens=tokens)


def test_a_reservation_is_seen_by_the_scrape_that_starts_after_it() -> None:
    table = table_of(1)
    ledger, row = Ledger(table), int(table.ready_rows[0])
    before, during = picked(table, row), picked(table, row)
    ledger.reserve(before)
    ledger.scrape_started(row)
    ledger.reserve(during)
    assert table.unseen[row] == 2
    ledger.scrape_succeeded(row)
    assert table.unseen[row] == 1
    ledger.release(before)
    assert (table.unseen[row], table.inflight_requests[row]) == (1, 1)
    ledger.release(during)
    assert (table.unseen[row], table.inflight_requests[row]) == (0, 0)


def test_a_failed_scrape_leaves_reservations_unseen() -> None:
    table = table_of(1)
    ledger, row = Ledger(table), int(table.ready_rows[0])
    ledger.reserve(picked(table, row))
    ledger.scrape_started(row)
    ledger.scrape_started(row)
    assert table.unseen[row] == 1


def test_release_happens_once_and_frees_the_tokens_of_a_prompt_never_computed() -> None:
    table = table_of(1)
    ledger, row = Ledger(table), int(table.ready_rows[0])
    pick = picked(table, row, tokens=100)
    ledger.reserve(pick)
    assert ledger.release(pick)
    assert not ledger.release(pick)
    ledger.computed(pick)
    assert (table.inflight_requests[row], table.inflight_tokens[row], ledger.held) == (0, 0, 0)


def test_an_old_pick_does_not_touch_the_rows_next_tenant() -> None:
    table = table_of(1)
    ledger, row = Ledger(table), int(table.ready_rows[0])
    old = picked(table, row)
    ledger.reserve(old)
    table.replace([])
    table.replace([Endpoint("new", "default", "10.0.0.2", 8000)])
    assert table.ready_rows.tolist() == [row]
    new = picked(table, row)
    ledger.reserve(new)
    ledger.computed(old)
    ledger.release(old)
    assert (table.inflight_requests[row], table.inflight_tokens[row], table.unseen[row]) == (1, 10, 1)
    assert ledger.held == 1


def test_a_server_that_leaves_and_returns_has_its_requests_still() -> None:
    table = table_of(1)
    ledger = Ledger(table)
    first, second, third = (picked(table, int(table.ready_rows[0])) for _ in range(3))
    for pick in (first, second, third):
        ledger.reserve(pick)
    table.replace([Endpoint("other", "default", "10.0.0.9", 8000)])
    ledger.release(first)
    ledger.computed(second)
    table.replace(
        [Endpoint("other", "default", "10.0.0.9", 8000), Endpoint("p1", "default", "10.0.0.1", 8000)]
    )
    (row,) = table.rows_of(["10.0.0.1:8000"]).tolist()
    assert (table.inflight_requests[row], table.inflight_tokens[row], table.unseen[row]) == (2, 10, 2)
    ledger.scrape_started(row)
    ledger.scrape_succeeded(row)
    assert table.unseen[row] == 0
    ledger.release(second)
    table.replace([])
    table.replace([Endpoint("p1", "default", "10.0.0.1", 8000)])
    (row,) = table.ready_rows.tolist()
    assert (table.inflight_requests[row], table.unseen[row]) == (1, 1)
    ledger.release(third)
    assert (table.inflight_requests[row], table.inflight_tokens[row], table.unseen[row]) == (0, 0, 0)
    assert ledger.held == 0


def test_another_server_of_the_same_name_begins_without_requests() -> None:
    table = EndpointTable()
    table.replace([Endpoint("p", "default", "10.0.0.1", 8000, incarnation="a")])
    ledger = Ledger(table)
    old = picked(table, int(table.ready_rows[0]))
    ledger.reserve(old)
    table.replace([Endpoint("p", "default", "10.0.0.1", 8000, incarnation="b")])
    (row,) = table.ready_rows.tolist()
    assert (table.inflight_requests[row], table.unseen[row]) == (0, 0)
    ledger.release(old)
    assert (table.inflight_requests[row], ledger.held) == (0, 0)


def test_a_request_that_another_server_works_on_is_counted_there() -> None:
    table = table_of(1, 2)
    ledger = Ledger(table)
    first, second = table.ready_rows.tolist()
    pick = picked(table, first)
    ledger.reserve(pick)
    ledger.move(pick, second)
    assert table.inflight_requests[[first, second]].tolist() == [0, 1]
    assert table.unseen[[first, second]].tolist() == [0, 0]
    assert table.inflight_tokens[[first, second]].tolist() == [0, 0]
    ledger.release(pick)
    ledger.move(pick, first)
    assert table.inflight_requests[[first, second]].tolist() == [0, 0]
    assert ledger.held == 0


def test_a_stream_of_thirty_minutes_keeps_its_slot_through_scrapes_and_flaps() -> None:
    table = table_of(1)
    ledger = Ledger(table)
    columns = ScrapeColumns(table, ledger)
    pick = picked(table, int(table.ready_rows[0]))
    ledger.reserve(pick)
    ledger.computed(pick)
    server = Endpoint("p1", "default", "10.0.0.1", 8000)
    for second in range(30 * 60):
        if second % 60 == 30:
            table.replace([])
        elif second % 60 == 33:
            table.replace([server])
        elif second % 60 == 40:
            table.replace([replace(server, ready=False)])
        elif second % 60 == 45:
            table.replace([server])
        for row in table.ready_rows.tolist():
            columns.started(row)
            columns.write(row, Reading(0.0, 1.0, 0.1, 16, 100), asked_at=float(second))
        columns.expire(float(second))
        for row in table.occupied():
            assert table.inflight_requests[row] == 1
            assert not second or table.unseen[row] <= 1
    (row,) = table.ready_rows.tolist()
    assert (table.inflight_requests[row], table.unseen[row]) == (1, 0)
    ledger.release(pick)
    assert (table.inflight_requests[row], ledger.held) == (0, 0)


class LedgerHistory(RuleBasedStateMachine):
    """Random histories against plain counting."""

    picks = Bundle("picks")

    def __init__(self) -> None:
        super().__init__()
        self.numbers = set(range(1, 4))
        self.table = table_of(*self.numbers)
        self.ledger = Ledger(self.table)
        self.held: dict[Reservation, int] = {}
        """Held picks, and the scrapes of their row that had started when they were made."""
        self.server: dict[Reservation, str] = {}
        """Addresses that the picks went to."""
        self.started: dict[tuple[int, int], int] = {}
        self.seen: dict[tuple[int, int], int] = {}

    def tenant(self, row: int) -> tuple[int, int]:
        return row, int(self.table.generation[row])

    def row(self, choice: int) -> int:
        rows = self.table.ready_rows.tolist()
        return int(rows[choice % len(rows)])

    @rule(target=picks, choice=st.integers(0, 50), tokens=st.integers(0, 1000))
    def reserve(self, choice: int, tokens: int) -> Reservation:
        row = self.row(choice)
        pick = picked(self.table, row, tokens)
        self.ledger.reserve(pick)
        self.held[pick] = self.started.get(self.tenant(row), 0)
        self.server[pick] = self.table.hostports[row]
        return pick

    @rule(pick=picks, choice=st.integers(0, 50))
    def move(self, pick: Reservation, choice: int) -> None:
        row = self.row(choice)
        self.ledger.move(pick, row)
        if pick in self.held:
            self.held[pick] = -1
            self.server[pick] = self.table.hostports[row]

    @rule(pick=picks)
    def compute(self, pick: Reservation) -> None:
        self.ledger.computed(pick)

    @rule(pick=picks)
    def release_maybe_again(self, pick: Reservation) -> None:
        assert self.ledger.release(pick) == (self.held.pop(pick, None) is not None)

    @rule(pick=consumes(picks))
    def release_and_forget(self, pick: Reservation) -> None:
        self.ledger.release(pick)
        self.held.pop(pick, None)

    @rule(choice=st.integers(0, 50))
    def start_scrape(self, choice: int) -> None:
        row = self.row(choice)
        self.ledger.scrape_started(row)
        self.started[self.tenant(row)] = self.started.get(self.tenant(row), 0) + 1

    @rule(choice=st.integers(0, 50))
    def finish_scrape(self, choice: int) -> None:
        row = self.row(choice)
        if self.started.get(self.tenant(row)):
            self.ledger.scrape_succeeded(row)
            self.seen[self.tenant(row)] = self.started[self.tenant(row)]

    @rule(numbers=st.sets(st.integers(1, 40), min_size=1))
    def change_pool(self, numbers: set[int]) -> None:
        before = set(self.table.hostports)
        self.table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in numbers)
        for pick in self.held:
            # No scrape has counted what is held on a server that returns.
            if self.server[pick] not in before and self.server[pick] in self.table.hostports:
                self.held[pick] = 0

    @invariant()
    def agrees_with_counting(self) -> None:
        assert self.ledger.held == len(self.held) == self.ledger.reserved - self.ledger.released
        for row in self.table.ready_rows.tolist():
            mine = [p for p in self.held if self.server[p] == self.table.hostports[row]]
            assert self.table.inflight_requests[row] == len(mine)
            assert self.table.inflight_tokens[row] == sum(p.tokens for p in mine)
            seen = self.seen.get(self.tenant(row), 0)
            assert self.table.unseen[row] == sum(1 for p in mine if self.held[p] >= seen)
            assert self.table.unseen_work[row] == self.table.unseen[row] * self.table.slowness[row]


TestLedgerHistory = LedgerHistory.TestCase
TestLedgerHistory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_expected_answers_count_until_the_end_wherever_the_endpoint_is() -> None:
    table = table_of(1, 2)
    ledger = Ledger(table)
    row, other = table.ready_rows.tolist()

    def expecting(tokens: int) -> Reservation:
        reservation = picked(table, row)
        reservation.decode_tokens = tokens
        ledger.reserve(reservation)
        return reservation

    first, second, third, fourth = (expecting(each) for each in (100, 200, 400, 800))
    assert table.inflight_tokens[row] == 1540
    ledger.computed(first)
    assert table.inflight_tokens[row] == 1530
    ledger.move(second, other)
    assert (table.inflight_tokens[row], table.inflight_tokens[other]) == (1320, 200)
    ledger.release(first)
    assert table.inflight_tokens[row] == 1220
    table.replace([])
    ledger.release(third)
    table.replace([Endpoint("p1", "default", "10.0.0.1", 8000)])
    (row,) = table.ready_rows.tolist()
    assert (table.inflight_tokens[row], table.awaiting[row]) == (810, 1)
    ledger.release(fourth)
    ledger.release(second)
    assert not table.inflight_tokens.any()
    assert not any(table.awaiting)
    assert ledger.held == 0
