"""The access log: one JSON line for each request, without a text of its prompt or answer.

A thread writes the lines: standard output is a pipe, and a reader that pauses would stop the event loop.
"""

import json
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from endpoint_picker.record import Observer, Record

#: Longest request id, model and objective in a line, in characters: clients choose them.
NAME_LIMIT: Final = 256
#: Lines that wait for a reader at most, some 5 MB as a rule. Further ones are dropped and counted.
MAX_LINES: Final = 10_000
#: Seconds that the end of the process waits for lines to be written.
_CLOSE_S: Final = 1.0


class AccessLog:
    """An observer that writes a line at the end of each exchange, around another observer."""

    __slots__ = ("_observer", "_wall_clock", "_write", "decided", "gap_counter", "rewritten", "started")

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
        self.rewritten = observer.rewritten

    def ended(self, record: Record) -> None:
        """Count the exchange, and write its line."""
        self._observer.ended(record)
        self._write(json.dumps(entry(record, self._wall_clock()), separators=(",", ":")) + "\n")


def _to_stdout(text: str) -> None:
    """Write to standard output. A reader that is gone loses the lines, not the requests."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        pass


class LineWriter:
    """Writes lines in a thread of its own, the first line starts it."""

    __slots__ = ("_closing", "_dropped", "_lines", "_more", "_thread", "_write")

    def __init__(self, write: Callable[[str], object] = _to_stdout) -> None:
        """`write` may block; it must not raise."""
        self._write = write
        self._lines: deque[str] = deque()
        self._more = threading.Event()
        self._dropped = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Take a line with its line end. Drop it while MAX_LINES wait. For one thread, the event loop's."""
        if len(self._lines) >= MAX_LINES:
            self._dropped += 1
            return
        if self._dropped:
            self._lines.append(json.dumps({"droppedLines": self._dropped}) + "\n")
            self._dropped = 0
        self._lines.append(line)
        if self._thread is None:
            # A daemon: the process ends without it while the reader pauses.
            self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
            self._thread.start()
        if not self._more.is_set():
            self._more.set()

    def close(self) -> None:
        """Let the waiting lines be written, for a second at most."""
        self._closing = True
        self._more.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        lines = self._lines
        while True:
            self._more.wait()
            self._more.clear()
            # Before the lines are taken, so that those taken before `close` are written.
            closing = self._closing
            while lines:
                self._write("".join([lines.popleft() for _ in range(min(len(lines), 256))]))
            if closing:
                return


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
        "failedInBody": record.failed_in_body,
        "decidedSeconds": round(record.decided_at - began, 6) if outcome is not None else None,
        "ttftSeconds": round(record.first_token_at - began, 6) if record.first_token_at else None,
        "durationSeconds": round(record.ended_at - began, 6),
        "requestBytes": record.request_bytes,
        "responseBytes": record.response_bytes,
        "inputTokens": None if usage is None else usage.input_tokens,
        "outputTokens": None if usage is None else usage.output_tokens,
        "cachedTokens": None if usage is None else usage.cached_tokens,
    }
