"""Faults of a simulated pool: values that say what breaks when. Times are virtual seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDies:
    """A server's process ends, and begins again without its cache."""

    at_s: float
    server: int
    noticed_after_s: float = 1.0
    """Until discovery takes it out of the pool."""
    back_after_s: float = 30.0
    """Until it accepts connections and is in the pool again, counted from its death."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSlows:
    """A server's iterations take `slowness` times as long for a time."""

    at_s: float
    server: int
    slowness: float = 2.0
    for_s: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFreeze:
    """A server's metrics page keeps its values while the server goes on, or no longer comes."""

    at_s: float
    server: int
    for_s: float = 1e9
    answers: bool = True
    """False: scrapes fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerRestarts:
    """The picker dies, with the requests that it holds, and decides again later, knowing nothing."""

    at_s: float
    down_s: float = 2.0


Fault = ServerDies | ServerSlows | MetricsFreeze | PickerRestarts
