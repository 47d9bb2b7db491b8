"""random-picker: any candidate, whatever its score."""

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.scheduling.pickers.params import PickerParams, highest
from endpoint_picker.scheduling.plugin import Plugin, RandomSource


class RandomPicker(Plugin):
    """Takes candidates in uniformly random order."""

    __slots__ = ("_count",)
    type_name = "random-picker"
    params_type = PickerParams

    def __init__(self, params: PickerParams) -> None:
        self._count = params.count

    def pick(self, scores: Floats, rng: RandomSource) -> Rows:
        """Return random positions."""
        return highest(rng.random(scores.size), self._count)
