"""Gauges over the pool as a scraper reads them."""

import math

from prometheus_client import CollectorRegistry

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.observability.pool_gauges import ScrapeCounts, add_pool_gauges, pool_figures
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router


def test_single_endpoints_and_averages() -> None:
    router = build_router()
    router.replace_endpoints([Endpoint(f"s{at}", "ns", f"10.0.0.{at}", 8000) for at in (1, 2, 3)])
    table = router.table
    first, second, third = table.ready_rows.tolist()
    table.waiting[first], table.waiting[second], table.waiting[third] = 2.0, 4.0, math.nan
    pick = router.decide(InferenceRequest(request_id="r"), None, lambda _answer: None)
    assert isinstance(pick, Decision)

    metrics, registry = PickerMetrics(), CollectorRegistry()
    counts = ScrapeCounts(lambda: 7, lambda: 2)
    add_pool_gauges(metrics, "p", router.scheduler, lambda: router.offered, counts)
    metrics.read_pool("p", lambda: pool_figures(table))
    metrics.register(registry)

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"llm_d_epp_{metric}", labels)

    pool = {"name": "p"}
    assert registry.get_sample_value("llm_d_epp_average_queue_size", pool) == 3.0
    assert registry.get_sample_value("llm_d_epp_ready_endpoints", pool) == 3
    queue = {"name": "p", "model_server_endpoint": "s2"}
    assert registry.get_sample_value("llm_d_epp_per_endpoint_queue_size", queue) == 4.0
    held = [
        value("inflight_requests", endpoint_name=f"s{at}", namespace="ns", port="8000") for at in (1, 2, 3)
    ]
    assert sorted(each or 0.0 for each in held) == [0, 0, 1]
    assert (value("datalayer_scrapes"), value("datalayer_scrape_failures")) == (7, 2)
    assert value("config_valid") == 1
    router.apply_config("kind: Nonsense")
    assert value("config_valid") == 0
    assert value("priorities_valid") == 1
    router.apply_priorities("[]")
    assert value("priorities_valid") == 0
