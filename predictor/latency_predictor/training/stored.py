"""Kept samples as batches of the wire, for the journal and for a newer trainer. Pure."""

import numpy as np

from latency_contract.sample_wire import NO_VERSION, SampleBatch, encode_batch
from latency_contract.states import Ended, Policy
from latency_predictor.learning.strata import Samples

#: Rows of a stored batch.
_ROWS = 4096


def batches_of(kept: list[Samples]) -> list[bytes]:
    """Return the samples as encoded batches, oldest first within each part."""
    return [
        encode_batch(_batch(samples, slice(begin, begin + _ROWS)))
        for samples in kept
        for begin in range(0, len(samples), _ROWS)
    ]


def _batch(samples: Samples, part: slice) -> SampleBatch:
    count = len(samples.time_s[part])
    targets = samples.actual.shape[1]
    return SampleBatch(
        versions=(),
        time_s=samples.time_s[part],
        policy=np.full(count, Policy.HEURISTIC, np.uint8),
        ended=np.full(count, Ended.SERVED, np.uint8),
        version=np.full(count, NO_VERSION, np.uint8),
        actual=samples.actual[part],
        predicted=np.full((count, targets, 2), np.nan, np.float32),
        matrix=samples.matrix[part],
    )
