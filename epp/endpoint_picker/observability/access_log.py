"""The access log: one JSON line for each request, without a text of its prompt or answer."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from endpoint_picker.record import Observer, Record

#: Longest request id, model and objective in a line, in characters: clients choose them.
NAME_LIMIT: Final = 256


class AccessLog:
    """An observer that writes a line at the end of each exchange, around another observer."""

    __slots__ = ("_observer", "_wall_clock", "_write", "decided", "gap_counter", "started")

    def __init__(
        self, observer: Observer, write: Callable[[str], object], wall_clock: Callable[[], float]
    ) -> None:
        """`write` takes a line with its line end; it must not raise. `wall_clock` is in epoch seconds."""
        self._observer = observer
        self._write = write
        self._wall_clock = wall_clock
        self.started = observer.started
        self.decided = observer.decided
        self.gap_counter = observer.gap_counter

    def ended(self, record: Record) -> None:
        """Count the exchange, and write its line."""
        self._observer.ended(record)
        self._write(json.dumps(entry(record, self._wall_clock()), separators=(",", ":")) + "\n")


def write_line(line: str) -> None:
    """Write a line to standard output. A reader that is gone loses the lines, not the requests."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError:
        pass


def entry(record: Record, wall_clock: float) -> dict[str, Any]:
    """Return the line of one exchange; times are seconds since its headers, null did not occur."""
    usage, began = record.usage, record.started_at
    outcome, ending = record.outcome, record.ending
    return {
        "time": datetime.fromtimestamp(wall_clock, UTC).isoformat(timespec="milliseconds"),
        "requestId": record.request_id[:NAME_LIMIT],
        "model": record.model[:NAME_LIMIT],
        "objective": record.objective[:NAME_LIMIT],
        "priority": record.priority,
        "outcome": None if outcome is None else outcome.value,
        "ending": None if ending is None else ending.value,
        "status": record.status or None,
        "endpoint": record.endpoint,
        "servedBy": record.served_by,
        "streaming": record.streaming,
        "decidedSeconds": round(record.decided_at - began, 6) if outcome is not None else None,
        "ttftSeconds": round(record.first_byte_at - began, 6) if record.response_chunks else None,
        "durationSeconds": round(record.ended_at - began, 6),
        "requestBytes": record.request_bytes,
        "responseBytes": record.response_bytes,
        "inputTokens": None if usage is None else usage.input_tokens,
        "outputTokens": None if usage is None else usage.output_tokens,
        "cachedTokens": None if usage is None else usage.cached_tokens,
    }
