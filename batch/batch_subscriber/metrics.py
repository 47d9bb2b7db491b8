"""The metrics of one process, made from the table."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from batch_subscriber.metric_table import FAMILIES, PREFIX, Kind


class Metrics:
    """Counters, gauges and histograms by their name in the table."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in FAMILIES:
            name = PREFIX + family.name
            if family.kind is Kind.COUNTER:
                made = Counter(name, family.text, family.labels, registry=self._registry)
                self._counters[family.name] = made
            elif family.kind is Kind.GAUGE:
                self._gauges[family.name] = Gauge(name, family.text, family.labels, registry=self._registry)
            else:
                self._histograms[family.name] = Histogram(
                    name, family.text, family.labels, registry=self._registry, buckets=family.buckets
                )

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Count something."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self._histograms[name].observe(value)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def show(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge read its value when the page is made."""
        self._gauges[name].set_function(read)

    def show_each(self, name: str, reads: Mapping[str, Callable[[], float]]) -> None:
        """Have each series of a gauge with one label read its value when the page is made."""
        for label, read in reads.items():
            self._gauges[name].labels(label).set_function(read)

    def page(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return generate_latest(self._registry)
