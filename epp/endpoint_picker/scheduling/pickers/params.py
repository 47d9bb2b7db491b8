"""The parameter that all pickers share, and the selection of the highest keys. Pure."""

from pydantic import Field

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.scheduling.plugin import PluginParams


class PickerParams(PluginParams):
    """Parameters of a picker."""

    max_num_of_endpoints: int = Field(default=3)
    """How many endpoints the destination names: a primary and its fallbacks; below 1 is 1.

    The field's default elsewhere is 1. Three lets the proxy reach another server when the primary has died
    since it was picked, at no cost to a request that succeeds.
    """

    @property
    def count(self) -> int:
        """Return the number of endpoints, at least 1."""
        return max(1, self.max_num_of_endpoints)


def highest(keys: Floats, count: int) -> Rows:
    """Return the positions of the `count` largest keys, largest first; all of them when there are fewer."""
    order: Rows = keys.argsort()
    return order[: -count - 1 : -1]
