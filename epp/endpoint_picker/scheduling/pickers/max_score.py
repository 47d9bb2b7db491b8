"""max-score-picker: the highest score, ties at random."""

from typing import Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.pickers.params import PickerParams, highest
from endpoint_picker.scheduling.plugin import Picker, RandomSource

#: Scores closer than this are a tie: rounding alone makes equal sums of floats differ by less.
TIE: Final = 1e-9
#: The same for numpy, which takes twice as long with a Python float.
_TIE: Final = np.array(TIE)


class MaxScorePicker(Picker):
    """Takes the highest scores in order; equal ones in random order."""

    __slots__ = ("_count",)
    type_name = "max-score-picker"
    params_type = PickerParams

    def __init__(self, params: PickerParams) -> None:
        self._count = params.count

    @override
    def pick(self, candidates: Candidates, scores: Floats, rng: RandomSource) -> Rows:
        """Return positions by falling score."""
        keys = rng.random(scores.size)
        keys *= _TIE
        keys += scores
        return highest(keys, self._count)
