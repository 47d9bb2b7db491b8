"""Replay of recorded traces: Azure's LLM inference traces (CSV) and Mooncake's (JSONL).

Azure (https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md): the columns TIMESTAMP
(date and time), ContextTokens, GeneratedTokens. Contents are unknown, so no two prompts share a prefix.

Mooncake (https://github.com/kvcache-ai/Mooncake, FAST25-release): one JSON object a line with `timestamp`
(ms), `input_length`, `output_length`, `hash_ids`: one id for each 512 tokens of the prompt, the last block
perhaps shorter. Equal leading ids are equal prefixes.

A trace is read line by line and never held in memory: once by `scan`, which finds its faults, and once by
each run that replays its `rows`.
"""

import csv
import heapq
import io
import itertools
import json
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from endpoint_picker.config_errors import MAX_FAULTS
from pool_simulation.workload import Segment, SimulatedRequest
from pool_simulation.workloads.generate import BLOCK, Labels, adapters, generator, names, seeded
from pool_simulation.workloads.segments import SegmentIds
from pool_simulation.workloads.spec import Trace

#: Longest line of a trace, characters: 100,000 hash ids fit.
MAX_LINE: Final = 1 << 20
MAX_TOKENS: Final = 10_000_000
#: Rows that may be out of order: each row may come this many lines late.
REORDERED_ROWS: Final = 128
_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Row(NamedTuple):
    """One request of a trace."""

    at_s: float
    line: int
    """In the file, from 1."""
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that cannot be replayed."""

    line: int
    """From 1; 0 for the file as a whole."""
    message: str


class TraceError(Exception):
    """A trace cannot be replayed; `faults` has the first few of its faults, in order."""

    def __init__(self, path: Path, faults: list[Fault]) -> None:
        self.path = path
        self.faults = faults
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return one line for each fault, in the form "FILE:LINE: what is wrong"."""
        return [
            f"{self.path}:{fault.line}: {fault.message}" if fault.line else f"{self.path}: {fault.message}"
            for fault in self.faults
        ]


class _BadRowError(ValueError):
    """What is wrong with one row."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a trace holds."""

    requests: int
    duration_s: float
    """From the first request to the last, at the trace's own speed."""
    prompt_tokens: int
    """Of all requests."""
    output_tokens: int
    longest_tokens: int
    """Prompt and answer of the longest request."""


def scan(trace: Trace, path: Path) -> Summary:
    """Read the whole trace and sum it up. Raises TraceError, which names bad rows by line."""
    requests = prompt = output = longest = 0
    first = last = None
    for row in rows(trace, path):
        requests += 1
        prompt += row.prompt_tokens
        output += row.output_tokens
        longest = max(longest, row.prompt_tokens + row.output_tokens)
        first = row.at_s if first is None else first
        last = row.at_s
    if first is None or last is None:
        raise TraceError(path, [Fault(0, "holds no requests")])
    return Summary(requests, last - first, prompt, output, longest)


def rows(trace: Trace, path: Path) -> Iterator[Row]:
    """Yield the rows in order of time. Raises TraceError, which names the first few bad rows."""
    faults: list[Fault] = []
    waiting: list[Row] = []
    last = float("-inf")
    for row in _parsed(trace, path, faults):
        if faults:
            continue  # only further faults are of interest now
        if row.at_s < last:
            message = f"is more than {REORDERED_ROWS} rows late; sort the trace by time"
            raise TraceError(path, [Fault(row.line, message)])
        heapq.heappush(waiting, row)
        if len(waiting) > REORDERED_ROWS:
            last = waiting[0].at_s
            yield heapq.heappop(waiting)
    if faults:
        raise TraceError(path, faults)
    while waiting:
        yield heapq.heappop(waiting)


def _parsed(trace: Trace, path: Path, faults: list[Fault]) -> Iterator[Row]:
    try:
        # A pipe would block the second reading, and a device such as /dev/zero has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(path, [Fault(0, "is not a regular file; a trace is read several times")])
        with path.open(encoding="utf-8", newline="") as file:
            numbered = _lines(file)
            first = next(numbered, None)
            if first is None:
                return
            try:
                parse = _parser(trace, first[1])
            except _BadRowError as error:
                raise TraceError(path, [Fault(first[0], str(error))]) from None
            begin: Iterable[tuple[int, str]] = () if parse.skips_first else (first,)
            for line, text in itertools.chain(begin, numbered):
                try:
                    yield parse.row(line, text)
                except _BadRowError as error:
                    faults.append(Fault(line, str(error)))
                    if len(faults) >= MAX_FAULTS:
                        raise TraceError(path, faults) from None
    except UnicodeDecodeError as error:
        message = "is not UTF-8 text; if it is compressed, decompress it first"
        raise TraceError(path, [*faults, Fault(0, message)]) from error
    except OSError as error:
        raise TraceError(path, [Fault(0, f"cannot be read: {error.strerror}")]) from error
    except ValueError as error:
        raise TraceError(path, [Fault(0, f"cannot be read: {error}")]) from error


def _lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield numbered lines that are not blank; a longer line than MAX_LINE comes cut, and fails to parse."""
    number = 0
    while text := file.readline(MAX_LINE + 1):
        number += 1
        whole = text
        while text and not text.endswith("\n"):
            text = file.readline(MAX_LINE + 1)
        if whole.strip():
            yield number, whole.rstrip("\r\n")


@dataclass(frozen=True, slots=True)
class _Parser:
    row: Callable[[int, str], Row]
    skips_first: bool


def _parser(trace: Trace, first: str) -> _Parser:
    kind = trace.format
    if kind == "auto":
        kind = "mooncake" if first.lstrip("\ufeff").startswith("{") else "azure"
    if kind == "mooncake":
        return _Parser(lambda line, text: _mooncake(line, text, trace.block_tokens), skips_first=False)
    header = [name.strip() for name in _cells(first.lstrip("\ufeff"))]
    if any(column not in header for column in _COLUMNS):
        message = f"is neither an Azure trace (columns {', '.join(_COLUMNS)}) nor JSON lines"
        raise _BadRowError(message)
    at = [header.index(column) for column in _COLUMNS]
    return _Parser(lambda line, text: _azure(line, text, at), skips_first=True)


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(text), strict=True), [])
    except csv.Error as error:
        raise _BadRowError(f"is not CSV: {error}") from error


def _azure(line: int, text: str, at: list[int]) -> Row:
    cells = _cells(text)
    if len(cells) <= max(at):
        raise _BadRowError(f"has {len(cells)} columns, needs {max(at) + 1}")
    when, prompt, output = (cells[place].strip() for place in at)
    try:
        moment = datetime.fromisoformat(_microseconds(when))
    except ValueError:
        raise _BadRowError(f"TIMESTAMP {when[:40]!r} is no date and time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Row(
        moment.timestamp(),
        line,
        _tokens("ContextTokens", _whole(prompt), 1),
        max(1, _tokens("GeneratedTokens", _whole(output), 0)),
        (),
    )


def _microseconds(when: str) -> str:
    """Return a time without the digits that datetime has no room for: the 2023 traces have seven."""
    head, dot, rest = when.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return f"{head}.{rest[:6]}{rest[digits:]}" if dot and digits > 6 else when


def _whole(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _mooncake(line: int, text: str, block_tokens: int) -> Row:
    if len(text) > MAX_LINE:
        raise _BadRowError(f"is longer than {MAX_LINE} characters")
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        other = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise _BadRowError(f"is not JSON: {getattr(error, 'msg', other)}") from None
    if not isinstance(found, dict):
        raise _BadRowError("is no JSON object")
    at_ms = found.get("timestamp")
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not 0 <= at_ms < 1e15:
        raise _BadRowError("timestamp must be a number of milliseconds, at least 0")
    prompt = _tokens("input_length", found.get("input_length"), 1)
    output = _tokens("output_length", found.get("output_length"), 0)
    ids = found.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
        raise _BadRowError("hash_ids must be a list of whole numbers")
    if ids and not prompt // block_tokens <= len(ids) <= -(-prompt // block_tokens):
        blocks = -(-prompt // block_tokens)
        message = f"{len(ids)} hash_ids do not fit {prompt} tokens in blocks of {block_tokens} ({blocks})"
        raise _BadRowError(f"{message}; block_tokens of the trace sets another size")
    return Row(at_ms / 1000, line, prompt, max(1, output), tuple(ids))


def _tokens(name: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        shown = "is missing" if value is None else f"is {str(value)[:40]!r}"
        raise _BadRowError(f"{name} {shown}, must be a whole number from {least} to {MAX_TOKENS}")
    return value


class ReplayedTrace:
    """A trace as a source of requests."""

    def __init__(
        self,
        trace: Trace,
        path: Path,
        labels: Labels,
        ids: SegmentIds,
        *,
        seed: int,
        end_s: float,
        scale: float,
    ) -> None:
        self._trace = trace
        self._path = path
        self._labels = labels
        self._ids = ids
        self._seed = seed
        self._end_s = end_s
        self._speed = trace.speed * scale

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Yield the trace's requests; the first arrives at 0. The seed draws tenants and adapters only."""
        labels, rngs = self._labels, seeded(self._seed, self._labels.stream).spawn(2)
        tenants = names(self._trace.tenants, "tenant", generator(rngs[0]), BLOCK)
        loras = adapters(self._trace.adapters, generator(rngs[1]), BLOCK)
        first = None
        for number, row in enumerate(rows(self._trace, self._path)):
            first = row.at_s if first is None else first
            at = (row.at_s - first) / self._speed
            if at >= self._end_s:
                return
            yield SimulatedRequest(
                request_id=f"{labels.stream}/{number}",
                arrival_s=at,
                prompt=self._prompt(row, number),
                output_tokens=row.output_tokens,
                output_segment=self._ids.answer(number, 0),
                model=labels.model,
                adapter=next(loras),
                tenant=next(tenants),
                objective=labels.objective,
                priority=labels.priority,
                slo_ttft_ms=labels.slo.ttft_ms,
                slo_tpot_ms=labels.slo.tpot_ms,
                stream=labels.stream,
            )

    def _prompt(self, row: Row, number: int) -> tuple[Segment, ...]:
        size, left, segments = self._trace.block_tokens, row.prompt_tokens, []
        for each in row.hash_ids:
            segments.append(Segment(self._ids.of_hash(each), min(size, left)))
            left -= segments[-1].tokens
        if left:
            segments.append(Segment(self._ids.message(number, 0), left))
        return tuple(segments)

    def finished(self, request: SimulatedRequest, now: float, *, served: bool) -> tuple[()]:
        """Return nothing: a trace's requests come at their times, whatever the pool does."""
        return ()
