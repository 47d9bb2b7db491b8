"""by-label: keeps endpoints whose pods have one of some values in a label. Deprecated."""

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.per_endpoint import PerEndpoint
from endpoint_picker.scheduling.plugin import Filter, PluginParams


class ByLabelParams(PluginParams):
    """Parameters of by-label."""

    label: str = Field(min_length=1)
    """Label of the pods."""
    valid_values: tuple[str, ...] = ()
    """Values that stay."""
    allows_no_label: bool = False
    """True keeps pods without the label."""

    @model_validator(mode="after")
    def _keeps_something(self) -> "ByLabelParams":
        if not self.valid_values and not self.allows_no_label:
            raise ValueError("it would keep no endpoint: give validValues, or allowsNoLabel: true")
        return self


class ByLabelFilter(Filter):
    """Keeps pods whose label has one of validValues. Deprecated: write label-selector-filter."""

    __slots__ = ("_stays",)
    type_name = "by-label"
    params_type = ByLabelParams

    def __init__(self, params: ByLabelParams) -> None:
        values = frozenset(params.valid_values)
        self._stays = PerEndpoint(
            lambda endpoint: (
                endpoint.labels[params.label] in values
                if params.label in endpoint.labels
                else params.allows_no_label
            )
        )

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows whose label fits."""
        rows = candidates.rows
        kept: Rows = rows[self._stays.column(table)[rows] == 1.0]
        return kept
