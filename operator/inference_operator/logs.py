"""Structured logs: one JSON object a line on stderr."""

import logging
import sys
from typing import Final

from pythonjsonlogger.json import JsonFormatter

#: Chatter of libraries, each of which reports failures that we see and tell ourselves.
_QUIET: Final = {
    "kopf": logging.CRITICAL,
    "kubernetes": logging.ERROR,
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
}


def configure_logs(level: str) -> None:
    """Send all logs of this severity and above to stderr; `debug` lets libraries speak too."""
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
        for name, least in _QUIET.items():
            logging.getLogger(name).setLevel(least)
