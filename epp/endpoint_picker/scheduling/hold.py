"""The value that a plugin returns to make a decision wait."""

from collections.abc import Callable, Sequence
from typing import Any

from endpoint_picker.decision import Refusal


class Hold:
    """One decision that its owner, a `MayWait` plugin, put off.

    It ends in exactly one way: the owner's `advance` returns it, or its `forget` is called.
    """

    __slots__ = ("deadline", "forget", "note", "prefix_chain", "refusal")

    def __init__(
        self, *, deadline: float, refusal: Refusal | None, forget: Callable[["Hold"], None], note: Any = None
    ) -> None:
        self.deadline = deadline
        """Seconds of the pool's clock at which the wait ends with `refusal`."""
        self.refusal = refusal
        """The answer when the deadline passes or no more decisions may wait.

        None: the decision is then made anew, with this hold in `Candidates.held`; its owner must not hold it
        again.
        """
        self.forget = forget
        """Called with the hold when the wait ends without the owner's release; the owner drops the hold."""
        self.note = note
        """Any value of the owner's, which reads it from `Candidates.held` when the decision is made anew."""
        self.prefix_chain: Sequence[int] = ()
        """Hashes of the prompt's blocks, if they were made, for the decision that is made anew."""
