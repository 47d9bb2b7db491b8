"""The metrics of flow control, as Prometheus reads them."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from endpoint_picker.observability.flow_metrics import MAX_FLOWS, MAX_IDS, FlowMetrics
from endpoint_picker.observability.metrics import PickerMetrics
from flow_pool import CONFIG, FlowPool

LIMITED = (
    CONFIG
    + "  maxRequests: 1000\n  defaultRequestTTL: 10s\n  priorityBands: [{priority: 5, maxRequests: 4}]\n"
)


class Page:
    """A pool with its metrics page."""

    def __init__(self, config: str = LIMITED) -> None:
        self.pool = FlowPool(config, 1, {"five": 5, "batch": -5, "worst": -9})
        self.metrics = PickerMetrics()
        self.pool.router.observe_flow(FlowMetrics(self.metrics, "p", lambda: self.pool.router.flow))

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by those label values that are not the pool's or the model's."""
        registry = CollectorRegistry()
        self.metrics.register(registry)
        found = {}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                if sample.name == "llm_d_epp_flow_control_" + name:
                    kept = {
                        key: value
                        for key, value in sample.labels.items()
                        if key not in ("inference_pool", "model_name", "target_model_name")
                    }
                    found[tuple(value for _key, value in sorted(kept.items()))] = sample.value
        return found


def test_the_gauges_show_what_waits() -> None:
    page = Page()
    for _ in range(2):
        page.pool.ask()
    page.pool.ask("five", "a", size=70)
    page.pool.wait(1.0)
    page.pool.ask("five", "a", size=50)
    page.pool.ask("", "b", size=30)
    page.pool.wait(1.0)
    assert page.values("queue_size") == {("a", "5"): 2, ("b", "0"): 1}
    assert page.values("queue_bytes") == {("a", "5"): 120, ("b", "0"): 30}
    assert page.values("oldest_wait_seconds") == {("5",): 2.0, ("0",): 1.0}
    assert page.values("capacity_utilization_requests") == {("5",): 0.5, ("0",): 1 / 5000}
    assert page.values("global_capacity_utilization_requests") == {(): 0.003}
    assert page.values("global_capacity_utilization_bytes") == {}
    assert page.values("pool_saturation") == {("decode",): 1.0, ("effective",): 1.0}


def test_every_end_is_counted_with_its_wait() -> None:
    page = Page()
    for _ in range(2):
        page.pool.ask()
    late = page.pool.ask("five", "a")
    page.pool.wait(4.0)
    page.pool.asked[0].end()
    page.pool.settle()
    assert late.is_dispatched
    page.pool.ask("five", "a").cancel()
    page.pool.ask("five", "a")
    page.pool.wait(11.0)
    for _ in range(5):
        page.pool.ask("five", "a")
    assert page.values("requests_total") == {
        ("Dispatched", "0"): 2,
        ("Dispatched", "5"): 1,
        ("EvictedContextCancelled", "5"): 1,
        ("EvictedTTL", "5"): 1,
        ("RejectedCapacity", "5"): 1,
    }
    sums = page.values("request_queue_duration_seconds_sum")
    assert sums[("a", "Dispatched", "5")] == 4.0
    assert sums[("a", "EvictedTTL", "5")] == 10.0
    assert sums[("default-flow", "Dispatched", "0")] == 0.0


def test_requests_that_are_taken_back_are_counted_by_their_priority() -> None:
    page = Page(LIMITED + "  enableEviction: true\n")
    for objective in ("batch", "worst", "five"):
        assert page.pool.ask(objective).is_dispatched
    assert page.values("revocations_issued_total") == {("-9",): 1}


def test_fairness_ids_that_clients_invent_are_bounded() -> None:
    page = Page()
    for _ in range(2):
        page.pool.ask()
    for number in range(MAX_FLOWS + 50):
        page.pool.ask("", f"t{number}")
    sizes = page.values("queue_size")
    assert len(sizes) == MAX_FLOWS + 1
    assert sizes[("other", "0")] == 50
    for asked in page.pool.asked[2:]:
        asked.cancel()
    counts = page.values("request_queue_duration_seconds_count")
    assert len({key[0] for key in counts}) <= MAX_IDS + 1
    assert sum(counts.values()) == len(page.pool.asked)


def test_without_flow_control_there_are_no_gauges() -> None:
    page = Page()
    assert page.pool.router.apply_config("")
    assert page.values("queue_size") == {}
    assert page.values("pool_saturation") == {}
