"""header-based-testing-filter: keeps the endpoints that a test header names. For conformance tests."""

from typing import Final

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import Plugin

HEADER: Final = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Plugin):
    """Header value: comma list of "ip" (every port of it) or "ip:port"; absent keeps all."""

    __slots__ = ()
    type_name = "header-based-testing-filter"

    def filter(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        """Return the rows that the header names."""
        named = request.headers.get(HEADER)
        if not named:
            return rows
        wanted = table.rows_of([entry.strip() for entry in named.split(",")])
        return rows[np.isin(rows, wanted)]
