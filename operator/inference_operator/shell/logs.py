"""Structured logs: one JSON object a line on stderr, with a rate limit for repeated warnings and errors."""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

from inference_operator.shell import metrics

#: Least severities of libraries whose failures the operator logs itself.
_QUIET: Final = {
    "kopf": logging.CRITICAL,
    "kubernetes": logging.ERROR,
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
}

BURST: Final = 20
"""Lines that one complaint may log at once."""
REFILL_SECONDS: Final = 6.0
"""Seconds until it may log one more: ten a minute."""
#: Most complaints with a count; the one that logged least recently is dropped first.
_MOST_COMPLAINTS: Final = 1024


class RepeatLimit(logging.Filter):
    """Rate limit of warnings and errors, for the case that a thousand pools fail for one reason.

    A complaint is a logger with a message before its arguments are filled in. The first line after some were
    held back has their number (`held_back`); LOG_LINES_HELD_BACK counts all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # By complaint: lines that it may still log, the time of that figure, and lines held back since the
        # last.
        self._left: OrderedDict[tuple[str, str], tuple[float, float, int]] = OrderedDict()

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        key = record.name, str(record.msg)
        left, at, held_back = self._left.pop(key, (float(BURST), now, 0))
        left = min(float(BURST), left + (now - at) / REFILL_SECONDS)
        passes = left >= 1.0
        if passes and held_back:
            record.held_back = held_back
        self._left[key] = (left - 1.0, now, 0) if passes else (left, now, held_back + 1)
        while len(self._left) > _MOST_COMPLAINTS:
            self._left.popitem(last=False)
        if not passes:
            metrics.LOG_LINES_HELD_BACK.inc()
        return passes


def configure_logs(level: str) -> None:
    """Log this severity and above to stderr. `debug` includes the libraries' logs and has no rate limit."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if level != "debug":
        handler.addFilter(RepeatLimit())
        for name, least in _QUIET.items():
            logging.getLogger(name).setLevel(least)
    sys.unraisablehook = _log_unraisable


def _log_unraisable(what: "sys.UnraisableHookArgs") -> None:
    """Log an exception that nothing can catch, as in a destructor, as JSON; Python would print plain text."""
    logging.getLogger(__name__).warning("exception ignored: %s", what.exc_value or what.exc_type)
