"""random-picker: any candidate, whatever its score."""

from typing_extensions import override

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.pickers.params import PickerParams, highest
from endpoint_picker.scheduling.plugin import Picker, RandomSource


class RandomPicker(Picker):
    """Takes candidates in uniformly random order."""

    __slots__ = ("_count",)
    type_name = "random-picker"
    params_type = PickerParams

    def __init__(self, params: PickerParams) -> None:
        self._count = params.count

    @override
    def pick(self, candidates: Candidates, scores: Floats, rng: RandomSource) -> Rows:
        """Return random positions."""
        return highest(rng.random(scores.size), self._count)
