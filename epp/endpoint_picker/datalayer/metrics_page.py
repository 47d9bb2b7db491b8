"""Reads the few series that routing needs from the bytes of a Prometheus text page. Pure.

The page is searched, not parsed: of the 51 KB that a vLLM server writes, five lines are needed. A series
keeps its place from page to page, so each search starts near its last place.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, NamedTuple

from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.attributes import AttributeKey

#: Samples of one name that are read; further ones are ignored.
MAX_SERIES: Final = 64
#: Samples of the adapters' series that are read. vLLM keeps one for each combination of adapters it had.
MAX_ADAPTER_SAMPLES: Final = 4096
#: Longer names with the same beginning that one search skips; beyond it the series counts as missing.
MAX_NAMESAKES: Final = 1024
#: Bytes of a line that are read.
MAX_LINE: Final = 16_384
#: Larger values are read as this one.
MAX_COUNT: Final = 1e9
#: Attributes beyond this are read as it, so that sums and differences of a few stay finite.
MAX_NUMBER: Final = 1e150
#: Attribute of the prefix cache's hit rate.
HIT_RATE: Final = "KVCacheHitRate"
#: Looked-up tokens after which older ones weigh half in a hit rate that is made of two counters.
HIT_RATE_TOKENS: Final = 200_000.0
#: A search starts this many bytes before the last place of the series.
_SLACK: Final = 256

_UNKNOWN: Final = math.nan
#: What follows the name in a sample line.
_AFTER_NAME: Final = (b"{", b" ", b"\t")


class Signal(IntFlag):
    """The signals that a page can show. `Reading.missing` is a set of them."""

    WAITING = 1
    RUNNING = 2
    KV_USAGE = 4
    BLOCKS = 8
    ATTRIBUTES = 16

    @property
    def label(self) -> str:
        """The name in metrics, in the debug state and in the answer to the operator."""
        return (self.name or "").lower()


class Reading(NamedTuple):
    """The values of one page; NaN (0 for the block counts) for what it lacks."""

    waiting: float
    running: float
    kv_usage: float
    """Fraction, [0, 1]."""
    block_size: int
    num_blocks: int
    missing: int = 0
    """Set of `Signal`s that the engine is configured to show and the page lacks."""
    adapters: AdapterReading | None = None
    attributes: tuple[tuple[AttributeKey, float], ...] = ()

    @property
    def is_useful(self) -> bool:
        """Tell whether the page has at least one of the three load signals."""
        return not (math.isnan(self.waiting) and math.isnan(self.running) and math.isnan(self.kv_usage))


@dataclass(frozen=True, slots=True)
class Series:
    """A metric name, and the (label, value) pairs that a sample must have."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


Gauge = tuple[Series, ...]
"""Names of one signal in an engine's versions, newest first; the first name that a page has is read."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The series in which an inference engine shows its load. An empty gauge: there is no such series."""

    waiting: Gauge = ()
    running: Gauge = ()
    kv_usage: Gauge = ()
    cache_info: Series | None = None
    """Info metric whose labels `block_label` and `count_label` hold block size and block count."""
    block_label: str = ""
    count_label: str = ""
    block_size: Gauge = ()
    """Block size, for engines without an info metric."""
    num_blocks: Gauge = ()
    hit_rate: Gauge = ()
    """Fraction of the prompt tokens that the prefix cache held."""
    hits: Gauge = ()
    """Prompt tokens that the prefix cache held, counted since the server's start; with `queries`."""
    queries: Gauge = ()
    """Prompt tokens that were looked up, likewise."""
    lora: Series | None = None
    """Info metric whose labels name the running and waiting adapters; its value is the time of writing."""
    attributes: tuple[tuple[str, Series], ...] = ()
    """(attribute, its gauge): the numbers that a configuration wants of the page."""


def _gauge(*names: str) -> Gauge:
    return tuple(Series(name) for name in names)


def _trt(kind: str, value: str) -> Gauge:
    name = "request_metrics" if kind == "request_type" else "kv_cache_block_metrics"
    return (Series(f"nv_trt_llm_{name}", ((kind, value),)),)


ENGINES: Final[Mapping[str, Engine]] = {
    "vllm": Engine(
        waiting=_gauge("vllm:num_requests_waiting"),
        running=_gauge("vllm:num_requests_running"),
        kv_usage=_gauge("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        cache_info=Series("vllm:cache_config_info"),
        block_label="block_size",
        count_label="num_gpu_blocks",
        hits=_gauge("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        queries=_gauge("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        lora=Series("vllm:lora_requests_info"),
    ),
    "sglang": Engine(
        waiting=_gauge("sglang:num_queue_reqs"),
        running=_gauge("sglang:num_running_reqs"),
        kv_usage=_gauge("sglang:token_usage"),
        cache_info=Series("sglang:cache_config_info"),
        block_label="page_size",
        count_label="num_pages",
        hit_rate=_gauge("sglang:cache_hit_rate"),
    ),
    "trtllm-serve": Engine(
        waiting=_gauge("trtllm_num_requests_waiting"),
        running=_gauge("trtllm_num_requests_running"),
        kv_usage=_gauge("trtllm_kv_cache_utilization"),
        block_size=_gauge("trtllm_kv_cache_tokens_per_block"),
        num_blocks=_gauge("trtllm_kv_cache_max_blocks"),
        hit_rate=_gauge("trtllm_kv_cache_hit_rate"),
    ),
    "triton-tensorrt-llm": Engine(
        waiting=_trt("request_type", "waiting"),
        running=_trt("request_type", "scheduled"),
        kv_usage=_trt("kv_cache_block_type", "fraction"),
        block_size=_trt("kv_cache_block_type", "tokens_per"),
        num_blocks=_trt("kv_cache_block_type", "max"),
    ),
    "triton": Engine(
        waiting=_gauge("nv_inference_pending_request_count"),
        running=_gauge("nv_inference_exec_count"),
    ),
}

#: Old name of the engine label, read when the configured one is absent.
OLD_ENGINE_LABEL: Final = "inference.networking.k8s.io/engine-type"


def engine_name(
    labels: Mapping[str, str], label_key: str, default: str, engines: Mapping[str, Engine] = ENGINES
) -> str:
    """Return the name of the engine that the pod's labels name; absent or unknown is the default one."""
    named = labels.get(label_key) or labels.get(OLD_ENGINE_LABEL, "")
    return named if named in engines else default


def engine_of(
    labels: Mapping[str, str], label_key: str, default: str, engines: Mapping[str, Engine] = ENGINES
) -> Engine:
    """Return the engine of that name."""
    return engines[engine_name(labels, label_key, default, engines)]


class LargestReader:
    """Reads one attribute from the pages of one exporter: the largest of a gauge's samples, scaled."""

    __slots__ = ("_finder", "_key", "_scale")

    def __init__(self, key: AttributeKey, series: Series, scale: float) -> None:
        self._key = key
        self._finder = _Finder(series)
        self._scale = scale

    def read(self, page: bytes) -> Reading:
        """Return a reading with the attribute, without it when the page lacks the gauge."""
        if not page.startswith(b"#"):
            page = b"\n" + page
        values = self._finder.samples(page)
        attributes = ((self._key, max(values) * self._scale),) if values else ()
        return Reading(_UNKNOWN, _UNKNOWN, _UNKNOWN, 0, 0, attributes=attributes)


class PageReader:
    """Reads the pages of one server; remembers the place of each series."""

    __slots__ = (
        "_attributes",
        "_block_label",
        "_block_size",
        "_cache_info",
        "_count_label",
        "_hit_rate",
        "_lora",
        "_num_blocks",
        "_running",
        "_usage",
        "_waiting",
    )

    def __init__(self, engine: Engine, extractor: str = "", *, hit_rate: bool = False) -> None:
        """`extractor` is the name of the plugin that the attributes belong to; `hit_rate`: read HIT_RATE."""
        self._waiting = _GaugeFinder(engine.waiting)
        self._running = _GaugeFinder(engine.running)
        self._usage = _GaugeFinder(engine.kv_usage)
        self._block_size = _GaugeFinder(engine.block_size)
        self._num_blocks = _GaugeFinder(engine.num_blocks)
        self._cache_info = None if engine.cache_info is None else _Finder(engine.cache_info)
        self._block_label = engine.block_label.encode() + b'="'
        self._count_label = engine.count_label.encode() + b'="'
        self._lora = None if engine.lora is None else _Finder(engine.lora)
        self._attributes = tuple(((extractor, name), _Finder(series)) for name, series in engine.attributes)
        self._hit_rate = _HitRateFinder(engine, (extractor, HIT_RATE)) if hit_rate else None

    def read(self, page: bytes) -> Reading:
        """Return the page's values. Never raises: a value that cannot be read is unknown.

        Several samples of one name come from the engines behind one port, such as data-parallel ranks: counts
        add up, usage is the mean.
        """
        if not page.startswith(b"#"):
            # Searches look for a name after a line break, so the first line needs one, too.
            page = b"\n" + page
        waiting, running, usage = (
            self._waiting.samples(page),
            self._running.samples(page),
            self._usage.samples(page),
        )
        size, count = self._blocks(page)
        missing = 0
        if not waiting and self._waiting:
            missing |= Signal.WAITING
        if not running and self._running:
            missing |= Signal.RUNNING
        if not usage and self._usage:
            missing |= Signal.KV_USAGE
        if not size and (self._cache_info or self._block_size):
            missing |= Signal.BLOCKS
        attributes = self._read_attributes(page) if self._attributes else ()
        if len(attributes) < len(self._attributes):
            missing |= Signal.ATTRIBUTES
        if self._hit_rate is not None:
            rate = self._hit_rate.rate(page)
            if rate == rate:  # not NaN
                attributes = (*attributes, (self._hit_rate.key, rate))
            else:
                missing |= Signal.ATTRIBUTES
        return Reading(
            waiting=sum(waiting) if waiting else _UNKNOWN,
            running=sum(running) if running else _UNKNOWN,
            kv_usage=min(sum(usage) / len(usage), 1.0) if usage else _UNKNOWN,
            block_size=size,
            num_blocks=count,
            missing=int(missing),
            adapters=None if self._lora is None else _adapters(self._lora.lines(page, MAX_ADAPTER_SAMPLES)),
            attributes=attributes,
        )

    def _read_attributes(self, page: bytes) -> tuple[tuple[AttributeKey, float], ...]:
        """Return the attributes that the page has: of each the mean of its samples."""
        found = []
        for key, finder in self._attributes:
            values = finder.numbers(page)
            if values:
                found.append((key, sum(values) / len(values)))
        return tuple(found)

    def _blocks(self, page: bytes) -> tuple[int, int]:
        """Return the block size, of several the largest, and the blocks of all engines in that size."""
        if self._cache_info is None:
            sizes, counts = self._block_size.samples(page), self._num_blocks.samples(page)
            return int(max(sizes, default=0.0)), int(sum(counts))
        largest = tokens = blocks = 0
        for line in self._cache_info.lines(page):
            size, count = _label(line, self._block_label), _label(line, self._count_label)
            largest = max(largest, size)
            tokens += size * count
            blocks += count
        return largest, tokens // largest if largest else blocks


class _HitRateFinder:
    """Reads the hit rate of a server's prefix cache."""

    __slots__ = (
        "_hits",
        "_hits_seen",
        "_queries",
        "_queries_seen",
        "_rate",
        "_recent_hits",
        "_recent_queries",
        "key",
    )

    def __init__(self, engine: Engine, key: AttributeKey) -> None:
        self.key = key
        self._rate = _GaugeFinder(engine.hit_rate)
        self._hits = _GaugeFinder(engine.hits)
        self._queries = _GaugeFinder(engine.queries)
        self._hits_seen = self._queries_seen = 0.0
        """Both counters as the last page had them."""
        self._recent_hits = self._recent_queries = 0.0
        """What they grew by, older growth weighing less."""

    def rate(self, page: bytes) -> float:
        """Return the rate, NaN when it is unknown: the gauge, or the growth of both counters."""
        gauge = self._rate.numbers(page)
        if gauge:
            return min(max(sum(gauge) / len(gauge), 0.0), 1.0)
        hits, queries = sum(self._hits.numbers(page)), sum(self._queries.numbers(page))
        if queries < self._queries_seen or hits < self._hits_seen:  # the server began anew
            self._hits_seen = self._queries_seen = self._recent_hits = self._recent_queries = 0.0
        grown = queries - self._queries_seen
        if grown > 0.0:
            faded = 0.5 ** (grown / HIT_RATE_TOKENS)
            self._recent_hits = self._recent_hits * faded + hits - self._hits_seen
            self._recent_queries = self._recent_queries * faded + grown
            self._hits_seen, self._queries_seen = hits, queries
        if not self._recent_queries:
            return _UNKNOWN
        return min(max(self._recent_hits / self._recent_queries, 0.0), 1.0)


class _GaugeFinder:
    """Finds a gauge under any of its names; false when the engine has no such gauge."""

    __slots__ = ("_finders", "_last")

    def __init__(self, gauge: Gauge) -> None:
        self._finders = tuple(_Finder(each) for each in gauge)
        self._last: _Finder | None = self._finders[0] if self._finders else None
        """The name found last. A server keeps to one name, so this saves searches for the others."""

    def __bool__(self) -> bool:
        return bool(self._finders)

    def samples(self, page: bytes) -> list[float]:
        """Return the values of the gauge's samples under its first name that the page has."""
        return self._found(page, _Finder.samples)

    def numbers(self, page: bytes) -> list[float]:
        """Return the same with negative and large values, within MAX_NUMBER."""
        return self._found(page, _Finder.numbers)

    def _found(self, page: bytes, read: Callable[["_Finder", bytes], list[float]]) -> list[float]:
        if self._last is None:
            return []
        found = read(self._last, page)
        if found:
            return found
        for finder in self._finders:
            if finder is not self._last and (found := read(finder, page)):
                self._last = finder
                return found
        return []


class _Finder:
    """Finds the sample lines of one series."""

    __slots__ = ("_labels", "_needle", "_place")

    def __init__(self, series: Series) -> None:
        self._needle = b"\n" + series.name.encode()
        # The format escapes quotes in values, so no value can imitate another label.
        self._labels = tuple(
            re.compile(rb'[{,]\s*%s="%s"' % (re.escape(name.encode()), re.escape(value.encode())))
            for name, value in series.labels
        )
        self._place = 0

    def samples(self, page: bytes) -> list[float]:
        """Return the readable values of the series' samples, in their order."""
        name_length = len(self._needle) - 1
        values = (_value(line, name_length) for line in self.lines(page))
        return [value for value in values if value == value]  # not NaN

    def numbers(self, page: bytes) -> list[float]:
        """Return the finite values of the series' samples, between -MAX_NUMBER and MAX_NUMBER, in order."""
        name_length = len(self._needle) - 1
        values = (_number(line, name_length) for line in self.lines(page))
        return [max(-MAX_NUMBER, min(value, MAX_NUMBER)) for value in values if math.isfinite(value)]

    def lines(self, page: bytes, most: int = MAX_SERIES) -> list[bytes]:
        """Return the series' sample lines. Those of one name stand together, as the format demands."""
        found: list[bytes] = []
        at = self._first(page)
        if at < 0:
            return found
        for _ in range(most):
            line = _line(page, at + 1)
            if line[len(self._needle) - 1 : len(self._needle)] not in _AFTER_NAME:
                break
            if all(label.search(line) for label in self._labels):
                found.append(line)
            at += 1 + len(line)
            if not page.startswith(self._needle, at):
                break
        return found

    def _first(self, page: bytes) -> int:
        """Return where the line break before the first sample is; -1 when there is none.

        Sample lines of one name are together, so one found at its last place, with none right before it, is
        the first.
        """
        at = self._next(page, max(0, self._place - _SLACK))
        if at < 0 and self._place <= _SLACK:
            return -1
        if at < 0 or page.startswith(self._needle, page.rfind(b"\n", 0, at)):
            at = self._next(page, 0)
        self._place = max(at, 0)
        return at

    def _next(self, page: bytes, start: int) -> int:
        needle = self._needle
        for _ in range(MAX_NAMESAKES):
            at = page.find(needle, start)
            if at < 0:
                return -1
            after = page[at + len(needle) : at + len(needle) + 1]
            if after in _AFTER_NAME:
                return at
            start = at + len(needle)
        return -1


def _line(page: bytes, start: int) -> bytes:
    end = page.find(b"\n", start, start + MAX_LINE)
    if end < 0:
        end = min(len(page), start + MAX_LINE)
    return page[start:end]


def _value(line: bytes, name_length: int) -> float:
    """Return the sample's value, at most MAX_COUNT; NaN when it is no number, negative or not finite."""
    value = _number(line, name_length)
    return min(value, MAX_COUNT) if 0.0 <= value < math.inf else _UNKNOWN


def _number(line: bytes, name_length: int) -> float:
    """Return the sample's value, NaN when it is no number. A timestamp may follow it."""
    labels_end = line.rfind(b"}")
    words = line[max(labels_end + 1, name_length) :].split(None, 1)
    try:
        return float(words[0])
    except (ValueError, IndexError):
        return _UNKNOWN


_RUNNING_ADAPTERS: Final = re.compile(rb'[{,]\s*running_lora_adapters="((?:[^"\\]|\\.)*)"')
_WAITING_ADAPTERS: Final = re.compile(rb'[{,]\s*waiting_lora_adapters="((?:[^"\\]|\\.)*)"')


def _adapters(lines: list[bytes]) -> AdapterReading | None:
    """Return what the newest of the samples says; None without one.

    A sample's value is the time at which the server wrote it. The older samples are former combinations.
    """
    newest, newest_at = b"", -math.inf
    for line in lines:
        at = _number(line, 0)
        if at > newest_at:
            newest, newest_at = line, at
    if not newest:
        return None
    running, waiting = _RUNNING_ADAPTERS.search(newest), _WAITING_ADAPTERS.search(newest)
    return AdapterReading(
        running=_names(running[1]) if running else frozenset(),
        waiting=_names(waiting[1]) if waiting else frozenset(),
        slots=_label(newest, b'max_lora="'),
    )


def _names(listed: bytes) -> frozenset[str]:
    """Return the names of a comma-separated label value."""
    if not listed:
        return frozenset()
    text = listed.decode("utf-8", "replace")
    if "\\" in text:
        text = text.replace('\\"', '"').replace("\\\\", "\\")
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _label(line: bytes, prefix: bytes) -> int:
    """Return the whole number that the label holds, 0 when there is none."""
    for opening in (b"{", b",", b" "):
        at = line.find(opening + prefix)
        if at >= 0:
            start = at + 1 + len(prefix)
            digits = line[start : line.find(b'"', start)]
            return int(digits) if digits.isdigit() and len(digits) < 10 else 0
    return 0
