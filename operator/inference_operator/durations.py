"""Durations as Go and Kubernetes write them: 500ms, 1m30s, 2h. Pure."""

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Return the duration in seconds; a bare number is seconds. Raises ValueError for anything else."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 60s or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
