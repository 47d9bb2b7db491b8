"""mm-embeddings-cache-producer: which candidates have encoded the prompt's images, videos and audio."""

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.media_index import ITEM_BYTES, MAX_CAPACITY, Item, MediaIndex, items_of
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Reservation
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import ENCODER_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Follower, PluginParams, Pool, Producer


class MmEmbeddingsCacheParams(PluginParams):
    """Parameters of mm-embeddings-cache-producer."""

    cache_size_in_mb_per_server: int = Field(default=4096, ge=2, alias="cacheSizeInMBPerServer")
    """Size of a server's cache of embeddings, in MiB; an item is taken to need 2 MiB."""


class MmEmbeddingsCacheProducer(Producer, Follower):
    """Writes the matched part of the prompt's media by row, and notes where a prompt with media went.

    An item weighs as many tokens as it has in the prompt where that is known, else all weigh the same.
    """

    __slots__ = ("_capacity", "_index")
    type_name = "mm-embeddings-cache-producer"
    params_type = MmEmbeddingsCacheParams
    produces = frozenset({ENCODER_MATCH})
    attaches_when_idle = False

    def __init__(self, params: MmEmbeddingsCacheParams) -> None:
        self._capacity = min(params.cache_size_in_mb_per_server * (1 << 20) // ITEM_BYTES, MAX_CAPACITY)
        self._index: MediaIndex

    @override
    def attach(self, pool: Pool) -> None:
        """Bound the pool's index of media."""
        self._index = pool.media
        self._index.capacity = self._capacity

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> None:
        """Write the part of the prompt's media that each row holds; 0 for a prompt without media."""
        matched = candidates.media_matched = np.zeros(len(table.endpoints))
        items = items_of(request)
        if not items:
            return
        weights = _weights(request, items)
        total = float(sum(weights))
        for row in candidates.rows.tolist():
            held = [w for each, w in zip(items, weights, strict=True) if self._index.holds(row, each.digest)]
            matched[row] = sum(held) / total

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note that the reserved endpoint is going to hold the prompt's media."""
        items = items_of(request)
        if not items:
            return
        index = self._index
        for each in items:
            index.queries[each.kind] = index.queries.get(each.kind, 0) + 1
            if index.holds(reservation.row, each.digest):
                index.hits[each.kind] = index.hits.get(each.kind, 0) + 1
        index.record(reservation.row, items)


def _weights(request: InferenceRequest, items: list[Item]) -> list[int]:
    tokens = request.tokens
    if tokens is not None and len(tokens.media) == len(items):
        return [length for _first, length, _name in tokens.media]
    return [1] * len(items)
