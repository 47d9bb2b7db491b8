"""Every way in which a request can fail, by how far it has come: one status, one reason, one set of headers.

docs/queueing.md has the same table for readers; a test here holds it to the page.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from typing_extensions import override

from endpoint_picker.config.build import build
from endpoint_picker.decision import Refusal
from endpoint_picker.extproc.refusals import refusal_reply
from endpoint_picker.flowcontrol.policies import OrderingPolicy
from endpoint_picker.flowcontrol.queued import Flow, Queued
from endpoint_picker.flowcontrol.simple_fairness import HeadLanes
from endpoint_picker.outcomes import Outcome
from endpoint_picker.scheduling.plugin import Admitter, RequestReader
from flow_pool import CONFIG, REGISTRY, Asked, FlowPool

PRIORITIES = {"high": 10, "batch": -5}
SMALL = CONFIG + "  maxRequests: 2\n  defaultRequestTTL: 10s\n  noEndpointRequestTTL: 5s\n"
FILTERED = SMALL.replace(
    "- {type: active-request-scorer}",
    "- {type: label-selector-filter, parameters: {matchLabels: {a: b}}}",
)


def full_pool(config: str = SMALL) -> FlowPool:
    """Return a pool whose only server is full."""
    pool = FlowPool(config, 1, PRIORITIES)
    for _ in range(2):
        assert pool.ask().is_dispatched
    return pool


def no_endpoints_before() -> Asked:
    pool = FlowPool(SMALL, 0, PRIORITIES)
    pool.ask()
    pool.ask()
    return pool.ask()


def no_endpoints_queued() -> Asked:
    pool = FlowPool(SMALL, 0, PRIORITIES)
    asked = pool.ask()
    pool.wait(4.9)
    assert asked.waits
    pool.wait(0.2)
    return asked


def lost_endpoints_queued() -> Asked:
    pool = full_pool()
    asked = pool.ask()
    pool.have([])
    pool.wait(5.1)
    return asked


def hint_without_endpoint_queued() -> Asked:
    pool = full_pool()
    asked = pool.ask(subset=["10.0.0.9"])
    pool.wait(10.1)
    return asked


def full_before() -> Asked:
    pool = full_pool()
    pool.ask()
    pool.ask()
    return pool.ask()


def full_queued() -> Asked:
    pool = full_pool()
    pool.ask("batch")
    newest = pool.ask("batch")
    assert pool.ask("high").waits
    return newest


def ttl_queued() -> Asked:
    pool = full_pool()
    asked = pool.ask()
    pool.wait(9.9)
    assert asked.waits
    pool.wait(0.2)
    return asked


def client_gone_queued() -> Asked:
    pool = full_pool()
    asked = pool.ask()
    asked.cancel()
    assert pool.flow.queue.requests == 0
    pool.wait(20.0)
    return asked


def client_gone_dispatched() -> Asked:
    pool = FlowPool(SMALL, 1, PRIORITIES)
    asked = pool.ask()
    asked.end(status=0)
    assert pool.router.ledger.held == 0
    asked.is_cancelled = True
    return asked


def shutting_down_before() -> Asked:
    pool = full_pool()
    pool.router.drain()
    return pool.ask()


def shutting_down_queued() -> Asked:
    pool = full_pool()
    asked = pool.ask()
    pool.router.drain()
    return asked


def filtered_at_once() -> Asked:
    return FlowPool(FILTERED, 1, PRIORITIES).ask()


def dispatched_late(config: str = SMALL, change: Callable[[FlowPool], None] = lambda _pool: None) -> Asked:
    """Return a request that waited and was dispatched after `change`."""
    pool = full_pool(config)
    asked = pool.ask()
    assert asked.waits
    change(pool)
    pool.asked[0].end()
    pool.settle()
    return asked


def filtered_late() -> Asked:
    def filter_all(pool: FlowPool) -> None:
        pool.router.scheduler.use(build(FILTERED, REGISTRY).scheduling)

    return dispatched_late(change=filter_all)


class Refuses(Admitter):
    @override
    def refusal(self, *_: Any) -> Refusal | None:
        return Refusal(Outcome.SATURATED, "no")


class Fails(RequestReader):
    writes: ClassVar[str] = "x"

    @override
    def read(self, request: Any) -> None:
        raise ValueError("reader")


class FailingAdmitter(Admitter):
    @override
    def refusal(self, *_: Any) -> Refusal | None:
        raise ValueError("admitter")


class FailingLanes(HeadLanes):
    @override
    def select(self, now: float) -> Flow | None:
        raise ValueError("lanes")


class FailingOrder(OrderingPolicy):
    @override
    def key(self, queued: Queued, ttl: float) -> float:
        raise ValueError("order")


def with_stage(pool: FlowPool, **stages: Any) -> None:
    pool.router.scheduler.use(replace(pool.router.scheduler.scheduling, **stages))


def admitter_at_once() -> Asked:
    pool = FlowPool(SMALL, 1, PRIORITIES)
    with_stage(pool, admitters=(Refuses({}).refusal,))
    return pool.ask()


def admitter_late() -> Asked:
    return dispatched_late(change=lambda pool: with_stage(pool, admitters=(Refuses({}).refusal,)))


def internal_before() -> Asked:
    pool = FlowPool(SMALL, 1, PRIORITIES)
    with_stage(pool, readers=(Fails({}).read,))
    return pool.ask()


def internal_entering() -> Asked:
    pool = full_pool()
    band = pool.flow.queue.band(0, pool.now)
    band.settings = replace(band.settings, ordering=FailingOrder({}))
    return pool.ask()


def internal_queued() -> Asked:
    def fail(pool: FlowPool) -> None:
        band = pool.flow.queue.band(0, 0.0)
        band.lanes = FailingLanes()
        for flow in band.flows.values():
            if flow.is_active:
                band.lanes.activate(flow, 0.0)

    return dispatched_late(change=fail)


def evicted() -> Asked:
    pool = FlowPool(SMALL + "  enableEviction: true\n", 1, PRIORITIES)
    asked = [pool.ask("batch") for _ in range(2)][-1]
    assert pool.ask("high").is_dispatched
    assert asked.evicted is not None
    asked.answers = [asked.evicted]
    return asked


def internal_dispatched() -> Asked:
    return dispatched_late(change=lambda pool: with_stage(pool, admitters=(FailingAdmitter({}).refusal,)))


#: (situation, how far the request had come, what happens, status, reason, whether Retry-After is set)
CASES: list[tuple[str, str, Callable[[], Asked], int, str, bool]] = [
    ("no endpoint", "before the queue", no_endpoints_before, 503, "rejected-no-endpoints", True),
    ("no endpoint", "queued", no_endpoints_queued, 503, "rejected-no-endpoints", True),
    ("no endpoint", "queued", lost_endpoints_queued, 503, "rejected-no-endpoints", True),
    ("no endpoint", "queued", hint_without_endpoint_queued, 503, "rejected-no-endpoints", True),
    ("full", "before the queue", full_before, 429, "rejected-saturated", True),
    ("full", "queued", full_queued, 429, "rejected-saturated", True),
    ("waited too long", "queued", ttl_queued, 429, "rejected-ttl-expired", True),
    ("shutting down", "before the queue", shutting_down_before, 503, "rejected-shutting-down", True),
    ("shutting down", "queued", shutting_down_queued, 503, "rejected-shutting-down", True),
    ("filters left nothing", "dispatched", filtered_at_once, 503, "rejected-no-endpoints", True),
    ("filters left nothing", "dispatched", filtered_late, 503, "rejected-no-endpoints", True),
    ("an admitter refused", "dispatched", admitter_at_once, 429, "rejected-saturated", True),
    ("an admitter refused", "dispatched", admitter_late, 429, "rejected-saturated", True),
    ("evicted", "dispatched", evicted, 429, "evicted", True),
    ("a plugin failed", "before the queue", internal_before, 500, "internal-error", False),
    ("a plugin failed", "before the queue", internal_entering, 500, "internal-error", False),
    ("a plugin failed", "queued", internal_queued, 500, "internal-error", False),
    ("a plugin failed", "dispatched", internal_dispatched, 500, "internal-error", False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2].__name__}")
def test_each_end_has_one_answer(case: tuple[str, str, Callable[[], Asked], int, str, bool]) -> None:
    _situation, _stage, happens, status, reason, retried = case
    asked = happens()
    refusal = asked.refusal
    reply = refusal_reply(None, refusal.outcome, refusal.message, refusal.retry_after, None)
    answer = pb.ProcessingResponse.FromString(reply).immediate_response
    headers = {each.header.key: each.header.raw_value.decode() for each in answer.headers.set_headers}
    assert answer.status.code == status
    expected = {"content-type": "application/json", "x-llm-d-request-dropped-reason": reason}
    assert {name: headers.get(name) for name in expected} == expected
    assert ("retry-after" in headers) == retried
    assert set(headers) - {"retry-after"} == set(expected)
    if retried:
        assert 1 <= int(headers["retry-after"]) <= 300
    assert asked.pool.flow.queue.requests in (0, 1, 2)


@pytest.mark.parametrize("happens", [client_gone_queued, client_gone_dispatched])
def test_a_client_that_left_gets_no_answer(happens: Callable[[], Asked]) -> None:
    asked = happens()
    assert asked.is_cancelled
    assert asked.pool.router.waiting == 0


def test_requests_at_servers_end_in_peace_while_the_picker_shuts_down() -> None:
    pool = full_pool()
    pool.router.drain()
    pool.asked[0].end(prompt=1, output=1)
    assert pool.router.ledger.held == 1


def test_the_page_has_these_rows() -> None:
    page = (Path(__file__).parents[4] / "docs" / "queueing.md").read_text()
    rows = {
        (situation, stage, int(status), reason, retry == "yes")
        for situation, stage, status, reason, retry in re.findall(
            r"^\| ([^|]+) \| ([^|]+) \| (\d+) \| `([a-z-]+)` \| (yes|no) \|$", page, re.MULTILINE
        )
    }
    assert rows == {(case[0], case[1], *case[3:]) for case in CASES}
