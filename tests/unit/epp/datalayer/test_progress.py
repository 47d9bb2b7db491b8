"""Endpoints that do not answer, pages that stand still, endpoints of unequal speed; on a virtual clock."""

import math
from itertools import pairwise

import pytest

from endpoint_picker.datalayer.contact import Contact
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.progress import (
    LONGEST_PROBE_S,
    STALL_REQUESTS,
    STALL_S,
    WORKS_S,
)
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.table import STALE_AFTER_S, Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router

#: Everything goes to the endpoint with the label, so that only `Progress` keeps requests away from it.
FAVOUR = (
    "plugins: [{type: header-label-affinity-scorer, parameters: {headerName: want, labelKey: n}}, "
    "{type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}]"
)


class Stage:
    """A router over three endpoints; the first is the favourite."""

    def __init__(self, config: str = FAVOUR) -> None:
        self.now = 100.0
        self.router = build_router(config_text=config, clock=lambda: self.now)
        self.router.replace_endpoints(
            Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"n": str(n)}) for n in range(3)
        )
        self.columns = ScrapeColumns(self.router.table, self.router.ledger)
        self.records: dict[int, Record] = {}

    @property
    def favourite(self) -> int:
        row = self.router.table.row_of("10.0.0.0:8000")
        assert row is not None
        return row

    def send(self, count: int = 1, subset: tuple[str, ...] | None = None) -> list[Decision]:
        sent = []
        for _ in range(count):
            request = InferenceRequest(request_id="r", model="m", headers={"want": "0"})
            decision = self.router.decide(request, subset, lambda _answer: None)
            assert isinstance(decision, Decision)
            self.records[id(decision)] = record = Record(self.now)
            record.decided_at = self.now
            sent.append(decision)
        return sent

    def answer(self, decision: Decision) -> None:
        record = self.records[id(decision)]
        record.first_byte_at, record.response_status = self.now, 200
        self.router.first_byte(decision, record)

    def end(self, decision: Decision) -> None:
        record = self.records[id(decision)]
        record.ended_at = self.now
        self.router.ended(decision, record)

    def page(self, row: int, waiting: float, running: float, usage: float) -> None:
        self.columns.started(row)
        self.columns.write(row, Reading(waiting, running, usage, 0, 0), self.now)

    def at_favourite(self, decisions: list[Decision]) -> int:
        return sum(each.endpoint == "10.0.0.0:8000" for each in decisions)


def test_an_endpoint_that_answers_nothing_gets_its_cap_and_then_probes() -> None:
    stage = Stage()
    begun, sent = stage.now, []
    while stage.now < begun + 120.0:
        sent += stage.send()
        for other in [each for each in sent if each.endpoint != "10.0.0.0:8000"]:
            stage.answer(other)
            stage.end(other)
            sent.remove(other)
        stage.now += 0.1
    cap = STALL_REQUESTS + STALL_S / 0.1
    # Probes after 1, 2, 4, 8, 16, 30, 30 s.
    assert stage.at_favourite(sent) <= cap + 8
    assert stage.at_favourite(sent) > STALL_REQUESTS
    assert stage.router.state()["endpoints"][0]["stalls"]


def test_a_sign_of_life_ends_the_stall() -> None:
    for sign in ("first byte", "an error", "a page"):
        stage = Stage()
        stage.page(stage.favourite, 0, 3, 0.1)
        sent = stage.send(STALL_REQUESTS)
        stage.now += STALL_S + 0.1
        assert stage.at_favourite(stage.send(4)) == 0, sign
        if sign == "first byte":
            stage.answer(sent[0])
        elif sign == "an error":
            stage.records[id(sent[0])].response_status = 503
            stage.end(sent[0])
        else:
            stage.page(stage.favourite, 0, 4, 0.1)
        assert stage.at_favourite(stage.send(4)) == 4, sign


def test_requests_that_the_clients_give_up_make_room_again() -> None:
    stage = Stage()
    sent = stage.send(STALL_REQUESTS)
    stage.now += STALL_S + 0.1
    assert stage.at_favourite(stage.send()) == 0
    stage.end(sent[0])
    stage.now += 0.1
    assert stage.at_favourite(stage.send()) == 1


def test_few_requests_without_an_answer_are_no_stall() -> None:
    stage = Stage()
    stage.send(STALL_REQUESTS - 1)
    stage.now += 60.0
    assert stage.at_favourite(stage.send()) == 1


def test_where_answers_take_long_the_patience_is_longer() -> None:
    stage = Stage()
    first = stage.send()[0]
    stage.now += 10.0
    stage.answer(first)
    stage.send(STALL_REQUESTS)
    stage.now += 30.0
    assert stage.at_favourite(stage.send()) == 1
    stage.now += 11.0
    assert stage.at_favourite(stage.send()) == 0


def test_with_all_stalled_or_a_subset_of_stalled_ones_a_request_is_still_served() -> None:
    stage = Stage()
    stage.send(STALL_REQUESTS)
    stage.now += STALL_S + 0.1
    assert stage.at_favourite(stage.send()) == 0
    assert stage.at_favourite(stage.send(subset=("10.0.0.0:8000",))) == 1


def test_probes_grow_apart_and_an_endpoint_that_leaves_is_forgotten() -> None:
    stage = Stage()
    stage.send(STALL_REQUESTS)
    stage.now += STALL_S + 0.1
    stage.send()
    probes = []
    for _ in range(2000):
        stage.now += 0.1
        decision = stage.send()[0]
        if decision.endpoint == "10.0.0.0:8000":
            probes.append(stage.now)
        else:
            stage.answer(decision)
            stage.end(decision)
    gaps = [round(later - earlier) for earlier, later in pairwise(probes)]
    assert gaps[:5] == [2, 4, 8, 16, LONGEST_PROBE_S]
    assert set(gaps[5:]) == {LONGEST_PROBE_S}
    stage.router.replace_endpoints([Endpoint("other", "default", "10.0.0.0", 8000, labels={"n": "0"})])
    assert not stage.router.pool.progress.stalled


def answers(stage: Stage, row: int, count: int) -> None:
    for _ in range(count):
        decision = stage.send(subset=(stage.router.table.hostports[row],))[0]
        stage.answer(decision)
        stage.end(decision)


def test_a_page_that_stands_still_counts_like_the_others() -> None:
    stage = Stage()
    row, table = stage.favourite, stage.router.table
    for each in table.ready_rows.tolist():
        stage.page(each, 0, 1, 0.1)
    stage.now += STALE_AFTER_S + 0.1
    for each in table.ready_rows.tolist():
        if each != row:
            stage.page(each, 4, 40, 0.6)
    stage.page(row, 0, 1, 0.1)
    assert table.waiting[row] == 0, "nothing was sent there: it may be true"
    answers(stage, row, 8)
    stage.page(row, 0, 1, 0.1)
    assert (table.waiting[row], table.running[row], round(table.kv_usage[row], 6)) == (4, 40, 0.6)
    assert stage.router.state()["endpoints"][0]["pageStandsStill"]
    stage.send(3, subset=("10.0.0.0:8000",))
    stage.page(row, 0, 1, 0.1)
    assert table.waiting[row] == 7, "three requests more than the others"
    stage.page(row, 2, 5, 0.3)
    assert (table.waiting[row], table.running[row]) == (2, 5), "the page moves again"
    assert not stage.router.state()["endpoints"][0]["pageStandsStill"]


def test_an_idle_page_of_an_endpoint_that_answers_at_once_is_believed() -> None:
    stage = Stage()
    row, table = stage.favourite, stage.router.table
    for each in table.ready_rows.tolist():
        stage.page(each, 0, 0, 0.0)
    stage.now += STALE_AFTER_S + 0.1
    answers(stage, row, 50)
    stage.page(row, 0, 0, 0.0)
    assert table.running[row] == 0
    assert not stage.router.pool.progress.still


def test_where_all_pages_stand_still_their_load_is_unknown() -> None:
    stage = Stage()
    table = stage.router.table
    rows = table.ready_rows.tolist()
    for _ in range(2):
        for each in rows:
            stage.page(each, 0, 1, 0.1)
            answers(stage, each, 8)
        stage.now += STALE_AFTER_S + 0.1
    for each in rows:
        stage.page(each, 0, 1, 0.1)
    for each in rows:
        stage.page(each, 0, 1, 0.1)
    assert all(math.isnan(table.waiting[each]) for each in rows[-1:])


def test_an_endpoint_whose_page_stops_coming_counts_like_the_others_while_it_answers() -> None:
    stage = Stage()
    row, table = stage.favourite, stage.router.table
    rows = table.ready_rows.tolist()
    for each in rows:
        stage.page(each, 0, 1, 0.1)
    stage.now += STALE_AFTER_S + 0.1
    for each in rows[1:]:
        stage.page(each, 4, 40, 0.6)
    stage.columns.expire(stage.now)
    assert math.isnan(table.waiting[row]), "nothing shows that it works"
    answers(stage, row, 1)
    stage.columns.expire(stage.now)
    assert (table.waiting[row], table.unseen[row]) == (4, 0)
    stage.send(3, subset=("10.0.0.0:8000",))
    stage.columns.expire(stage.now)
    assert (table.waiting[row], table.unseen[row]) == (7, 0)
    table.contact[row] = Contact.REFUSED
    stage.columns.expire(stage.now)
    assert math.isnan(table.waiting[row]), "its port is closed"
    table.contact[row] = Contact.WITHOUT_METRICS
    stage.now += 1.0
    for each in rows[1:]:
        stage.page(each, 4, 40, 0.6)
    stage.columns.expire(stage.now)
    assert table.waiting[row] == 7
    stage.now += WORKS_S
    for each in rows[1:]:
        stage.page(each, 4, 40, 0.6)
    stage.columns.expire(stage.now)
    assert math.isnan(table.waiting[row]), "its last answer is long ago"


@pytest.mark.parametrize(("seconds", "expected"), [((1.0, 1.0), 1.0), ((2.0, 0.5), 4.0), ((9.0, 0.1), 4.0)])
def test_slowness_is_the_time_for_a_request_compared_with_the_pool(
    seconds: tuple[float, float], expected: float
) -> None:
    stage = Stage()
    table = stage.router.table
    first, second, third = table.ready_rows.tolist()
    for _ in range(200):
        for row, took in ((first, seconds[0]), (second, seconds[1])):
            decision = stage.send(subset=(table.hostports[row],))[0]
            stage.now += took / 2
            stage.answer(decision)
            stage.now += took / 2
            stage.end(decision)
    assert table.slowness[first] / table.slowness[second] >= expected * 0.8
    assert table.slowness[third] == 1.0
    assert 0.25 <= min(table.slowness) <= max(table.slowness) <= 4.0


def test_requests_under_way_count_by_the_slowness_of_now() -> None:
    stage = Stage()
    table = stage.router.table
    slow, quick, _ = table.ready_rows.tolist()
    stage.send(3, subset=(table.hostports[slow],))
    for _ in range(40):
        for row, took in ((slow, 2.0), (quick, 0.5)):
            decision = stage.send(subset=(table.hostports[row],))[0]
            stage.now += took / 2
            stage.answer(decision)
            stage.now += took / 2
            stage.end(decision)
    assert table.slowness[slow] > 1.2
    assert table.unseen_work[slow] == 3 * table.slowness[slow]


def test_a_slower_endpoint_gets_fewer_of_a_burst_between_two_scrapes() -> None:
    stage = Stage("plugins: [{type: queue-scorer}]")
    table = stage.router.table
    rows = table.ready_rows.tolist()
    for row in rows:
        stage.page(row, 0, 0, 0.1)
    table.slowness[rows[0]] = 0.5
    sent = stage.send(40)
    assert [table.unseen[row] for row in rows] == [20, 10, 10]
    assert len(sent) == 40
