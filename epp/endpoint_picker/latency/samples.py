"""What the trainer learns from: one row for each picked request that ended. Pure."""

import struct
from collections import deque
from typing import Final

import numpy as np

from latency_contract.matrix import derive
from latency_contract.sample_wire import MAX_VERSIONS, NO_VERSION, SampleBatch
from latency_contract.schema import TARGETS, WIDTH
from latency_contract.states import Ended, Policy

#: Samples that wait to be sent; further ones are dropped and counted.
MAX_SAMPLES: Final = 16_384
#: Most samples of a batch: 250 bytes each.
MAX_BATCH: Final = 8_192

_T: Final = len(TARGETS)
_SAMPLE: Final = np.dtype(
    [
        ("time_s", "<f8"),
        ("policy", "u1"),
        ("ended", "u1"),
        ("actual", "<f4", (_T,)),
        ("predicted", "<f4", (2, _T)),
        ("row", "<f4", (WIDTH,)),
    ]
)
_HEAD: Final = struct.Struct(f"<dBB{3 * _T}f")

Values = tuple[float, ...]
"""One for each target, seconds; NaN is not known."""


class Samples:
    """A bounded queue."""

    __slots__ = ("_waiting", "added", "dropped", "lost", "sent")

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, bytes]] = deque()
        """(bundle, packed sample)."""
        self.added = 0
        self.dropped = 0
        """For want of room."""
        self.sent = 0
        self.lost = 0
        """Taken, and not taken by the trainer."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self,
        time_s: float,
        policy: Policy,
        ended: Ended,
        version: str,
        actual: Values,
        predicted: tuple[Values, Values],
        row: bytes,
    ) -> None:
        """Queue the sample of a request that ended, or count it as dropped.

        `predicted` are the medians and the upper bounds of the bundle `version`, `row` the features as
        float32[WIDTH]; the derived ones are written when the sample is taken.
        """
        if len(self._waiting) >= MAX_SAMPLES:
            self.dropped += 1
            return
        self.added += 1
        medians, bounds = predicted
        self._waiting.append((version, _HEAD.pack(time_s, policy, ended, *actual, *medians, *bounds) + row))

    def take(self) -> SampleBatch | None:
        """Return the oldest samples as one batch; None when there are none."""
        versions: dict[str, int] = {"": NO_VERSION}
        indices: list[int] = []
        taken: list[bytes] = []
        waiting = self._waiting
        while waiting and len(taken) < MAX_BATCH:
            version, packed = waiting[0]
            index = versions.get(version)
            if index is None:
                index = len(versions) - 1
                if index >= MAX_VERSIONS:
                    break
                versions[version] = index
            indices.append(index)
            taken.append(packed)
            waiting.popleft()
        if not taken:
            return None
        found = np.frombuffer(b"".join(taken), _SAMPLE)
        return SampleBatch(
            versions=tuple(versions)[1:],
            time_s=found["time_s"].copy(),
            policy=found["policy"].copy(),
            ended=found["ended"].copy(),
            version=np.array(indices, dtype=np.uint8),
            actual=found["actual"].copy(),
            predicted=found["predicted"].transpose(0, 2, 1).copy(),
            matrix=derive(found["row"].copy()),
        )
