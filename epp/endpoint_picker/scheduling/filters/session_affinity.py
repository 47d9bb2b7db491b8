"""session-affinity-filter: keeps the endpoint that the session is bound to."""

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, Follower, Plugin, Pool
from endpoint_picker.scheduling.session import SessionAffinityParams, SessionBindings


class SessionAffinityFilter(Filter, Follower):
    """Keeps the bound endpoint alone; all where the session has none, or it is no candidate.

    encoded_endpoint_header: the response has a token, base64 of the endpoint's namespace and name, which the
    client returns. session_id: the picker remembers the endpoint of each session; replicas do not share it.
    """

    __slots__ = ("_bindings",)
    type_name = "session-affinity-filter"
    params_type = SessionAffinityParams

    def __init__(self, params: SessionAffinityParams) -> None:
        self._bindings = SessionBindings(params)

    @property
    @override
    def request_attributes(self) -> frozenset[str]:
        """Return the attributes among the sources of session ids."""
        return self._bindings.request_attributes

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's table and clock."""
        self._bindings.attach(pool)

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Demand the profile and the writers of the attributes that the parameters name."""
        return self._bindings.fault_among(plugins, profiles)

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the bound row, or all."""
        rows = candidates.rows
        at = self._bindings.bound(request, candidates)
        return rows if at is None else rows[at : at + 1]

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Bind the session to the endpoint."""
        self._bindings.decided(request, candidates, reservation)

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        """Bind the session to the endpoint that answered."""
        self._bindings.first_byte(decision, record)

    @override
    def response_headers(self, decision: Decision, record: Record) -> Iterable[tuple[str, str]]:
        """Return the token."""
        return self._bindings.response_headers(decision, record)
