"""Whether the pool has room for one more request. Pure: the clock is passed in.

Saturation is the detector's, of each stage of a disaggregated pool: of the endpoints that prefill, and of
those that decode; the fuller stage counts. Between two scrapes the ledger is the load: what was sent since
the page counts as the server's queue, and what ended since then counts no longer.

Metrics that stay away must not close the pool for good. An endpoint whose metrics are older than
`fail_open_after_s` is judged by the requests in flight alone, at `BLIND_REQUESTS` an endpoint. Where no
endpoint of a stage ever showed metrics, that is so `NEVER_SEEN_S` after they came: they have none to show.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.flowcontrol.settings import FlowSettings
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.roles import DECODE, PREFILL, stages_of

EFFECTIVE: Final = "effective"
#: Stages whose servers must have room for a request; an encoder's load is not judged.
_JUDGED: Final = (PREFILL, DECODE)
#: Requests in flight at which an endpoint without metrics counts as full.
BLIND_REQUESTS: Final = 100
#: Seconds after which a stage that never showed metrics is taken to have none. Long enough for the first
#: pages of servers that do: after a start of the picker they may be full.
NEVER_SEEN_S: Final = 0.5
#: Seconds after which a saturation is computed again although nothing was noted: metrics may have become old.
_REFRESH_S: Final = 0.1


class Gate:
    """The saturation of one pool, kept between events that may change it."""

    __slots__ = (
        "_at",
        "_estimate",
        "_known_since",
        "_ledger",
        "_marks",
        "_models",
        "_rows",
        "_sent",
        "_settings",
        "_step",
        "_table",
        "_version",
        "failed_open",
        "pending",
        "replicas",
        "stages",
        "stale",
    )

    def __init__(self, pool: Pool, settings: FlowSettings) -> None:
        self._table: EndpointTable = pool.table
        self._ledger = pool.ledger
        self._settings = settings
        self._rows: dict[str, Rows] = {}
        self._version = -1
        self._marks: tuple[int, int, int] = (-1, -1, -1)
        self._at = 0.0
        self._estimate = 1.0
        """At least the saturation: each request sent since the last computation counts at its most."""
        self._step = 1.0
        self._sent = 0
        self._models: dict[str, int] = {}
        """Model with a limit to its requests in flight."""
        self._known_since: dict[tuple[int, int], float] = {}
        """(row, generation) of a ready endpoint, to when it was first seen here."""
        self.stages: dict[str, float] = {}
        """Stage to its saturation when it was last computed."""
        self.stale = 0
        """Endpoints whose metrics were old then."""
        self.failed_open = 0
        """Those of them that were judged by the ledger alone."""
        self.pending = 0
        """Requests dispatched whose endpoint is not reserved yet: a plugin makes their decision wait."""
        self.replicas = 1

    def use(self, settings: FlowSettings) -> None:
        """Judge by other settings."""
        self._settings = settings
        self._version = -1
        self._marks = (-1, -1, -1)

    def has_endpoints(self) -> bool:
        """Tell whether any endpoint is ready."""
        return bool(self._table.ready_rows.size)

    def may_serve(self, subset: Sequence[str] | None) -> bool:
        """Tell whether a ready endpoint is among those of the hint."""
        return bool((self._table.ready_rows if subset is None else self._table.rows_of(subset)).size)

    def saturation(self, now: float) -> float:
        """Return the saturation, or at most what the requests sent since its computation made of it."""
        table, ledger = self._table, self._ledger
        marks = (table.scrapes, table.version, ledger.released)
        if marks != self._marks or now - self._at >= _REFRESH_S:
            self._marks = marks
            self._compute(now)
        return self._estimate

    def below(self, ceiling: float, now: float) -> bool:
        """Tell whether the saturation is below the ceiling."""
        if self.saturation(now) < ceiling:
            return True
        if not self._sent:
            return False
        self._compute(now)
        return self._estimate < ceiling

    def sent(self) -> None:
        """Count a request that was sent."""
        self._sent += 1
        self._estimate += self._step

    # Models with limits.

    def model_has_room(self, model: str) -> bool:
        """Tell whether one more request of the model stays within its limit."""
        limit = self._settings.model_limits.get(model)
        return limit is None or self._models.get(model, 0) < limit

    def count_model(self, model: str, by: int) -> None:
        """Count a request of the model that begins (1) or ends (-1)."""
        if model in self._settings.model_limits or model in self._models:
            left = self._models.get(model, 0) + by
            if left > 0:
                self._models[model] = left
            else:
                self._models.pop(model, None)

    # Computation.

    def _compute(self, now: float) -> None:
        table = self._table
        if table.version != self._version:
            self._follow(now)
        detector = self._settings.detector
        effective = 0.0 if self._rows else 1.0
        step = 0.0
        self.stale = self.failed_open = 0
        for stage, rows in self._rows.items():
            load = detector.saturation(rows, table, now)
            if load >= 1.0 and detector.reads_metrics:
                load = self._without_blind(rows, load, now)
            one = detector.step(rows.size)
            if one < np.inf:
                load += self.pending * one
                if self.replicas > 1 and detector.reads_metrics:
                    # Between two scrapes the other pickers send as much as this one.
                    load += (self.replicas - 1) * int(table.unseen[rows].sum()) * one
            if not detector.reads_metrics:
                load *= self.replicas
            self.stages[stage] = load
            effective = max(effective, load)
            step = max(step, one * self.replicas)
        self.stages[EFFECTIVE] = effective
        self._estimate, self._step, self._sent, self._at = effective, step, 0, now

    def _without_blind(self, rows: Rows, load: float, now: float) -> float:
        """Return the load with the endpoints whose metrics stay away judged by the ledger."""
        table, known = self._table, self._known_since
        old = table.scraped_at[rows] < now - self._settings.detector.max_age_s
        stale = rows[old].tolist()
        if not stale:
            return load
        self.stale += len(stale)
        blind = []
        patience = self._settings.fail_open_after_s
        if float(table.scraped_at[rows].max()) == -np.inf:
            patience = min(patience, NEVER_SEEN_S)
        for row in stale:
            since = table.scraped_at.item(row)
            if since == -np.inf:
                since = known[row, table.generation[row]]
            if now - since >= patience:
                blind.append(row)
        if not blind:
            return load
        self.failed_open += len(blind)
        alone = float(np.minimum(table.inflight_requests[blind] / BLIND_REQUESTS, 1.0).sum())
        # A row with old metrics counts 1.0 in the mean; count it by what is in flight instead.
        return load - (len(blind) - alone) / rows.size

    def _follow(self, now: float) -> None:
        """Sort the ready endpoints into stages."""
        table = self._table
        self._version = table.version
        found: dict[str, list[int]] = {}
        known, self._known_since = self._known_since, {}
        for row in table.ready_rows.tolist():
            endpoint = table.endpoints[row]
            key = (row, table.generation[row])
            self._known_since[key] = known.get(key, now)
            for stage in () if endpoint is None else stages_of(endpoint.labels):
                if stage in _JUDGED:
                    found.setdefault(stage, []).append(row)
        self._rows = {stage: np.array(rows, dtype=np.intp) for stage, rows in found.items()}
        self.stages = {}
