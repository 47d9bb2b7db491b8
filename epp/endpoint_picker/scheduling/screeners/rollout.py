"""disaggregatedset-rollout-screener: keeps one revision of a rollout for each request."""

from collections import Counter
from typing import Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.per_endpoint import PerEndpoint
from endpoint_picker.scheduling.plugin import PluginParams, Pool, RandomSource, Screener
from endpoint_picker.scheduling.selector import LabelSelectorParams

REVISION_LABEL = "disaggregatedset.x-k8s.io/revision"
ROLE_LABEL = "disaggregatedset.x-k8s.io/role"


class Scope(PluginParams):
    """The endpoints that are screened; all others stay."""

    label_selector: LabelSelectorParams = LabelSelectorParams()
    """Label selector of their pods; an empty one matches all."""


class HeaderSelector(PluginParams):
    """A request header that names the value of a pod label."""

    name: str = Field(min_length=1)
    """Name of the selector; each has its own."""
    header_name: str = Field(min_length=1)
    """Request header, in any case. A request without it is not restricted."""
    label_key: str = Field(min_length=1)
    """Pod label that has to have the header's value."""
    mode: Literal["strict", "prefer"] = "strict"
    """When no endpoint matches: strict leaves none of the scope, prefer leaves all."""


class RequiredRoles(PluginParams):
    """The roles of a complete revision."""

    values: tuple[str, ...] = ()
    """A revision without ready endpoints of each role gets no request."""


class RevisionGating(PluginParams):
    """How the requests are divided between the revisions."""

    revision_label_key: str = Field(default=REVISION_LABEL, min_length=1)
    """Pod label with the revision. Endpoints without it stay."""
    role_label_key: str = Field(default=ROLE_LABEL, min_length=1)
    """Pod label with the role."""
    mode: Literal["sum", "max-role", "disabled"] = "sum"
    """Weight of a revision: its ready endpoints, or those of its largest role; disabled draws no revision."""
    require_roles: RequiredRoles = RequiredRoles()
    """The roles of a complete revision."""


class RolloutParams(PluginParams):
    """Parameters of disaggregatedset-rollout-screener."""

    scope: Scope = Scope()
    """The endpoints that are screened; all others stay."""
    header_selectors: tuple[HeaderSelector, ...] = Field(default=(), max_length=32)
    """Labels that request headers restrict, in order."""
    revision_gating: RevisionGating | None = None
    """Draws a revision for each request, with a chance in proportion to its weight; absent: no draw."""

    @model_validator(mode="after")
    def _does_something(self) -> "RolloutParams":
        gating = self.revision_gating
        if not self.header_selectors and (gating is None or gating.mode == "disabled"):
            raise ValueError("give headerSelectors, or revisionGating with a mode other than disabled")
        names = [each.name for each in self.header_selectors]
        if len(set(names)) < len(names):
            raise ValueError("two headerSelectors have one name")
        return self


class RolloutScreener(Screener):
    """Keeps the endpoints that the request's headers name, then those of one revision, drawn by weight.

    A revision that lacks a required role has no weight; when no revision is complete, all stay.
    """

    __slots__ = ("_gating", "_in_scope", "_required", "_rng", "_selectors")
    type_name = "disaggregatedset-rollout-screener"
    params_type = RolloutParams

    def __init__(self, params: RolloutParams) -> None:
        selector = params.scope.label_selector
        self._in_scope = PerEndpoint(lambda endpoint: selector.matches(endpoint.labels))
        self._selectors = [
            (each.header_name.lower(), each.label_key, each.mode == "strict")
            for each in params.header_selectors
        ]
        gating = params.revision_gating
        self._gating = None if gating is None or gating.mode == "disabled" else gating
        self._required = frozenset(() if gating is None else gating.require_roles.values)
        self._rng: RandomSource

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's randomness."""
        self._rng = pool.rng

    @override
    def screen(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        """Return the rows of the drawn revision and those out of scope."""
        scope = self._in_scope.column(table)[rows] == 1.0
        inside = rows[scope]
        for header, label, strict in self._selectors:
            wanted = request.headers.get(header)
            if wanted:
                named = inside[[value == wanted for value in _labels(inside, table, label)]]
                if named.size or strict:
                    inside = named
        if self._gating is not None:
            inside = self._drawn(inside, table, self._gating)
        kept: Rows = rows[~scope | np.isin(rows, inside)]
        return kept

    def _drawn(self, rows: Rows, table: EndpointTable, gating: RevisionGating) -> Rows:
        """Return the rows of one revision, and those without one."""
        revisions = _labels(rows, table, gating.revision_label_key)
        roles = _labels(rows, table, gating.role_label_key)
        sizes: dict[str, Counter[str]] = {}
        for revision, role in zip(revisions, roles, strict=True):
            if revision:
                sizes.setdefault(revision, Counter())[role] += 1
        largest = gating.mode == "max-role"
        weights = {
            revision: max(found.values()) if largest else found.total()
            for revision, found in sorted(sizes.items())
            if self._required <= found.keys()
        }
        if not weights:
            return rows
        names = list(weights)
        share = self._rng.random(1)[0] * sum(weights.values())
        at = int(np.searchsorted(np.cumsum(list(weights.values())), share, side="right"))
        drawn = names[min(at, len(names) - 1)]
        kept: Rows = rows[[each in ("", drawn) for each in revisions]]
        return kept


def _labels(rows: Rows, table: EndpointTable, key: str) -> list[str]:
    """Return the label's value of each row, "" without it."""
    endpoints = [table.endpoints[row] for row in rows.tolist()]
    return ["" if each is None else each.labels.get(key, "") for each in endpoints]
