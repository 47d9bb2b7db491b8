"""lora-affinity-scorer: its scores, and how often servers have to load an adapter."""

import random
from collections import OrderedDict
from typing import Final

import numpy as np
import pytest

from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.scorers.lora_affinity import LoraAffinityParams, LoraAffinityScorer

#: (running, waiting, slots) of each server.
PAGES: Final = [("a", "", 2), ("b", "", 2), ("bc", "", 2), ("bc", "a", 2), ("", "", 0)]


def reading(running: str, waiting: str, slots: int) -> AdapterReading:
    return AdapterReading(frozenset(running), frozenset(waiting), slots)


class Stage:
    def __init__(self, count: int, **parameters: object) -> None:
        self.now = 0.0
        self.pool = Pool(clock=lambda: self.now)
        self.pool.table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(count))
        self.scorer = LoraAffinityScorer(LoraAffinityParams.model_validate(parameters))
        self.scorer.attach(self.pool)

    def show(self, row: int, running: str = "", waiting: str = "", slots: int = 2) -> None:
        self.pool.table.adapters.report(row, reading(running, waiting, slots), at=self.now)

    def scores(self, model: str) -> list[float]:
        table = self.pool.table
        request = InferenceRequest(request_id="r", model=model)
        return [round(each, 3) for each in self.scorer.score(request, Candidates(table.ready_rows), table)]


@pytest.mark.parametrize("remember", ["0", "1h"])
def test_by_the_metrics(remember: str) -> None:
    stage = Stage(len(PAGES), rememberIdle=remember)
    for row, page in enumerate(PAGES):
        stage.show(row, *page)
    assert stage.scores("a") == [1.0, 0.8, 0.0, 0.6, 0.0]
    assert stage.scores("new") == [0.8, 0.8, 0.0, 0.0, 0.0]


def test_the_plain_scorer_forgets_an_idle_adapter_and_the_memory_does_not() -> None:
    for remember, expected in (("0", [0.8, 0.8]), ("1h", [1.0, 0.8])):
        stage = Stage(2, rememberIdle=remember)
        stage.show(0, "a")
        for row in (0, 1):
            stage.show(row)
        assert stage.scores("a") == expected


def test_a_new_load_goes_to_the_full_server_whose_idle_adapter_is_oldest() -> None:
    stage = Stage(4, rememberIdle="10s")
    stage.show(0, "x")
    for row, running in enumerate(("ab", "cd", "ef", "x")):
        stage.now = row + 1.0
        stage.show(row, running)
    for row in range(3):
        stage.show(row)
    stage.show(3, "xy")
    stage.now = 5.0
    assert stage.scores("x") == [0.4, 0.3, 0.2, 1.0]
    stage.show(3)
    assert stage.scores("z") == [0.8] * 4, "not known as an adapter: by what runs and waits"
    stage.now = 11.5
    assert stage.scores("x")[0] == 0.8, "a and b are forgotten after ten seconds"


def test_an_adapter_that_waits_for_a_slot_is_not_preferred_to_a_free_slot() -> None:
    stage = Stage(2)
    stage.show(0, "bc", "a")
    stage.show(1, "b")
    assert stage.scores("a") == [0.6, 0.8]
    stage.show(0, "b", "a")
    assert stage.scores("a") == [1.0, 0.8], "it waits for the next iteration, not for a slot"


def test_a_server_that_shows_no_slots_yet_is_free_and_a_silent_one_is_not() -> None:
    for remember, fresh in (("1h", 0.8), ("0", 0.0)):
        stage = Stage(3, rememberIdle=remember)
        stage.show(0, "ab")
        stage.pool.table.waiting[:2] = 0.0
        assert stage.scores("c") == [0.0, fresh, 0.0]
        assert stage.scores("a") == [1.0, fresh, 0.0]


def test_unknown_slots_are_no_room_and_no_memory() -> None:
    stage = Stage(2)
    stage.show(0, "a")
    stage.show(0)
    assert stage.scores("a") == [1.0, 0.0]
    stage.pool.table.adapters.expire(np.ones(len(stage.pool.table.endpoints), dtype=np.bool_))
    assert stage.scores("a") == [0.0, 0.0]


def test_an_answer_from_another_server_and_a_404_correct_the_memory() -> None:
    router = build_router(config_text="plugins: [{type: lora-affinity-scorer}]", clock=lambda: 0.0)
    router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(3))
    adapters = router.table.adapters
    for row in range(3):
        adapters.report(row, reading("a" if row == 2 else "", "", 2), at=0.0)
    decision = router.decide(InferenceRequest(request_id="r", model="a"), None, lambda _answer: None)
    assert isinstance(decision, Decision)
    assert decision.endpoint == router.table.hostports[2]
    record = Record(0.0)
    record.model, record.served_by = "a", router.table.hostports[1]
    router.first_byte(decision, record)
    assert sorted(adapters.resident("a")) == [1, 2]
    record.response_status = 404
    router.ended(decision, record)
    assert sorted(adapters.resident("a")) == [2]


class Server:
    """Four adapter slots; the least recently used idle adapter makes room."""

    def __init__(self) -> None:
        self.slots: OrderedDict[str, int] = OrderedDict()
        """Adapter to its running requests."""
        self.loads = 0

    def begin(self, adapter: str) -> None:
        count = self.slots.pop(adapter, None)
        if count is None:
            self.loads += 1
            if len(self.slots) >= 4:
                idle = next((each for each, running in self.slots.items() if not running), None)
                if idle is not None:
                    del self.slots[idle]
        self.slots[adapter] = (count or 0) + 1

    def end(self, adapter: str) -> None:
        self.slots[adapter] -= 1

    @property
    def running(self) -> frozenset[str]:
        return frozenset(each for each, running in self.slots.items() if running)


def loads_per_thousand(
    scorer: str, *, requests: int = 2000, rate: float = 4.0, seconds: float = 0.8
) -> float:
    """Return adapter loads per 1,000 requests: 40 adapters, 8 servers, scrapes every 50 ms, low load."""
    now = 0.0
    config = f"plugins: [{scorer}, {{type: queue-scorer}}, {{type: kv-cache-utilization-scorer}}]"
    router = build_router(config_text=config, clock=lambda: now, rng=np.random.default_rng(1))
    router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(8))
    columns, chance = ScrapeColumns(router.table, router.ledger), random.Random(7)
    servers = [Server() for _ in range(8)]
    ends: list[tuple[float, int, str, Decision]] = []
    warm_up, arrivals, begun, scraped = 500, 0.0, 0, -1.0
    while begun < requests + warm_up:
        now = arrivals = arrivals + chance.expovariate(rate)
        while scraped + 0.05 <= now or scraped < 0:
            scraped = max(scraped + 0.05, 0.0)
            for end in sorted(each for each in ends if each[0] <= scraped):
                servers[end[1]].end(end[2])
                router.ended(end[3], Record(end[0]))
                ends.remove(end)
            for row, server in enumerate(servers):
                columns.started(row)
                page = AdapterReading(server.running, frozenset(), 4)
                columns.write(row, Reading(0.0, len(server.running), 0.1, 0, 0, adapters=page), scraped)
        adapter = f"adapter-{chance.randrange(40)}"
        request = InferenceRequest(request_id="r", model=adapter)
        decision = router.decide(request, None, lambda _answer: None)
        assert isinstance(decision, Decision)
        picked = decision.reservations[0].row
        if begun == warm_up:
            for server in servers:
                server.loads = 0
        servers[picked].begin(adapter)
        ends.append((now + chance.uniform(0.5, 1.5) * seconds, picked, adapter, decision))
        begun += 1
    return 1000 * sum(server.loads for server in servers) / requests


def test_forty_adapters_over_eight_servers_of_four_slots_load_at_most_a_third_as_often() -> None:
    plain = loads_per_thousand("{type: lora-affinity-scorer, parameters: {rememberIdle: 0}}")
    ours = loads_per_thousand("{type: lora-affinity-scorer}")
    assert plain > 500, "the plain scorer forgets idle adapters"
    assert ours <= plain / 3, (ours, plain)
