"""mm-embeddings-cache-scorer: prefers the server that has encoded most of the prompt's media already."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import ENCODER_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Scorer


class MmEmbeddingsCacheScorer(Scorer):
    """Weight of the matched items over the weight of all; 0 for a prompt without media."""

    __slots__ = ()
    type_name = "mm-embeddings-cache-scorer"
    bounded: ClassVar[bool] = True
    consumes: ClassVar[frozenset[str]] = frozenset({ENCODER_MATCH})

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the believed encoded part of the media on each row."""
        if not candidates.media_matched.size:
            return np.zeros(candidates.rows.size)
        return candidates.media_matched[candidates.rows]
