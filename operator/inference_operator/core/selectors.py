"""Label selectors of the operator's watches and lists. Pure."""

from typing import Final

from inference_api import names
from inference_operator.core.kinds import CHILD_KINDS, Kind

MANAGED_SELECTOR: Final = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY_VALUE}"


def watch_selector(kind: Kind) -> str:
    """Return the selector by which objects of the kind are watched; empty means all."""
    return MANAGED_SELECTOR if kind in CHILD_KINDS else ""
