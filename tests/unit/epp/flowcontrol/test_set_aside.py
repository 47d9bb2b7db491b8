"""A queued request keeps its body alone; the decision after the wait sees the same prompt as one at once."""

import envoy_messages as wire
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.observability.metrics import PickerMetrics
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.turns import Turns
from flow_pool import CONFIG, FlowPool

BY_PREFIX = CONFIG.replace("active-request-scorer", "prefix-cache-scorer")


def exchange(pool: FlowPool, prompt: str) -> Exchange[object]:
    picking = Picking(pool.router, PickerMetrics(), pool.now, lambda: pool.now, Turns(None, 1 << 28))
    made: Exchange[object] = Exchange(picking, BodyBudget(1 << 30, 1 << 30))  # type: ignore[arg-type]
    made.received(wire.request_headers({}), pool.now)
    made.received(wire.request_body(wire.body_of(prompt=prompt), end=True), pool.now)
    return made


def test_the_prompt_is_set_aside_and_read_again() -> None:
    pool = FlowPool(BY_PREFIX, 1)
    scheduler = pool.router.scheduler
    exchange(pool, "a" * 8_000)
    blocks = scheduler.prompt_blocks
    assert blocks > 10
    exchange(pool, "b" * 8_000)
    waiting = exchange(pool, "a" * 8_000)
    assert waiting.waits
    (band,) = pool.flow.queue.bands
    (queued,) = band.by_age
    assert queued.request.prompt == b""
    assert queued.tokens >= 2_000
    answers: list[object] = []
    waiting.on_resume = answers.append
    before = scheduler.prompt_blocks, scheduler.matched_blocks
    pool.have([1, 2])
    pool.settle()
    assert len(answers) == 1
    assert scheduler.prompt_blocks - before[0] == blocks
    # It was decided by its prompt: all of it is known of the first server, which is full.
    assert scheduler.matched_blocks - before[1] in (0, blocks)
    assert not pool.flow.queue.requests
