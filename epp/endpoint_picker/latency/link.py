"""The seam between prediction and what carries its calls: a process and a simulation differ here."""

from collections.abc import Callable
from typing import Protocol

Answered = Callable[[bytes | None], None]
"""Receives the answer's bytes; None: the call failed or took too long. Called once."""


class Link(Protocol):
    """Carries calls to the prediction servers."""

    @property
    def servers(self) -> int:
        """Return how many there are."""
        ...

    @property
    def answers_at_once(self) -> bool:
        """Return whether `send` calls `answered`; then requests do not gather."""
        ...

    def send(self, server: int, message: bytes, timeout_s: float, answered: Answered) -> None:
        """Send a request of `latency_contract.prediction_wire`."""
        ...
