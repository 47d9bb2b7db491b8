"""The page /debug/queue: what waits in which band, of whom, and why."""

import json
from typing import Any

from endpoint_picker.observability.queue_page import MOST_FLOWS, queue_page
from flow_pool import CONFIG, FlowPool

PRIORITIES = {"chat": 10, "batch": -10}


def page_of(pool: FlowPool) -> tuple[dict[str, Any], int]:
    """Return the page and in how many steps it was made."""
    steps, count = queue_page(pool.router.flow), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            page: dict[str, Any] = json.loads(json.dumps(done.value, allow_nan=False))
            return page, count + 1
        count += 1


def test_without_flow_control_the_page_says_so() -> None:
    pool = FlowPool("")
    assert page_of(pool)[0] == {"enabled": False, "bands": []}


def test_bands_and_flows_with_what_waits_in_them() -> None:
    pool = FlowPool(CONFIG + "  maxRequests: 100\n", priorities=PRIORITIES)
    first = pool.ask("chat", "a", size=10)
    pool.ask("chat", "a", size=10)  # the pool is full
    pool.ask("chat", "a", size=100)
    pool.wait(2.0)
    pool.ask("chat", "b", size=200)
    pool.ask("batch", "b", size=300)
    pool.ask("chat", "b", size=400)
    pool.wait(1.0)
    page, _ = page_of(pool)
    assert (page["requests"], page["bytes"], page["maxRequests"], page["maxBytes"]) == (4, 1000, 100, None)
    assert page["saturation"] == {"decode": 1.0, "effective": 1.0}
    assert (page["poolEmpty"], page["setAside"], page["oldestWaitSeconds"]) == (False, 0, 3.0)
    bands = {each["priority"]: each for each in page["bands"]}
    assert list(bands) == [10, 0, -10]
    assert {at: (each["requests"], each["bytes"]) for at, each in bands.items()} == {
        10: (3, 700),
        0: (0, 0),
        -10: (1, 300),
    }
    assert [each["oldestWaitSeconds"] for each in bands.values()] == [3.0, 0.0, 1.0]
    assert bands[10]["maxRequests"] == 5000
    assert page["flows"] == [
        {"tenant": "b", "priority": 10, "requests": 2, "bytes": 600, "inFlight": 0, "oldestWaitSeconds": 1.0},
        {"tenant": "a", "priority": 10, "requests": 1, "bytes": 100, "inFlight": 2, "oldestWaitSeconds": 3.0},
        {
            "tenant": "b",
            "priority": -10,
            "requests": 1,
            "bytes": 300,
            "inFlight": 0,
            "oldestWaitSeconds": 1.0,
        },
    ]
    assert page["otherFlows"] == {"flows": 0, "requests": 0}
    first.end()
    pool.settle()
    assert page_of(pool)[0]["bands"][0]["requests"] == 2
    assert page_of(pool)[0]["dispatchRate"] > 0


def test_the_page_lists_few_of_many_flows_and_is_made_in_steps() -> None:
    pool = FlowPool()
    for number in range(1500):
        pool.ask(tenant=f"t{number}", settle=False)
    for _ in range(3):
        pool.ask(tenant="t77", settle=False)
    page, steps = page_of(pool)
    assert steps > 2
    assert len(page["flows"]) == MOST_FLOWS
    assert (page["flows"][0]["tenant"], page["flows"][0]["requests"]) == ("t77", 4)
    listed = sum(each["requests"] for each in page["flows"])
    assert page["otherFlows"]["requests"] == page["requests"] - listed
    assert page["otherFlows"]["flows"] == 1500 - 2 - MOST_FLOWS


def test_requests_whose_hint_names_no_endpoint_are_counted_aside() -> None:
    pool = FlowPool()
    pool.ask(subset=["10.9.9.9:1"])
    page, _ = page_of(pool)
    assert (page["setAside"], page["requests"], page["flows"][0]["requests"]) == (1, 1, 1)
