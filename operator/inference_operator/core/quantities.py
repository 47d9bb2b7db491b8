"""Kubernetes resource quantities: 1, 0.5, 500m, 1Gi, 1e3. Pure."""

import re
from decimal import Decimal
from typing import Any, Final

_SHAPE: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([KMGTPE]i|[numkMGTPE]?|[eE][+-]?\d+)")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def parse_quantity(text: str | float) -> Decimal:
    """Return the exact value. Raises ValueError when it is no quantity."""
    match = _SHAPE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is no quantity such as 500m or 1Gi")
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _BINARY:
        return number * Decimal(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:]))


def same_quantity(one: Any, other: Any) -> bool:
    """Return whether both spell the same amount; values that are no quantities are compared by ==."""
    try:
        return parse_quantity(one) == parse_quantity(other)
    except ValueError:
        return bool(one == other)
