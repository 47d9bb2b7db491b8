"""label-selector-filter: keeps endpoints whose pod labels match a Kubernetes label selector."""

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.per_endpoint import PerEndpoint
from endpoint_picker.scheduling.plugin import Filter
from endpoint_picker.scheduling.selector import LabelSelectorParams


class LabelSelectorFilter(Filter):
    """Keeps matching endpoints; which match is worked out once a version of the table."""

    __slots__ = ("_matches",)
    type_name = "label-selector-filter"
    params_type = LabelSelectorParams

    def __init__(self, params: LabelSelectorParams) -> None:
        self._matches = PerEndpoint(lambda endpoint: params.matches(endpoint.labels))

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows whose labels match."""
        rows = candidates.rows
        kept: Rows = rows[self._matches.column(table)[rows] == 1.0]
        return kept
