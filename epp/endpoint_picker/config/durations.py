"""Durations as Kubernetes and Go write them: "200ms", "1m30s", "0". Pure."""

import re
from typing import Final

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_WHOLE: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_LONGEST: Final = 64


def seconds(value: object) -> object:
    """Return a duration's seconds; anything but a string is returned as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    if value == "0":
        return 0.0
    if len(value) > _LONGEST or not _WHOLE.fullmatch(value):
        msg = 'not a duration; write it like "200ms" or "1m30s"'
        raise ValueError(msg)
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
