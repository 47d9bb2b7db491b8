"""session-affinity-scorer: prefers the endpoint that the session is bound to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Follower, Plugin, Pool, Scorer
from endpoint_picker.scheduling.session import SessionAffinityParams, SessionBindings


class SessionAffinityScorer(Scorer, Follower):
    """1 for the endpoint that the session is bound to, 0 for the others; the parameters are the filter's.

    encoded_endpoint_header: the response has a token, base64 of the endpoint's namespace and name, which the
    client returns. session_id: the picker remembers the endpoint of each session; replicas do not share it.
    """

    __slots__ = ("_bindings",)
    type_name = "session-affinity-scorer"
    params_type = SessionAffinityParams
    bounded: ClassVar[bool] = True

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
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return 1 for the bound row."""
        scores = np.zeros(candidates.rows.size)
        at = self._bindings.bound(request, candidates)
        if at is not None:
            scores[at] = 1.0
        return scores

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
