"""Counters, gauges and histograms for one thread, which a Prometheus registry can collect.

prometheus_client's own histogram walks its buckets under a lock on every observation (some 2 us for the
latency buckets); these find the bucket by bisection and need no lock, as only the event loop writes them.
They are collected on the same loop. The caller bounds the label values, and so the number of series.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Buckets:
    """The observations of one series."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histogram:
    """A family of `Buckets` by label values."""

    __slots__ = ("_bounds", "_help", "_labels", "_name", "_series")

    def __init__(self, name: str, help_text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help_text
        self._labels = labels
        self._bounds = tuple(bounds)
        self._series: dict[Labels, Buckets] = {}

    def labels(self, *values: str) -> Buckets:
        """Return the series of these label values; keep it where it is used often."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = Buckets(self._bounds)
        return series

    def drop(self, *values: str) -> None:
        """Remove the series of these label values, if there is one."""
        self._series.pop(values, None)

    def collect(self) -> Metric:
        """Return the family as Prometheus reads it."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, series in self._series.items():
            seen, rows = 0, []
            for name, count in zip(names, series.counts, strict=True):
                seen += count
                rows.append((name, float(seen)))
            family.add_metric(values, rows, series.total)
        return family


class Count:
    """The value of one series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Counts:
    """A family of `Count` by label values: a counter, or a gauge that goes both ways."""

    __slots__ = ("_family", "_help", "_labels", "_name", "_series")

    def __init__(self, name: str, help_text: str, labels: Labels = (), *, gauge: bool = False) -> None:
        self._name = name
        self._help = help_text
        self._labels = labels
        self._family: Final = GaugeMetricFamily if gauge else CounterMetricFamily
        self._series: dict[Labels, Count] = {}

    def labels(self, *values: str) -> Count:
        """Return the series of these label values; keep it where it is used often."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = Count()
        return series

    def drop(self, *values: str) -> None:
        """Remove the series of these label values, if there is one."""
        self._series.pop(values, None)

    def collect(self) -> Metric:
        """Return the family as Prometheus reads it."""
        family = self._family(self._name, self._help, labels=self._labels)
        for values, series in self._series.items():
            family.add_metric(values, series.value)
        return family


class Reading:
    """A family whose values a function returns on every collection: a gauge or a counter."""

    __slots__ = ("_family", "_help", "_labels", "_name", "_read")

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Labels,
        read: Callable[[], Iterable[tuple[Labels, float]]],
        *,
        gauge: bool = True,
    ) -> None:
        self._family: Final = GaugeMetricFamily if gauge else CounterMetricFamily
        self._name = name
        self._help = help_text
        self._labels = labels
        self._read = read

    def collect(self) -> Metric:
        """Return the family as Prometheus reads it."""
        family = self._family(self._name, self._help, labels=self._labels)
        for values, value in self._read():
            family.add_metric(values, value)
        return family


Observed = tuple[Labels, Sequence[int], float]
"""Label values, counts by bucket (the last one above all bounds), and the sum of the values."""


class HistogramReading:
    """A histogram whose counts a function returns on every collection."""

    __slots__ = ("_bounds", "_help", "_labels", "_name", "_read")

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Labels,
        bounds: Sequence[float],
        read: Callable[[], Iterable[Observed]],
    ) -> None:
        self._name = name
        self._help = help_text
        self._labels = labels
        self._bounds = tuple(bounds)
        self._read = read

    def collect(self) -> Metric:
        """Return the family as Prometheus reads it."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, counts, total in self._read():
            seen, rows = 0, []
            for name, count in zip(names, counts, strict=True):
                seen += count
                rows.append((name, float(seen)))
            family.add_metric(values, rows, total)
        return family


def renamed(metric: Metric, name: str, labels: Mapping[str, str], help_text: str) -> Metric:
    """Return the family under another name, with these of its labels, renamed: {label: new name}.

    Series that differ only in other labels are added up.
    """
    made = Metric(name.removesuffix("_total") if metric.type == "counter" else name, help_text, metric.type)
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in metric.samples:
        kept = tuple(
            (labels.get(label, label), value)
            for label, value in sample.labels.items()
            if label in labels or label == "le"
        )
        key = (sample.name[len(metric.name) :], kept)
        sums[key] = sums.get(key, 0.0) + sample.value
    for (suffix, kept), value in sums.items():
        made.add_sample(made.name + suffix, dict(kept), value)
    return made
