"""JSON logs on standard error. Requests are logged at debug only."""

import logging
import sys
from typing import Final

from pythonjsonlogger.json import JsonFormatter

LEVELS: Final = ("debug", "info", "warning", "error")


def set_up_logs(level: str) -> None:
    """Send all logs as one JSON object a line to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
