"""lora-affinity-scorer: prefers the servers that hold the request's LoRA adapter, so that none is loaded."""

from collections.abc import Callable, Collection
from typing import ClassVar, Final

import numpy as np
from pydantic import Field, field_validator
from typing_extensions import override

from cluster_client.durations import seconds
from endpoint_picker.datalayer.adapters import AdapterColumns
from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Follower, PluginParams, Pool, Scorer

_HELD: Final = 1.0
_FREE: Final = 0.8
_WAITS: Final = 0.6
#: Score of the full server whose idle adapter has been unused for longest.
_COLDEST: Final = 0.4


class LoraAffinityParams(PluginParams):
    """Parameters of lora-affinity-scorer."""

    remember_idle: float = Field(default=3600.0, ge=0.0)
    """Seconds that an adapter is believed to stay loaded after its last request; 0 goes by the metrics alone.

    Written as a duration ("1h"). Fewer seconds if the server needs the slot for another adapter.
    """

    _duration = field_validator("remember_idle", mode="before")(seconds)


class LoraAffinityScorer(Scorer, Follower):
    """Adapter in a slot: 1. Free slot: 0.8. Adapter waits: 0.6. Full: up to 0.4. Slots unknown: 0.

    An adapter is in a slot when it runs, or when it is remembered as idle there: the metrics forget an
    adapter with its last request, the server keeps it until another one needs the slot. Of the full servers
    the one whose idle adapter has been unused for longest scores 0.4, the others in proportion; one whose
    adapters all run scores 0. With rememberIdle 0, and for a model that no server has shown as an adapter,
    only adapters that run or wait occupy slots, and every full server scores 0. A server that answers scrapes
    and shows no slots yet counts as free where others show theirs, unless rememberIdle is 0.
    """

    __slots__ = ("_clock", "_remember_s", "_table")
    type_name = "lora-affinity-scorer"
    params_type = LoraAffinityParams
    bounded: ClassVar[bool] = True
    reads_adapters: ClassVar[bool] = True

    def __init__(self, params: LoraAffinityParams) -> None:
        self._remember_s = params.remember_idle
        self._table: EndpointTable
        self._clock: Callable[[], float]

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's table and its clock."""
        self._table = pool.table
        self._clock = pool.clock

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its adapters."""
        adapters, adapter = table.adapters, request.model
        if not self._remember_s:
            scores = _by_metrics(adapters, adapter)
        else:
            if adapters.is_known(adapter):
                now = self._clock()
                adapters.forget_idle(now - self._remember_s)
                scores = _by_memory(adapters, adapter, now)
            else:
                scores = _by_metrics(adapters, adapter)
            silent = adapters.slots == 0
            if silent.any() and not silent.all():
                # A server shows its slots from its first request on. Without this score it would not get one.
                scores[silent & ~np.isnan(table.waiting)] = _FREE
        chosen: Floats = scores[candidates.rows]
        return chosen

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note that the reserved endpoint loads the adapter, if it does not hold it."""
        if self._remember_s:
            self._table.adapters.sent(reservation.row, request.model, self._clock())

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note the adapter where it was used, when another endpoint than the primary answered."""
        if not self._remember_s or not record.served_by or record.served_by == decision.endpoint:
            return
        # The scheduler has pointed the reservation at the endpoint that answered, if that is known.
        reservation = decision.reservations[0]
        if self._table.is_current(reservation.row, reservation.generation):
            self._table.adapters.sent(reservation.row, record.model, self._clock())

    @override
    def ended(self, decision: Decision, record: Record) -> None:
        """Note that a server which answers 404 does not have the adapter."""
        if record.response_status == 404:
            reservation = decision.reservations[0]
            if self._table.is_current(reservation.row, reservation.generation):
                self._table.adapters.unload(reservation.row, record.model)


def _by_metrics(adapters: AdapterColumns, adapter: str) -> Floats:
    """Return the score of every row of the table by the adapters that run and wait."""
    scores: Floats = np.where(adapters.shown < adapters.slots, _FREE, 0.0)
    if waiting := adapters.waiting(adapter):
        rows = _array(waiting)
        scores[rows] = np.maximum(scores[rows], _WAITS)
    if running := adapters.running(adapter):
        scores[_array(running)] = _HELD
    return scores


def _by_memory(adapters: AdapterColumns, adapter: str, now: float) -> Floats:
    """Return the score of every row of the table, with the adapters that are remembered as idle."""
    idle_s = now - adapters.idle_since  # -inf where no adapter can be unloaded
    known = adapters.slots > 0
    longest_s = float(np.max(idle_s, where=known, initial=0.0))
    scores: Floats = (
        np.clip(idle_s * (_COLDEST / longest_s), 0.0, _COLDEST) if longest_s else np.zeros(idle_s.size)
    )
    scores[~known] = 0.0
    scores[adapters.held < adapters.slots] = _FREE
    if waiting := adapters.waiting(adapter):
        rows = _array(waiting)
        scores[rows] = np.maximum(scores[rows], _WAITS)
    if resident := adapters.resident(adapter):
        rows = _array(resident)
        # More adapters than slots: the adapter may be one of those that wait for a slot.
        waits = adapters.shown[rows] > adapters.slots[rows]
        scores[rows] = np.where(known[rows], np.where(waits, _WAITS, _HELD), 0.0)
    if running := adapters.running(adapter):
        scores[_array(running)] = _HELD
    return scores


def _array(rows: Collection[int]) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.fromiter(rows, np.intp, len(rows))
