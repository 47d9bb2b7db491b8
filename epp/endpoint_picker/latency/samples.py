"""What the trainer learns from: one row for each picked request that ended. Pure."""

from collections import deque
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latency_contract.matrix import derive
from latency_contract.sample_wire import MAX_VERSIONS, NO_VERSION, SampleBatch
from latency_contract.schema import TARGETS, WIDTH
from latency_contract.states import Ended, Policy

#: Samples that wait to be sent; further ones are dropped and counted.
MAX_SAMPLES: Final = 16_384
#: Most samples of a batch: 250 bytes each.
MAX_BATCH: Final = 8_192

_T: Final = len(TARGETS)

Values = tuple[float, ...]
"""One for each target, seconds; NaN is not known."""


class Sample(NamedTuple):
    """A request that ended."""

    time_s: float
    policy: Policy
    ended: Ended
    version: str
    actual: Values
    predicted: tuple[Values, Values]
    """Medians and upper bounds."""
    row: NDArray[np.float32]
    """float32[WIDTH]; the derived columns are written when it is taken."""


class Samples:
    """A bounded queue."""

    __slots__ = ("_waiting", "added", "dropped", "lost", "sent")

    def __init__(self) -> None:
        self._waiting: deque[Sample] = deque()
        self.added = 0
        self.dropped = 0
        """For want of room."""
        self.sent = 0
        self.lost = 0
        """Taken, and not taken by the trainer."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sample: Sample) -> None:
        """Queue a sample, or count it as dropped."""
        if len(self._waiting) >= MAX_SAMPLES:
            self.dropped += 1
            return
        self.added += 1
        self._waiting.append(sample)

    def take(self) -> SampleBatch | None:
        """Return the oldest samples as one batch; None when there are none."""
        versions: dict[str, int] = {}
        taken: list[Sample] = []
        waiting = self._waiting
        while waiting and len(taken) < MAX_BATCH:
            version = waiting[0].version
            if version and version not in versions:
                if len(versions) >= MAX_VERSIONS:
                    break
                versions[version] = len(versions)
            taken.append(waiting.popleft())
        if not taken:
            return None
        matrix = np.array([each.row for each in taken], dtype=np.float32).reshape(-1, WIDTH)
        predicted = np.array([each.predicted for each in taken], dtype=np.float32)
        return SampleBatch(
            versions=tuple(versions),
            time_s=np.array([each.time_s for each in taken]),
            policy=np.array([each.policy for each in taken], dtype=np.uint8),
            ended=np.array([each.ended for each in taken], dtype=np.uint8),
            version=np.array([versions.get(each.version, NO_VERSION) for each in taken], dtype=np.uint8),
            actual=np.array([each.actual for each in taken], dtype=np.float32).reshape(-1, _T),
            predicted=np.ascontiguousarray(predicted.reshape(-1, 2, _T).transpose(0, 2, 1)),
            matrix=derive(matrix),
        )
