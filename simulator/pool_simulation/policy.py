"""The seam between a simulated pool and the policy that chooses a server for each request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pool_simulation.clock import VirtualClock
from pool_simulation.server import SimulatedServer
from pool_simulation.workload import SimulatedRequest


class Pick:
    """The servers that one request may go to."""

    __slots__ = ("held", "prefiller", "servers")

    def __init__(self, servers: list[int], held: object = None, prefiller: int | None = None) -> None:
        self.servers = servers
        """Numbers of servers: the first is tried first, the next when it refuses the connection."""
        self.held = held
        """The policy's own note of the request."""
        self.prefiller = prefiller
        """Number of the server that computes the prompt for the one that answers; None: the latter does."""


class Refused:
    """The request is answered with an error at once."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason
        """Label of the picker's outcome, or the policy's own word."""


Resume = Callable[[Pick | Refused], None]
"""Receives the answer of a decision that waited; called at most once."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a policy can reach of the pool it decides for."""

    clock: VirtualClock
    servers: list[SimulatedServer]
    """All servers by number, whether in the pool or not."""
    at: Callable[[float, Callable[[], None]], None]
    """Calls a function at a virtual time, not before the present one."""


class Policy(Protocol):
    """Chooses servers. One object serves one run."""

    def start(self, pool: Surroundings) -> None:
        """Take up the pool, before the first request."""
        ...

    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        """Choose for a request that arrives now; None: `resume` is called with the answer later."""
        ...

    def answering(self, pick: Pick, served_by: int) -> None:
        """Note the first token, and which server gave it."""
        ...

    def ended(self, pick: Pick, request: SimulatedRequest, *, served: bool) -> None:
        """Note that a picked request is over; called once for every pick."""
        ...

    def endpoints_changed(self) -> None:
        """Note that a server entered or left the pool."""
        ...

    def restart(self, down_s: float) -> None:
        """Lose all state, and decide again after `down_s` seconds. Requests in flight have failed already."""
        ...

    def leak(self) -> str:
        """Return what is counted as in flight after the last request has ended; "" when nothing is."""
        ...
