"""header-label-affinity-scorer: prefers the servers whose label has the value of a request header."""

from typing import ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import PluginParams, Scorer


class HeaderLabelAffinityParams(PluginParams):
    """Parameters of header-label-affinity-scorer."""

    header_name: str = Field(min_length=1)
    """Request header, in any case."""
    label_key: str = Field(min_length=1)
    """Pod label that is compared with it."""


class HeaderLabelAffinityScorer(Scorer):
    """1 where the label's value equals the header's, else 0; all 0 without the header."""

    __slots__ = ("_header", "_label")
    type_name = "header-label-affinity-scorer"
    params_type = HeaderLabelAffinityParams
    bounded: ClassVar[bool] = True

    def __init__(self, params: HeaderLabelAffinityParams) -> None:
        self._header = params.header_name.lower()
        self._label = params.label_key

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return 1 for the rows that match the header."""
        rows = candidates.rows
        wanted = request.headers.get(self._header)
        if not wanted:
            return np.zeros(rows.size)
        endpoints, label = table.endpoints, self._label
        return np.array(
            [
                1.0 if (each := endpoints[row]) is not None and each.labels.get(label) == wanted else 0.0
                for row in rows.tolist()
            ]
        )
