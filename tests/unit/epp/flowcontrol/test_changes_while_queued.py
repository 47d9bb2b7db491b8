"""What happens to queued requests when clients, settings and endpoints change between two dispatches."""

from collections.abc import Callable

import pytest

from endpoint_picker.outcomes import Outcome
from flow_pool import CONFIG, Asked, FlowPool

PRIORITIES = {"high": 10, "batch": -5}
NARROW = CONFIG.replace("maxConcurrency: 2", "maxConcurrency: 1")
PATIENT = NARROW + "  defaultRequestTTL: 60s\n  noEndpointRequestTTL: 300s\n"


def displaced() -> tuple[FlowPool, Asked, Asked]:
    """Return a full pool, a batch request that has just lost its place, and the request that took it."""
    pool = FlowPool(NARROW + "  maxRequests: 1\n", 1, PRIORITIES)
    assert pool.ask("high").is_dispatched
    batch = pool.ask("batch")
    return pool, batch, pool.ask("high", settle=False)


def test_a_client_leaves_between_the_loss_of_its_place_and_the_answer() -> None:
    pool, batch, high = displaced()
    batch.cancel()
    pool.settle()
    assert not batch.answers
    assert (high.waits, pool.flow.queue.requests, pool.flow.queue.bytes) == (True, 1, 100)


@pytest.mark.parametrize(
    "change",
    [
        lambda pool: pool.router.apply_config(NARROW + "  defaultRequestTTL: 99s\n"),
        lambda pool: pool.router.apply_config(""),
        lambda pool: pool.router.use_replicas(2),
        lambda pool: pool.router.drain(),
    ],
    ids=["settings", "off", "replicas", "drain"],
)
def test_a_request_that_lost_its_place_is_answered_whatever_changes(
    change: Callable[[FlowPool], object],
) -> None:
    pool, batch, _high = displaced()
    change(pool)
    pool.settle()
    assert len(batch.answers) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda pool: pool.router.use_replicas(2),
        lambda pool: pool.router.apply_config(PATIENT.replace("300s", "301s")),
    ],
    ids=["replicas", "settings"],
)
def test_other_settings_do_not_shorten_the_wait_of_requests_from_an_empty_pool(
    change: Callable[[FlowPool], object],
) -> None:
    pool = FlowPool(PATIENT, 0, PRIORITIES)
    first, second = pool.ask(), pool.ask()
    pool.wait(100.0)
    pool.have([1])
    change(pool)
    pool.wait(0.4)
    assert first.waits  # proxies learn of the endpoint first
    pool.wait(0.2)
    assert first.is_dispatched
    pool.wait(59.0)
    assert second.waits
    pool.wait(2.0)
    assert second.refusal.outcome is Outcome.TTL_EXPIRED


def test_a_flow_goes_on_when_the_request_of_a_model_at_its_limit_leaves() -> None:
    text = CONFIG.replace("maxConcurrency: 2", "maxConcurrency: 9")
    pool = FlowPool(text + "  modelLimits: [{model: tiny, maxRequests: 1}]\n", 1)
    assert pool.ask(model="tiny", tenant="a").is_dispatched
    held, behind = pool.ask(model="tiny", tenant="a"), pool.ask(model="m", tenant="a")
    assert (held.waits, behind.waits) == (True, True)
    held.cancel()
    pool.settle()
    assert behind.is_dispatched


def test_a_tenant_that_left_the_queue_may_come_back() -> None:
    text = NARROW.replace("flowControl:\n", "- {type: token-fairness-policy}\nflowControl:\n")
    text += "  defaultPriorityBand: {fairnessPolicyRef: token-fairness-policy}\n"
    pool = FlowPool(text, 1, PRIORITIES)
    running = pool.ask(tenant="a")
    other = pool.ask(tenant="a")
    for _ in range(5):
        pool.ask(tenant="b").cancel()
    back = pool.ask(tenant="b")
    assert back.waits
    assert pool.flow.queue.requests == 2
    running.end()
    pool.settle()
    assert other.is_dispatched != back.is_dispatched
