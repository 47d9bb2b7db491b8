"""Why a decision waits: what a plugin returns to put it off. Plain values."""

from collections.abc import Callable
from typing import Any

from endpoint_picker.decision import Refusal


class Hold:
    """One decision that its owner, a `MayWait` plugin, put off.

    It ends in exactly one way: the owner's `advance` returns it, or its `forget` is called.
    """

    __slots__ = ("deadline", "forget", "note", "refusal")

    def __init__(
        self, *, deadline: float, refusal: Refusal, forget: Callable[["Hold"], None], note: Any = None
    ) -> None:
        self.deadline = deadline
        """When the wait ends at the latest, seconds of the pool's clock; the client gets `refusal` then."""
        self.refusal = refusal
        """The answer when the deadline passes or no more decisions may wait."""
        self.forget = forget
        """The owner's: drops the hold, whose wait ended otherwise than by its release."""
        self.note = note
        """The owner's own; it finds it in `Candidates.held` when the decision is made anew."""
