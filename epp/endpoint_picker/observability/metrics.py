"""The picker's metrics, and the observer that fills them. Names follow existing pickers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from endpoint_picker.observability.metric_table import FAMILIES, PREFIX, Kind
from endpoint_picker.observability.series import (
    Buckets,
    Count,
    Counts,
    Histogram,
    HistogramReading,
    Labels,
    Observed,
    Reading,
    renamed,
)
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from ext_proc.processor import Ending

#: Model names kept apart at a time. A name that has had a 2xx answer stays for the life of the process; the
#: oldest of the others makes room for a new one. A name that finds no room is counted as "other".
MAX_MODELS: Final = 1000
#: (model, priority) pairs kept apart; priorities come from objectives, so these are few.
MAX_SERIES: Final = 2000
#: Longest model name that is a label value, in characters; a longer one is counted as "other".
MAX_NAME: Final = 256
OTHER: Final = "other"
#: Unproven names tried when one has to make room; a name with requests at servers stays.
_TRIES: Final = 8

_FAIRNESS: Final = "default-flow"

_MODEL_SERVER: Final = "ModelServerError"
_UNKNOWN: Final = "Unknown"
_ERROR_CODES: Final = {*(outcome.code for outcome in Outcome), _MODEL_SERVER, _UNKNOWN}


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Averages over the ready endpoints of a pool, for the gauges that autoscalers read."""

    ready_endpoints: int
    average_queue_size: float = 0.0
    average_running_requests: float = 0.0
    average_kv_cache_utilisation: float = 0.0
    std_dev_queue_size: float = 0.0
    std_dev_running_requests: float = 0.0
    std_dev_kv_cache_utilisation: float = 0.0


class _Timings:
    """The histograms of one (model, priority)."""

    __slots__ = (
        "cached_tokens", "duration", "gap", "input_tokens", "ntpot", "output_tokens", "request_bytes",
        "response_bytes", "tpot", "ttft",
    )  # fmt: skip

    def __init__(self, metrics: "PickerMetrics", labels: Labels) -> None:
        self.duration: Buckets = metrics.request_duration.labels(*labels)
        self.request_bytes = metrics.request_bytes.labels(*labels)
        self.response_bytes = metrics.response_bytes.labels(*labels)
        self.input_tokens = metrics.input_tokens.labels(*labels)
        self.output_tokens = metrics.output_tokens.labels(*labels)
        self.cached_tokens = metrics.cached_tokens.labels(*labels)
        self.ttft = {
            streaming: metrics.ttft.labels(*labels, "true" if streaming else "false")
            for streaming in (True, False)
        }
        self.ntpot = metrics.ntpot.labels(*labels)
        self.tpot = metrics.tpot.labels(*labels)
        self.gap = metrics.gaps.labels(*labels)

    @staticmethod
    def drop(metrics: "PickerMetrics", labels: Labels) -> None:
        """Remove the histograms from the page."""
        for family in (
            metrics.request_duration, metrics.request_bytes, metrics.response_bytes, metrics.input_tokens,
            metrics.output_tokens, metrics.cached_tokens, metrics.ntpot, metrics.tpot, metrics.gaps,
        ):  # fmt: skip
            family.drop(*labels)
        for streaming in ("true", "false"):
            metrics.ttft.drop(*labels, streaming)


class _Series:
    """The series of one (model, priority).

    The histograms are made with the first complete response below 400, or streamed one. A client that invents
    model names gets errors; each name must not add a hundred lines to the page.
    """

    __slots__ = ("_metrics", "_timings", "key", "labels", "proven", "running", "total")

    def __init__(self, metrics: "PickerMetrics", key: tuple[str, int], *, proven: bool) -> None:
        model, priority = key
        labels = (model, model, _FAIRNESS, str(priority))
        self._metrics = metrics
        self._timings: _Timings | None = None
        self.key = key
        self.labels = labels
        self.proven = proven
        """The model has given a 2xx answer, or is "other": the series is never dropped."""
        self.total: Count = metrics.request_total.labels(*labels)
        self.running: Count = metrics.request_running.labels(*labels)

    @property
    def timings(self) -> _Timings:
        """The histograms, made on first use."""
        if self._timings is None:
            self._timings = _Timings(self._metrics, self.labels)
        return self._timings

    def drop(self) -> None:
        """Remove the series from the page."""
        metrics = self._metrics
        metrics.request_total.drop(*self.labels)
        metrics.request_running.drop(*self.labels)
        for code in _ERROR_CODES:
            metrics.request_errors.drop(*self.labels, code)
        _Timings.drop(metrics, self.labels)


class PickerMetrics:
    """Counts exchanges, as a `record.Observer`; `register` puts it on /metrics."""

    def __init__(self) -> None:
        self._proven: set[str] = set()
        """Models that have given a 2xx answer."""
        self._unproven: dict[str, list[_Series]] = {}
        """The series of the other models, the oldest first."""
        self._cache: dict[tuple[str, int], _Series] = {}
        self._elsewhere_counted: dict[Record, _Series] = {}
        """Exchanges under way that are counted in another series: their end must be counted there, too."""
        self.deprecated = True
        """Whether families are shown under their deprecated names as well."""
        self.streams = _counts("extproc_streams_inflight")
        self.request_total = _counts("request_total")
        self.request_errors = _counts("request_error_total")
        self.request_running = _counts("request_running")
        self.request_duration = _histogram("request_duration_seconds")
        self.ntpot = _histogram("request_ntpot_seconds")
        self.tpot = _histogram("request_streaming_tpot_seconds")
        self.gaps = _histogram("request_streaming_itl_seconds")
        self.ttft = _histogram("request_ttft_seconds")
        self.request_bytes = _histogram("request_size_bytes")
        self.response_bytes = _histogram("response_size_bytes")
        self.input_tokens = _histogram("request_input_tokens")
        self.output_tokens = _histogram("request_output_tokens")
        self.cached_tokens = _histogram("request_cached_tokens")
        self.outcomes = _counts("decisions_total")
        self.endings = _counts("exchanges_total")
        self.failed_handshakes = _counts("failed_handshakes_total")
        self.elsewhere = _counts("served_elsewhere_total")
        self.rewrites = _counts("model_rewrite_decisions_total")
        self._scheduler = _histogram("scheduler_e2e_duration_seconds")
        self._scheduling = self._scheduler.labels()
        self._request_processing = _histogram("request_processing_duration_seconds")
        self._processing = self._request_processing.labels()
        self._streams = self.streams.labels()
        self._outcome = {outcome: self.outcomes.labels(outcome.value) for outcome in Outcome}
        self._ending = {ending: self.endings.labels(ending.value) for ending in Ending}
        self._elsewhere = self.elsewhere.labels()
        self._readings: dict[str, Reading | Histogram | HistogramReading] = {}
        self._added_series: dict[str, Counts | Histogram] = {}

    # The Observer protocol.

    def started(self) -> None:
        """Count an open stream."""
        self._streams.value += 1

    def decided(self, record: Record, seconds: float) -> None:
        """Count the decision and, when there is a pick, a running request."""
        outcome = record.outcome
        assert outcome is not None  # noqa: S101 - a decision has an outcome
        self._outcome[outcome].value += 1
        self._processing.observe(record.decided_at - record.started_at)
        if seconds:
            self._scheduling.observe(seconds)
        if outcome is Outcome.PICKED:
            self._of(record).running.value += 1

    def rewritten(self, rewrite: str, model: str, target: str) -> None:
        """Count the choice."""
        self.rewrites.labels(rewrite, model, target).value += 1

    def gap_counter(self, record: Record) -> Callable[[float], None]:
        """Return the function that counts the time between two tokens of a response."""
        return self._of(record).timings.gap.observe

    def ended(self, record: Record) -> None:
        """Count everything that is known at the end."""
        self._streams.value -= 1
        assert record.ending is not None  # noqa: S101 - `Picking.ended` sets it before this call
        self._ending[record.ending].value += 1
        if record.outcome is None:
            return
        series = self._of(record)
        if self._elsewhere_counted:
            self._elsewhere_counted.pop(record, None)
        if not series.proven and 200 <= record.response_status < 300:
            self._prove(series)
        series.total.value += 1
        code = _error_code(record)
        if code:
            self.request_errors.labels(*series.labels, code).value += 1
        if record.outcome is not Outcome.PICKED:
            if record.outcome is Outcome.EVICTED:
                series.running.value -= 1
            return
        series.running.value -= 1
        if record.served_by and record.served_by != record.endpoint:
            self._elsewhere.value += 1
        if record.ending is Ending.COMPLETED and record.response_status < 400:
            self._completed(series.timings, record)

    def _completed(self, series: _Timings, record: Record) -> None:
        series.request_bytes.observe(record.request_bytes)
        series.duration.observe(record.ended_at - record.started_at)
        series.response_bytes.observe(record.response_bytes)
        if record.first_token_at:
            series.ttft[record.streaming].observe(record.first_token_at - record.started_at)
        output_tokens = record.output_tokens
        if output_tokens:
            series.ntpot.observe((record.ended_at - record.started_at) / output_tokens)
        if record.last_token_at and output_tokens > 1:
            spent = record.last_token_at - record.first_token_at
            series.tpot.observe(spent / (output_tokens - 1))
        usage = record.usage
        if usage is None:
            return
        series.input_tokens.observe(usage.input_tokens)
        series.output_tokens.observe(usage.output_tokens)
        series.cached_tokens.observe(usage.cached_tokens)

    def _of(self, record: Record) -> _Series:
        """Return the series that counts the exchange: the same one from its decision to its end."""
        if self._elsewhere_counted and (counted := self._elsewhere_counted.get(record)):
            return counted
        series = self._cache.get((record.model, record.priority))
        return self._new(record) if series is None else series

    def _new(self, record: Record) -> _Series:
        """Return a new series; without room, the model's at priority 0, else that of "other"."""
        model = record.model if len(record.model) <= MAX_NAME else OTHER
        key = (model, record.priority)
        series = self._added(key) if self._has_room(model) else self._cache.get((model, 0))
        if series is None:
            key = (OTHER, record.priority if len(self._cache) < MAX_SERIES else 0)
            series = self._cache.get(key) or self._added(key)
        if series.key != (record.model, record.priority):
            self._elsewhere_counted[record] = series
        return series

    def _added(self, key: tuple[str, int]) -> _Series:
        model = key[0]
        series = self._cache[key] = _Series(self, key, proven=model == OTHER or model in self._proven)
        if not series.proven:
            self._unproven.setdefault(model, []).append(series)
        return series

    def _has_room(self, model: str) -> bool:
        """Tell whether the model may have one more series; drops an unproven model if that makes room."""
        if model == OTHER:
            return False
        known = model in self._proven or model in self._unproven
        if len(self._cache) < MAX_SERIES and (known or self._models < MAX_MODELS):
            return True
        for name in list(islice(self._unproven, _TRIES)):
            held = self._unproven.pop(name)
            if any(series.running.value for series in held):
                self._unproven[name] = held  # moves to the end, so that the next call tries other names
                continue
            for series in held:
                del self._cache[series.key]
                series.drop()
            return True
        return False

    @property
    def _models(self) -> int:
        return len(self._proven) + len(self._unproven)

    def _prove(self, series: _Series) -> None:
        model = series.key[0]
        self._proven.add(model)
        for each in self._unproven.pop(model, ()):
            each.proven = True

    # Reading.

    @property
    def open_exchanges(self) -> int:
        """Exchanges that have begun and not ended."""
        return int(self._streams.value)

    def read_pool(self, name: str, figures: Callable[[], PoolFigures]) -> None:
        """Add the gauges of a pool; `figures` is called on every collection."""

        def gauge(metric: str, value: Callable[[PoolFigures], float]) -> None:
            self.read(metric, lambda: value(figures()), (name,))

        gauge("ready_endpoints", lambda pool: pool.ready_endpoints)
        gauge("average_queue_size", lambda pool: pool.average_queue_size)
        gauge("average_running_requests", lambda pool: pool.average_running_requests)
        gauge("average_kv_cache_utilization", lambda pool: pool.average_kv_cache_utilisation)
        gauge("std_dev_queue_size", lambda pool: pool.std_dev_queue_size)
        gauge("std_dev_running_requests", lambda pool: pool.std_dev_running_requests)
        gauge("std_dev_kv_cache_utilization", lambda pool: pool.std_dev_kv_cache_utilisation)

    def add_counts(self, name: str) -> Counts:
        """Add a family that the caller counts."""
        self._added_series[name] = counts = _counts(name)
        return counts

    def add_histogram(self, name: str) -> Histogram:
        """Add a family that the caller observes."""
        self._added_series[name] = histogram = _histogram(name)
        return histogram

    def read(self, name: str, value: Callable[[], float], labels: Labels = ()) -> None:
        """Add a family with one series; `value` is called on every collection."""
        self.read_each(name, lambda: [(labels, value())])

    def read_each(self, name: str, read: Callable[[], Iterable[tuple[Labels, float]]]) -> None:
        """Add a family; `read` returns its (label values, value) pairs on every collection."""
        family = FAMILIES[name]
        gauge = family.kind is Kind.GAUGE
        self._readings[name] = Reading(family.full_name, family.help, family.labels, read, gauge=gauge)

    def histogram(self, name: str) -> Buckets:
        """Add a family with one series, and return the series."""
        made = self._readings[name] = _histogram(name)
        return made.labels()

    def read_histogram(self, name: str, read: Callable[[], Iterable[Observed]]) -> None:
        """Add a histogram; `read` returns (label values, counts by bucket, sum) on every collection."""
        family = FAMILIES[name]
        self._readings[name] = HistogramReading(
            family.full_name, family.help, family.labels, family.buckets, read
        )

    def collect(self) -> Iterable[Metric]:
        """Return all families; prometheus_client calls this."""
        shown: dict[str, Counts | Histogram | Reading | HistogramReading] = {
            "extproc_streams_inflight": self.streams,
            "request_total": self.request_total,
            "request_error_total": self.request_errors,
            "request_running": self.request_running,
            "request_duration_seconds": self.request_duration,
            "request_ttft_seconds": self.ttft,
            "request_ntpot_seconds": self.ntpot,
            "request_streaming_tpot_seconds": self.tpot,
            "request_streaming_itl_seconds": self.gaps,
            "request_size_bytes": self.request_bytes,
            "response_size_bytes": self.response_bytes,
            "request_input_tokens": self.input_tokens,
            "request_output_tokens": self.output_tokens,
            "request_cached_tokens": self.cached_tokens,
            "request_processing_duration_seconds": self._request_processing,
            "scheduler_e2e_duration_seconds": self._scheduler,
            "decisions_total": self.outcomes,
            "exchanges_total": self.endings,
            "served_elsewhere_total": self.elsewhere,
            "failed_handshakes_total": self.failed_handshakes,
            "model_rewrite_decisions_total": self.rewrites,
            **self._added_series,
            **self._readings,
        }
        for name, series in shown.items():
            metric, twin = series.collect(), FAMILIES[name].twin
            yield metric
            if twin is not None and self.deprecated:
                text = f"Deprecated name of {PREFIX}{name}."
                yield renamed(metric, twin.name, dict(twin.labels), text)

    def register(self, registry: CollectorRegistry) -> None:
        """Add these metrics to the registry."""
        registry.register(self)


def _counts(name: str) -> Counts:
    family = FAMILIES[name]
    return Counts(family.full_name, family.help, family.labels, gauge=family.kind is Kind.GAUGE)


def _histogram(name: str) -> Histogram:
    family = FAMILIES[name]
    return Histogram(family.full_name, family.help, family.labels, family.buckets)


def _error_code(record: Record) -> str:
    """Return the code of a failed request, "" for one that succeeded."""
    if record.outcome is not None and record.outcome is not Outcome.PICKED:
        return record.outcome.code
    if record.response_status >= 400 or record.failed_in_body:
        return _MODEL_SERVER
    return "" if record.ending is Ending.COMPLETED else _UNKNOWN
