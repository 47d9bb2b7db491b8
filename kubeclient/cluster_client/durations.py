"""Durations as Go and Kubernetes write them: "200ms", "1m30s", "1.5h". Pure.

The grammar is that of Go's time.ParseDuration without a sign. A number without a unit is seconds.
"""

import re
from typing import Final

_NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
#: Seconds in a unit. The micro sign and the Greek letter mu are two characters; Go takes both.
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT: Final = "|".join(_UNITS)
_PART: Final = re.compile(rf"({_NUMBER})({_UNIT})")
_WHOLE: Final = re.compile(rf"(?:{_NUMBER}(?:{_UNIT}))+")
_BARE: Final = re.compile(_NUMBER)
_LONGEST: Final = 64


def parse_duration(text: str) -> float:
    """Return the duration in seconds, at least 0. Raises ValueError, whose text does not repeat the input."""
    if len(text) <= _LONGEST:
        if _BARE.fullmatch(text):
            return float(text)
        if _WHOLE.fullmatch(text):
            return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    raise ValueError('not a duration; write it like "200ms" or "1m30s"')


def seconds(value: object) -> object:
    """Return a text's duration in seconds, any other value unchanged, for a validator. Raises ValueError."""
    return parse_duration(value) if isinstance(value, str) else value
