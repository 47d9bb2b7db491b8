"""header-based-testing-filter: keeps the endpoints that a test header names. For conformance tests."""

from typing import Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter

HEADER: Final = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Filter):
    """Header value: comma list of "ip" (every port of it) or "ip:port".

    All endpoints stay when the header is absent or names none of them, as the conformance suite's own picker
    then goes round robin.
    """

    __slots__ = ()
    type_name = "header-based-testing-filter"

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows that the header names."""
        rows = candidates.rows
        named = request.headers.get(HEADER)
        if not named:
            return rows
        wanted = table.rows_of([entry.strip() for entry in named.split(",")])
        kept = rows[np.isin(rows, wanted)]
        return kept if kept.size else rows
