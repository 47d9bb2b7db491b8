"""What became of every request of a run: one column a fact. Pure."""

from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pool_simulation.workload import SimulatedRequest

Floats = NDArray[np.float64]


class Fate(Enum):
    """How a request ended."""

    SERVED = 0
    REFUSED = 1
    """By the policy, or by the server because it is too long."""
    FAILED = 2
    """Its server or its picker died, or no server accepted it."""
    UNFINISHED = 3
    """It was under way when the run was cut off."""


#: Server of a request that reached none.
NO_SERVER: Final = -1


class Results:
    """One row for each request, in the order in which they ended."""

    __slots__ = (
        "arrived_s",
        "cached_tokens",
        "ended_s",
        "fates",
        "first_token_s",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "reasons",
        "requests",
        "servers",
    )

    def __init__(self) -> None:
        self.requests: list[SimulatedRequest] = []
        self.fates: list[Fate] = []
        self.servers: list[int] = []
        """Number of the server that had it last, or NO_SERVER."""
        self.arrived_s: list[float] = []
        self.first_token_s: list[float] = []
        """NaN without a first token."""
        self.ended_s: list[float] = []
        self.prompt_tokens: list[int] = []
        self.output_tokens: list[int] = []
        """Tokens that were generated."""
        self.cached_tokens: list[int] = []
        """Prompt tokens that the server's prefix cache saved."""
        self.preemptions: list[int] = []
        self.reasons: dict[str, int] = {}
        """Refusals by reason."""

    def __len__(self) -> int:
        return len(self.requests)

    def add(
        self,
        request: SimulatedRequest,
        fate: Fate,
        ended_s: float,
        *,
        server: int = NO_SERVER,
        first_token_s: float | None = None,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        preemptions: int = 0,
    ) -> None:
        """Note the end of one request."""
        self.requests.append(request)
        self.fates.append(fate)
        self.servers.append(server)
        self.arrived_s.append(request.arrival_s)
        self.first_token_s.append(float("nan") if first_token_s is None else first_token_s)
        self.ended_s.append(ended_s)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        self.cached_tokens.append(cached_tokens)
        self.preemptions.append(preemptions)

    def csv(self) -> str:
        """Return all columns as CSV; equal runs give equal text."""
        lines = [",".join(_CSV_COLUMNS)]
        for at, request in enumerate(self.requests):
            lines.append(
                f"{request.request_id},{self.fates[at].name.lower()},{self.servers[at]},{self.arrived_s[at]!r},"
                f"{self.first_token_s[at]!r},{self.ended_s[at]!r},{self.prompt_tokens[at]},"
                f"{self.cached_tokens[at]},{self.output_tokens[at]},{self.preemptions[at]}"
            )
        return "\n".join(lines) + "\n"


_CSV_COLUMNS: Final = (
    "request",
    "fate",
    "server",
    "arrived_s",
    "first_token_s",
    "ended_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
)
