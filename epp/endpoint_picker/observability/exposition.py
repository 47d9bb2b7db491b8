"""The text of /metrics in pieces, so that requests are served between them. Pure.

prometheus_client formats a whole registry in one go: with 40 adapters as model names that takes a tenth of a
second, in which the event loop would do nothing else.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from typing_extensions import override

#: Samples of one piece, which takes about a millisecond.
SAMPLES: Final = 128


def pieces(registry: CollectorRegistry) -> Iterator[bytes]:
    """Return the pieces of what `generate_latest(registry)` returns.

    A family is collected when its first piece is asked for. The registry may change between two pieces.
    """
    for family in registry.collect():
        for start in range(0, len(family.samples) or 1, SAMPLES):
            part = Metric(family.name, family.documentation, family.type, family.unit)
            part.samples = family.samples[start : start + SAMPLES]
            text = generate_latest(_One(part))
            yield text if not start else _without_header(text)


class _One(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    @override
    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _without_header(text: bytes) -> bytes:
    """Return the text without the lines of help and type, which a family has once."""
    _help, _type, samples = text.split(b"\n", 2)
    return samples
