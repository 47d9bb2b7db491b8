"""Which model a request is served by: the compiled rules of InferenceModelRewrite objects. Pure."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from inference_api.priority_table import RewriteEntry

#: Longest name of a model that a rule may write, in characters.
MAX_TARGET: Final = 1024


class Choice(NamedTuple):
    """What a rule says about one request."""

    target: str
    """Model to serve it with."""
    source: str
    """Name of the InferenceModelRewrite."""
    matched: str
    """Model that the rule names; "*" for a rule for every model."""


class Rewrites:
    """Rules by model name. An exact rule wins over one for every model; among equals the first counts."""

    __slots__ = ("_exact", "_generic", "_random")

    def __init__(self, entries: Iterable[RewriteEntry], random: Callable[[], float]) -> None:
        """`entries` are in order of precedence; `random` returns floats in [0, 1)."""
        self._random = random
        self._exact: dict[str, _Split] = {}
        self._generic: _Split | None = None
        for entry in entries:
            split = _Split(entry)
            for model in entry.models:
                self._exact.setdefault(model, split)
            if not entry.models and self._generic is None:
                self._generic = split

    def choose(self, model: str) -> Choice | None:
        """Return what to serve a request for `model` with; None when no rule matches."""
        split = self._exact.get(model, self._generic)
        if split is None:
            return None
        name = split.names[0]
        if len(split.names) > 1:
            name = split.names[bisect_right(split.edges, self._random() * split.total)]
        return Choice(name, split.source, "*" if split is self._generic else model)


class _Split:
    """The targets of a rule with the upper edges of their shares of [0, total)."""

    __slots__ = ("edges", "names", "source", "total")

    def __init__(self, entry: RewriteEntry) -> None:
        self.source = entry.source
        self.names = [target.model for target in entry.targets]
        self.edges = list(accumulate(target.weight for target in entry.targets))
        self.total = self.edges[-1]
        self.edges.pop()  # rounding must not lead behind the last name
