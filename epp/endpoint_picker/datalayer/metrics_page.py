"""Reads the few series that routing needs from the bytes of a Prometheus text page. Pure.

The page is searched, not parsed: of the 51 KB that a vLLM server writes, five lines matter. A series keeps
its place from page to page, so each search starts where the series was last time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Series of one name that are read; a page with more is a page of nonsense.
MAX_SERIES: Final = 64
#: Series with a longer name that are passed over on the way to one; a page with more is a page of nonsense.
MAX_NAMESAKES: Final = 1024
#: Longest line that is read.
MAX_LINE: Final = 16_384
#: Counts beyond this are not believed, only taken as very many.
MAX_COUNT: Final = 1e9
#: How far before its last place a series is looked for first.
_SLACK: Final = 256

_UNKNOWN: Final = math.nan


class Reading(NamedTuple):
    """What one page says; NaN (0 for the block counts) where it says nothing."""

    waiting: float
    running: float
    kv_usage: float
    """Fraction, [0, 1]."""
    block_size: int
    num_blocks: int

    @property
    def is_useful(self) -> bool:
        """Tell whether the page said anything about load."""
        return not (math.isnan(self.waiting) and math.isnan(self.running) and math.isnan(self.kv_usage))


@dataclass(frozen=True, slots=True)
class Series:
    """A metric name, and `name="value"` that its labels must contain ("" for any)."""

    name: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where an inference engine shows its load. None: it does not."""

    waiting: Series
    running: Series
    kv_usage: Series | None = None
    cache_info: Series | None = None
    """Info metric whose labels `block_label` and `count_label` hold block size and block count."""
    block_label: str = ""
    count_label: str = ""
    block_size: Series | None = None
    """Gauge of the block size, for engines without an info metric."""
    num_blocks: Series | None = None


_TRT_REQUESTS: Final = "nv_trt_llm_request_metrics"
_TRT_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"

ENGINES: Final[Mapping[str, Engine]] = {
    "vllm": Engine(
        waiting=Series("vllm:num_requests_waiting"),
        running=Series("vllm:num_requests_running"),
        kv_usage=Series("vllm:kv_cache_usage_perc"),
        cache_info=Series("vllm:cache_config_info"),
        block_label="block_size",
        count_label="num_gpu_blocks",
    ),
    "sglang": Engine(
        waiting=Series("sglang:num_queue_reqs"),
        running=Series("sglang:num_running_reqs"),
        kv_usage=Series("sglang:token_usage"),
        cache_info=Series("sglang:cache_config_info"),
        block_label="page_size",
        count_label="num_pages",
    ),
    "trtllm-serve": Engine(
        waiting=Series("trtllm_num_requests_waiting"),
        running=Series("trtllm_num_requests_running"),
        kv_usage=Series("trtllm_kv_cache_utilization"),
        block_size=Series("trtllm_kv_cache_tokens_per_block"),
        num_blocks=Series("trtllm_kv_cache_max_blocks"),
    ),
    "triton-tensorrt-llm": Engine(
        waiting=Series(_TRT_REQUESTS, 'request_type="waiting"'),
        running=Series(_TRT_REQUESTS, 'request_type="scheduled"'),
        kv_usage=Series(_TRT_BLOCKS, 'kv_cache_block_type="fraction"'),
        block_size=Series(_TRT_BLOCKS, 'kv_cache_block_type="tokens_per"'),
        num_blocks=Series(_TRT_BLOCKS, 'kv_cache_block_type="max"'),
    ),
    "triton": Engine(
        waiting=Series("nv_inference_pending_request_count"),
        running=Series("nv_inference_exec_count"),
    ),
}

#: Old name of the engine label, read when the configured one is absent.
OLD_ENGINE_LABEL: Final = "inference.networking.k8s.io/engine-type"


def engine_of(labels: Mapping[str, str], label_key: str, default: str) -> Engine:
    """Return the engine that the pod's labels name; absent or unknown is the default one."""
    named = labels.get(label_key) or labels.get(OLD_ENGINE_LABEL, "")
    return ENGINES.get(named) or ENGINES[default]


class PageReader:
    """Reads the pages of one server; remembers where things were."""

    __slots__ = ("_block_label", "_cache_info", "_count_label", "_finders")

    def __init__(self, engine: Engine) -> None:
        gauges = (engine.waiting, engine.running, engine.kv_usage, engine.block_size, engine.num_blocks)
        self._finders = tuple(None if each is None else _Finder(each) for each in gauges)
        self._cache_info = None if engine.cache_info is None else _Finder(engine.cache_info)
        self._block_label = engine.block_label.encode() + b'="'
        self._count_label = engine.count_label.encode() + b'="'

    def read(self, page: bytes) -> Reading:
        """Return what the page says. Never raises: what makes no sense is unknown.

        Several series of one name are data-parallel ranks behind one port: counts add up, usage is the mean.
        """
        if not page.startswith(b"#"):
            # Every line is looked for by the line break before it; real pages start with a comment.
            page = b"\n" + page
        waiting, running, usage, block_size, num_blocks = self._finders
        used, series = usage.total(page) if usage else (_UNKNOWN, 0)
        size = 0 if block_size is None else _whole(block_size.total(page)[0])
        count = 0 if num_blocks is None else _whole(num_blocks.total(page)[0])
        if self._cache_info is not None:
            line = self._cache_info.first_line(page)
            size, count = _label(line, self._block_label), _label(line, self._count_label)
        return Reading(
            waiting=waiting.total(page)[0] if waiting else _UNKNOWN,
            running=running.total(page)[0] if running else _UNKNOWN,
            kv_usage=min(used / series, 1.0) if series else _UNKNOWN,
            block_size=size,
            num_blocks=count,
        )


class _Finder:
    """Finds the sample lines of one series."""

    __slots__ = ("_label", "_needle", "_place")

    def __init__(self, series: Series) -> None:
        self._needle = b"\n" + series.name.encode()
        self._label = series.label.encode()
        self._place = 0

    def total(self, page: bytes) -> tuple[float, int]:
        """Return the sum over the series' samples, and how many there were; (NaN, 0) when there was none.

        The samples of one name stand together, as the format demands.
        """
        total, count, at = 0.0, 0, self._first(page)
        if at < 0:
            return _UNKNOWN, 0
        for _ in range(MAX_SERIES):
            line = _line(page, at + 1)
            if not self._label or self._label in line:
                value = _value(line, len(self._needle) - 1)
                if value == value:  # not NaN
                    total += value
                    count += 1
            at += 1 + len(line)
            if not page.startswith(self._needle, at):
                break
        return (total, count) if count else (_UNKNOWN, 0)

    def first_line(self, page: bytes) -> bytes:
        """Return the first sample line, b"" when there is none."""
        at = self._first(page)
        return _line(page, at + 1) if at >= 0 else b""

    def _first(self, page: bytes) -> int:
        """Return where the line break before the first sample is; -1 when there is none.

        Sample lines of one name are together, so one found at its last place, with none right before it, is
        the first.
        """
        at = self._next(page, max(0, self._place - _SLACK))
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
            if after in (b"{", b" ", b"\t"):
                return at
            start = at + len(needle)
        return -1


def _line(page: bytes, start: int) -> bytes:
    end = page.find(b"\n", start, start + MAX_LINE)
    if end < 0:
        end = min(len(page), start + MAX_LINE)
    return page[start:end]


def _value(line: bytes, name_length: int) -> float:
    """Return the sample's value; NaN when it is none, negative or not finite. A timestamp may follow it."""
    labels_end = line.rfind(b"}")
    words = line[max(labels_end + 1, name_length) :].split(None, 1)
    try:
        value = float(words[0])
    except (ValueError, IndexError):
        return _UNKNOWN
    return min(value, MAX_COUNT) if 0.0 <= value < math.inf else _UNKNOWN


def _label(line: bytes, prefix: bytes) -> int:
    """Return the whole number that the label holds, 0 when there is none."""
    for opening in (b"{", b",", b" "):
        at = line.find(opening + prefix)
        if at >= 0:
            start = at + 1 + len(prefix)
            digits = line[start : line.find(b'"', start)]
            return int(digits) if digits.isdigit() and len(digits) < 10 else 0
    return 0


def _whole(value: float) -> int:
    return 0 if math.isnan(value) else int(value)
