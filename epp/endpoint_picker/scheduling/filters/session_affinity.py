"""session-affinity-filter: keeps the endpoint that the session is bound to."""

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter
from endpoint_picker.scheduling.session import SessionAffinity


class SessionAffinityFilter(SessionAffinity, Filter):
    """Keeps the bound endpoint alone; all where the session has none, or it is no candidate.

    encoded_endpoint_header: the response has a token, base64 of the endpoint's namespace and name, which the
    client returns. session_id: the picker remembers the endpoint of each session; replicas do not share it.
    """

    __slots__ = ()
    type_name = "session-affinity-filter"

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the bound row, or all."""
        rows = candidates.rows
        at = self.bound(request, candidates)
        return rows if at is None else rows[at : at + 1]
