"""How many requests were served in which stages, by model. Pure."""

from collections.abc import Iterator
from typing import Final

#: Models with counts of their own; all others count as OTHER.
MAX_MODELS: Final = 1_000
OTHER: Final = "other"


class StageCounts:
    """Counts that outlive a configuration.

    A model gets counts of its own once a server answered a request for it without an error: clients may name
    any model.
    """

    __slots__ = ("_counts", "_models", "dropped")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._models: set[str] = set()
        self.dropped: dict[tuple[str, str], int] = {}
        """(type of the handler, stage) -> stages that were wanted and had no endpoint."""

    def count(self, handler: str, model: str, decision_type: str, *, proven: bool) -> None:
        """Add a decision of a handler's; `proven`: a server answered it without an error."""
        if proven and len(self._models) < MAX_MODELS:
            self._models.add(model)
        key = (handler, model if model in self._models else OTHER, decision_type)
        self._counts[key] = self._counts.get(key, 0) + 1

    def drop(self, handler: str, stage: str) -> None:
        """Add a stage that was wanted and had no endpoint."""
        key = (handler, stage)
        self.dropped[key] = self.dropped.get(key, 0) + 1

    def items(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """Return (type of the handler, model, decision type) and the count of each."""
        return iter(list(self._counts.items()))
