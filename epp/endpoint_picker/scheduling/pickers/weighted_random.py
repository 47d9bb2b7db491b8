"""weighted-random-picker: a candidate with a chance in proportion to its score."""

from typing import Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.pickers.params import PickerParams, highest
from endpoint_picker.scheduling.plugin import Picker, RandomSource

#: Scores up to this count as 0: no endpoint should win once in a billion picks, and divisions stay finite.
NEGLIGIBLE: Final = 1e-9


class WeightedRandomPicker(Picker):
    """Sampling without replacement by A-Res: key U^(1/score), a score of 0 last; uniform when all are 0."""

    __slots__ = ("_count",)
    type_name = "weighted-random-picker"
    params_type = PickerParams

    def __init__(self, params: PickerParams) -> None:
        self._count = params.count

    @override
    def pick(self, candidates: Candidates, scores: Floats, rng: RandomSource) -> Rows:
        """Return positions in sampled order."""
        draw = rng.random(scores.size)
        positive = scores > NEGLIGIBLE
        if not positive.any():
            return highest(draw, self._count)
        # log(U)/score orders as U^(1/score) does and cannot underflow; U is in (0, 1] here.
        keys = np.full(scores.size, -np.inf)
        keys[positive] = np.log1p(-draw[positive]) / scores[positive]
        return highest(keys, self._count)
