"""decode-filter, prefill-filter, encode-filter: keep the servers that work for one stage."""

from typing import ClassVar

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.per_endpoint import PerEndpoint
from endpoint_picker.scheduling.plugin import Filter, NoParams
from endpoint_picker.scheduling.roles import DECODE, ENCODE, PREFILL, stages_of


class _RoleFilter(Filter):
    """Which servers stay is worked out once a version of the table."""

    __slots__ = ("_works",)
    stage: ClassVar[str]

    def __init__(self, params: NoParams) -> None:
        self._works = PerEndpoint(lambda endpoint: self.stage in stages_of(endpoint.labels))

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows whose servers work for the stage."""
        rows = candidates.rows
        kept: Rows = rows[self._works.column(table)[rows] == 1.0]
        return kept


class DecodeFilter(_RoleFilter):
    """Keeps pods whose label `llm-d.ai/role` names decode, alone or with others, or that lack the label.

    `both` is a deprecated value for prefill-decode.
    """

    __slots__ = ()
    type_name = "decode-filter"
    stage = DECODE


class PrefillFilter(_RoleFilter):
    """Keeps pods whose label `llm-d.ai/role` names prefill, alone or with others; `both` does, too."""

    __slots__ = ()
    type_name = "prefill-filter"
    stage = PREFILL


class EncodeFilter(_RoleFilter):
    """Keeps pods whose label `llm-d.ai/role` names encode, alone or with others."""

    __slots__ = ()
    type_name = "encode-filter"
    stage = ENCODE
