"""The picker's metrics, and the observer that fills them. Names follow existing pickers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from endpoint_picker.observability.series import (
    Buckets,
    Count,
    Counts,
    Histogram,
    Labels,
    Reading,
)
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from ext_proc.processor import Ending

PREFIX: Final = "llm_d_epp_"
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

_MODEL: Final[Labels] = ("model_name", "target_model_name", "fairness_id", "priority")
_FAIRNESS: Final = "default-flow"

_LATENCY: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
    180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_TTFT: Final = tuple(bound for bound in _LATENCY if bound <= 120)
_TPOT: Final = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8,
    1, 2,
)  # fmt: skip
_GAP: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
_FAST: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_REQUEST_BYTES: Final = tuple(2**power for power in range(6, 31))
_RESPONSE_BYTES: Final = (1, *(2**power for power in range(3, 15)), 32778, 65536)
_TOKENS: Final = (1, *(2**power for power in range(3, 15)), 32778, *(2**power for power in range(16, 21)))
_OUTPUT_TOKENS: Final = (1, *(2**power for power in range(3, 14)))


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


class _Timings:
    """The histograms of one (model, priority)."""

    __slots__ = (
        "cached_tokens", "duration", "gap", "input_tokens", "output_tokens", "request_bytes",
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
        self.tpot = metrics.tpot.labels(*labels)
        self.gap = metrics.gaps.labels(*labels)

    @staticmethod
    def drop(metrics: "PickerMetrics", labels: Labels) -> None:
        """Remove the histograms from the page."""
        for family in (
            metrics.request_duration, metrics.request_bytes, metrics.response_bytes, metrics.input_tokens,
            metrics.output_tokens, metrics.cached_tokens, metrics.tpot, metrics.gaps,
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
        self.streams = Counts(PREFIX + "extproc_streams_inflight", "Open ext-proc streams.", gauge=True)
        self.request_total = Counts(PREFIX + "request_total", "Requests that were routed or refused.", _MODEL)
        self.request_errors = Counts(
            PREFIX + "request_error_total", "Requests that failed, by code.", (*_MODEL, "error_code")
        )
        self.request_running = Counts(
            PREFIX + "request_running", "Requests at model servers.", _MODEL, gauge=True
        )
        self.request_duration = self._seconds("request_duration", "From headers to the end.", _LATENCY)
        self.tpot = self._seconds("request_streaming_tpot", "Time per output token after the first.", _TPOT)
        self.gaps = self._seconds("request_streaming_itl", "Between pieces of a streamed response.", _GAP)
        self.ttft = Histogram(
            PREFIX + "request_ttft_seconds", "To the first byte of the body.", (*_MODEL, "streaming"), _TTFT
        )
        self.request_bytes = self._sized("request_size_bytes", "Size of request bodies.", _REQUEST_BYTES)
        self.response_bytes = self._sized("response_size_bytes", "Size of response bodies.", _RESPONSE_BYTES)
        self.input_tokens = self._sized("request_input_tokens", "Prompt tokens as reported.", _TOKENS)
        self.output_tokens = self._sized(
            "request_output_tokens", "Generated tokens as reported.", _OUTPUT_TOKENS
        )
        self.cached_tokens = self._sized(
            "request_cached_tokens", "Prompt tokens found in the cache, as reported.", _TOKENS
        )
        self.outcomes = Counts(PREFIX + "decisions_total", "Decisions, by outcome.", ("outcome",))
        self.endings = Counts(PREFIX + "exchanges_total", "Exchanges over, by how they ended.", ("ending",))
        self.failed_handshakes = Counts(
            PREFIX + "failed_handshakes_total", "TLS handshakes that failed, by kind.", ("kind",)
        )
        self.elsewhere = Counts(
            PREFIX + "served_elsewhere_total", "Responses from another endpoint than the one picked."
        )
        self._scheduler = Histogram(
            PREFIX + "scheduler_e2e_duration_seconds", "Time to decide on a request.", (), _FAST
        )
        self._scheduling = self._scheduler.labels()
        self._streams = self.streams.labels()
        self._outcome = {outcome: self.outcomes.labels(outcome.value) for outcome in Outcome}
        self._ending = {ending: self.endings.labels(ending.value) for ending in Ending}
        self._elsewhere = self.elsewhere.labels()
        self._readings: list[Reading] = []

    def _seconds(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}{name}_seconds", help_text, _MODEL, bounds)

    def _sized(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, help_text, _MODEL, bounds)

    # The Observer protocol.

    def started(self) -> None:
        """Count an open stream."""
        self._streams.value += 1

    def decided(self, record: Record, seconds: float) -> None:
        """Count the decision and, when there is a pick, a running request."""
        outcome = record.outcome
        assert outcome is not None  # noqa: S101 - a decision has an outcome
        self._outcome[outcome].value += 1
        if seconds:
            self._scheduling.observe(seconds)
        if outcome is Outcome.PICKED:
            self._of(record).running.value += 1

    def gap_counter(self, record: Record) -> Callable[[float], None]:
        """Return the function that counts the time between two pieces of a response."""
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
        if record.response_chunks:
            series.ttft[record.streaming].observe(record.first_byte_at - record.started_at)
        usage = record.usage
        if usage is None:
            return
        series.input_tokens.observe(usage.input_tokens)
        series.output_tokens.observe(usage.output_tokens)
        series.cached_tokens.observe(usage.cached_tokens)
        if record.streaming and usage.output_tokens > 1:
            spent = record.last_byte_at - record.first_byte_at
            series.tpot.observe(spent / (usage.output_tokens - 1))

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

        def gauge(metric: str, help_text: str, value: Callable[[PoolFigures], float]) -> None:
            reading = Reading(PREFIX + metric, help_text, ("name",), lambda: [((name,), value(figures()))])
            self._readings.append(reading)

        gauge("ready_endpoints", "Endpoints that may be picked.", lambda pool: pool.ready_endpoints)
        gauge("average_queue_size", "Waiting requests an endpoint.", lambda pool: pool.average_queue_size)
        gauge(
            "average_running_requests",
            "Running requests an endpoint.",
            lambda pool: pool.average_running_requests,
        )
        gauge(
            "average_kv_cache_utilization",
            "KV-cache utilisation, 0 to 1.",
            lambda pool: pool.average_kv_cache_utilisation,
        )

    def read(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Add one gauge without labels; `value` is called on every collection."""
        self._readings.append(Reading(PREFIX + name, help_text, (), lambda: [((), value())]))

    def read_each(
        self, name: str, help_text: str, labels: Labels, read: Callable[[], Iterable[tuple[Labels, float]]]
    ) -> None:
        """Add a gauge with labels; `read` returns its (label values, value) pairs on every collection."""
        self._readings.append(Reading(PREFIX + name, help_text, labels, read))

    def collect(self) -> Iterable[Metric]:
        """Return all families; prometheus_client calls this."""
        families: tuple[Counts | Histogram | Reading, ...] = (
            self.streams, self.request_total, self.request_errors, self.request_running,
            self.request_duration, self.ttft, self.tpot, self.gaps, self.request_bytes, self.response_bytes,
            self.input_tokens, self.output_tokens, self.cached_tokens, self.outcomes, self.endings,
            self.elsewhere, self.failed_handshakes, self._scheduler, *self._readings,
        )  # fmt: skip
        return [family.collect() for family in families]

    def register(self, registry: CollectorRegistry) -> None:
        """Add these metrics to the registry."""
        registry.register(self)


def _error_code(record: Record) -> str:
    """Return the code of a failed request, "" for one that succeeded."""
    if record.outcome is not None and record.outcome is not Outcome.PICKED:
        return record.outcome.code
    if record.response_status >= 400:
        return _MODEL_SERVER
    return "" if record.ending is Ending.COMPLETED else _UNKNOWN
