"""When there is room: metrics and the ledger between two pages, roles, metrics that stay away."""

from typing import Any

from endpoint_picker.datalayer.table import Endpoint
from flow_pool import Asked, FlowPool

CONFIG = """
featureGates: [flowControl]
plugins:
- {type: utilization-detector, parameters: {queueDepthThreshold: 4, metricsStalenessThreshold: 1s}}
- {type: queue-scorer}
flowControl: {metricsFailOpenAfter: 5s, defaultRequestTTL: 500s, noEndpointRequestTTL: 500s}
"""


class Servers(FlowPool):
    """A pool whose pages are written by hand."""

    def page(self, *waiting: float, kv: float = 0.1) -> None:
        """Read a page of each server."""
        table, ledger = self.router.table, self.router.ledger
        for row, queue in zip(table.ready_rows.tolist(), waiting, strict=True):
            ledger.scrape_started(row)
            table.waiting[row], table.running[row], table.kv_usage[row] = queue, 8.0, kv
            table.scraped_at[row] = self.now
            ledger.scrape_succeeded(row)
            table.scrapes += 1
            self.router.page_read()
        self.settle()

    def many(self, count: int = 40) -> list[Asked]:
        return [self.ask() for _ in range(count)]


def dispatched(asked: list[Asked]) -> int:
    return sum(each.is_dispatched for each in asked)


def test_servers_are_filled_to_the_depth_and_no_further_between_two_pages() -> None:
    pool = Servers(CONFIG, 2)
    pool.page(0, 1)
    asked = pool.many()
    assert dispatched(asked) == 7  # 2 * 4 - 1
    pool.page(4, 4)
    assert dispatched(asked) == 7
    pool.page(1, 3)
    assert dispatched(asked) == 11


def test_an_end_makes_room_before_the_next_page() -> None:
    pool = Servers(CONFIG, 1)
    pool.page(0)
    asked = pool.many()
    pool.page(4)  # the four are known to the server, which runs eight others
    assert dispatched(asked) == 4
    asked[0].end()
    pool.settle()
    assert dispatched(asked) == 5
    pool.page(4)
    assert dispatched(asked) == 5


def test_an_end_at_a_server_without_a_queue_makes_no_room_twice() -> None:
    pool = Servers(CONFIG, 1)
    pool.page(0)
    asked = pool.many()
    pool.page(0)  # all four run: the next four may come
    assert dispatched(asked) == 8
    asked[0].end()
    pool.settle()
    assert dispatched(asked) == 8


def test_a_full_cache_lets_nothing_through() -> None:
    pool = Servers(CONFIG, 1)
    pool.page(0, kv=0.85)
    assert dispatched(pool.many()) == 0


def test_stale_metrics_close_the_pool_until_they_have_been_away_for_long() -> None:
    pool = Servers(CONFIG, 1)
    pool.page(0)
    pool.wait(2.0)
    asked = pool.many(150)
    assert dispatched(asked) == 0
    pool.flow.look()
    assert (pool.flow.gate.stale, pool.flow.gate.failed_open) == (1, 0)
    pool.wait(4.0)
    assert dispatched(asked) == 100  # BLIND_REQUESTS in flight
    assert pool.flow.gate.failed_open == 1
    asked[0].end()
    pool.settle()
    assert dispatched(asked) == 101
    pool.page(4)
    assert (pool.flow.gate.stale, pool.flow.gate.failed_open) == (0, 0)
    assert dispatched(asked) == 101


def test_a_pool_without_metrics_is_soon_judged_by_the_ledger() -> None:
    pool = Servers(CONFIG, 1)
    asked = pool.many()
    pool.wait(0.4)
    assert dispatched(asked) == 0  # the first page may still come
    pool.wait(0.7)
    assert dispatched(asked) == 40
    assert pool.flow.gate.failed_open == 1


def test_an_idle_pool_without_metrics_lets_its_first_request_through() -> None:
    pool = Servers(CONFIG, 2)
    pool.wait(0.6)
    assert pool.ask().is_dispatched
    pool.have([1, 2, 3])  # a server that has not been asked yet changes nothing
    assert pool.ask().is_dispatched


def test_one_server_of_several_without_metrics_waits_its_time() -> None:
    pool = Servers(CONFIG, 1)
    pool.page(8)
    pool.have([1, 2])
    asked = pool.ask()
    for _ in range(4):
        pool.wait(0.9)
        pool.router.table.scraped_at[0] = pool.now
        pool.router.page_read()
        pool.settle()
    assert not asked.is_dispatched
    pool.wait(2.0)
    pool.router.table.scraped_at[0] = pool.now
    pool.flow.look()
    assert pool.flow.gate.failed_open == 1


def roles(*names: str) -> Any:
    return [{"llm-d.ai/role": name} if name else {} for name in names]


def test_the_fuller_stage_of_a_disaggregated_pool_counts() -> None:
    pool = Servers(CONFIG, 0)
    pool.router.replace_endpoints(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels=labels)
        for n, labels in enumerate(roles("prefill", "decode", "decode", "encode"))
    )
    pool.page(4, 0, 0, 0)
    asked = pool.many()
    assert dispatched(asked) == 0
    assert pool.flow.gate.stages["prefill"] == 1.0
    assert pool.flow.gate.stages["decode"] < 1.0
    pool.page(0, 0, 0, 4)  # nothing is left to the encoder's queue
    assert dispatched(asked) > 0
