"""A bounded memory of samples by stratum, so that rare situations stay when common ones come by the thousand.

Strata are queue x KV usage x prefix hit x prompt length. Each keeps its newest samples up to a capacity, the
whole up to another: beyond it the oldest sample of the fullest stratum makes room. Columns are numpy arrays.
Pure.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.matrix import Matrix
from latency_contract.sample_wire import SampleBatch
from latency_contract.schema import COLUMN, TARGETS, WIDTH

_QUEUE: Final = np.array([1.0, 3.0, 6.0, 11.0])
_KV: Final = np.array([0.25, 0.5, 0.75, 0.9])
_PREFIX: Final = np.array([0.25, 0.5, 0.75])
_LENGTH: Final = np.array([256.0, 1024.0, 4096.0])
#: Number of strata.
STRATA: Final = 5 * 5 * 4 * 4


def strata_of(matrix: Matrix) -> NDArray[np.intp]:
    """Return the stratum of each row, in [0, STRATA). Unknown values count as 0."""
    queue = np.digitize(np.nan_to_num(matrix[:, COLUMN["ahead_requests"]]), _QUEUE)
    usage = np.digitize(np.nan_to_num(matrix[:, COLUMN["kv_usage"]]), _KV)
    prefix = np.digitize(np.nan_to_num(matrix[:, COLUMN["prefix_hit"]]), _PREFIX)
    length = np.digitize(matrix[:, COLUMN["input_tokens"]], _LENGTH)
    result: NDArray[np.intp] = ((queue * 5 + usage) * 4 + prefix) * 4 + length
    return result


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in order of time."""

    time_s: NDArray[np.float64]
    actual: NDArray[np.float32]
    """float32[n, targets] seconds; NaN: not observed."""
    matrix: Matrix
    weight: NDArray[np.float64]
    """Mean 1: how many samples of the traffic each stands for, after its stratum's others were dropped."""

    def __len__(self) -> int:
        return len(self.time_s)

    def where(self, mask: NDArray[np.bool_]) -> "Samples":
        """Return the samples of a mask."""
        return Samples(self.time_s[mask], self.actual[mask], self.matrix[mask], self.weight[mask])


class StratifiedSamples:
    """Takes samples in the order in which they come."""

    def __init__(self, *, each: int, total: int, max_age_s: float) -> None:
        """Keep at most `each` samples of a stratum and `total` of all, none older than `max_age_s`."""
        self._each = each
        self._total = total
        self._max_age_s = max_age_s
        self._slots: list[deque[int]] = [deque() for _ in range(STRATA)]
        self._came = np.zeros(STRATA)
        """Samples that came by stratum, halved whenever the kept ones came twice over."""
        self._free: list[int] = []
        self._used = 0
        size = min(total, 1024)
        self._time_s = np.zeros(size)
        self._actual = np.zeros((size, len(TARGETS)), np.float32)
        self._matrix: Matrix = np.zeros((size, WIDTH), np.float32)

    def __len__(self) -> int:
        return self._used - len(self._free)

    def add(self, batch: SampleBatch) -> None:
        """Take the rows of a batch that `intake.sift` left."""
        for row, stratum in enumerate(strata_of(batch.matrix).tolist()):
            slot = self._slot(stratum)
            self._time_s[slot] = batch.time_s[row]
            self._actual[slot] = batch.actual[row]
            self._matrix[slot] = batch.matrix[row]
            self._came[stratum] += 1

    def forget_before(self, time_s: float) -> None:
        """Drop the samples of requests that were picked earlier."""
        for slots in self._slots:
            kept = [slot for slot in slots if self._time_s[slot] >= time_s]
            if len(kept) != len(slots):
                self._free += [slot for slot in slots if self._time_s[slot] < time_s]
                slots.clear()
                slots.extend(kept)

    def clear(self) -> int:
        """Drop everything; return how many samples there were."""
        count = len(self)
        self.forget_before(np.inf)
        self._came[:] = 0
        return count

    def samples(self, now: float) -> Samples:
        """Return what is kept, without what is too old by `now`."""
        self.forget_before(now - self._max_age_s)
        if self._came.sum() > 2 * self._total:
            self._came /= 2
        slots = np.array([slot for each in self._slots for slot in each], dtype=np.intp)
        kept = np.array([len(each) for each in self._slots])
        share = np.repeat(np.maximum(self._came, kept) / np.maximum(kept, 1), kept)
        # A stratum that was dropped from a lot stands for much traffic, but no sample for more than 10.
        weight = np.clip(share, 1.0, 10.0)
        order = np.argsort(self._time_s[slots], kind="stable")
        slots, weight = slots[order], weight[order]
        if len(weight):
            weight /= weight.mean()
        return Samples(self._time_s[slots], self._actual[slots], self._matrix[slots], weight)

    def counts(self) -> list[int]:
        """Return how many samples each stratum keeps."""
        return [len(each) for each in self._slots]

    def _slot(self, stratum: int) -> int:
        slots = self._slots[stratum]
        if len(slots) >= self._each:
            slot = slots.popleft()
        elif self._free:
            slot = self._free.pop()
        elif self._used < self._total:
            slot = self._used
            self._used += 1
            if slot >= len(self._time_s):
                self._grow()
        else:
            slot = max(self._slots, key=len).popleft()
        slots.append(slot)
        return slot

    def _grow(self) -> None:
        size = min(2 * len(self._time_s), self._total)
        self._time_s = np.resize(self._time_s, size)
        self._actual = np.resize(self._actual, (size, len(TARGETS)))
        self._matrix = np.resize(self._matrix, (size, WIDTH))
