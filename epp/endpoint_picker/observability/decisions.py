"""The newest decisions, kept for /debug/explain. Pure.

A decision costs one tuple and three byte strings: the scores of all scorers, and the counts of requests in
flight. The rest are references, among them a copy of the scraped columns, which the decisions between two
scrapes share. Few objects are kept, because each one kept costs the next decision as much as its allocation:
keeping the scorers' arrays themselves made a decision some 5 % slower than their bytes do. `explain` formats
an entry when it is asked for. Neither the request nor its prompt is kept.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
from typing_extensions import Buffer

from endpoint_picker.datalayer.table import Counts, Endpoint, EndpointTable, Floats, Rows
from endpoint_picker.decision import Decision, Refusal, Reservation
from endpoint_picker.latency.prediction import Prediction
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.scheduler import Scheduling

#: Decisions kept at most, and candidates over all of them: a large pool has fewer decisions kept. The oldest
#: is dropped first. Few, because what is kept displaces what decisions read from the processor's cache.
KEPT: Final = 64
MAX_CANDIDATES: Final = 4_096
#: The same within `WATCHED_S` seconds of a read of /debug/explain.
KEPT_WATCHED: Final = 4_096
MAX_CANDIDATES_WATCHED: Final = 262_144
WATCHED_S: Final = 600.0
#: Longest request id, model and objective kept, in characters: clients choose them.
NAME_LIMIT: Final = 128

_NO_ROWS: Final[Rows] = np.empty(0, dtype=np.intp)


class Signals(NamedTuple):
    """The scraped columns at one time; rows are those of the table."""

    waiting: Floats
    running: Floats
    kv_usage: Floats
    scraped_at: Floats


class Run(NamedTuple):
    """What one profile made of its candidates."""

    profile: str
    left: Sequence[Rows]
    """The rows that each filter left."""
    packed: bytes
    """The answers of the scorers one after the other, not weighted; `scores` unpacks them."""
    rows: Rows
    """The rows that were scored."""
    picked: int
    """Row of the best one; -1 when none was left."""

    def scores(self, count: int) -> list[Floats] | None:
        """Return the answers of the `count` scorers; None when they are not float64s as the contract says."""
        if count and len(self.packed) != count * self.rows.size * 8:
            return None
        return np.split(np.frombuffer(self.packed), count) if count else []


class Kept(NamedTuple):
    """One decision."""

    at: float
    """When it was made, seconds of the pool's clock."""
    request_id: str
    model: str
    objective: str
    priority: int
    scheduling: Scheduling | None
    """None when no scheduler made the refusal."""
    endpoints: Sequence[Endpoint | None]
    """The tenants of the table's rows."""
    signals: Signals
    rows: Rows
    """The candidates before the filters."""
    unseen: Counts
    """Requests sent that the last scrape cannot have counted, by row of the table."""
    waited: bool
    prefix_source: str
    """Which index the prefix matches of the primary's profile come from; "" for the only one."""
    destination: str
    """"" for a refusal."""
    prefix_hit: float
    refusal: Refusal | None
    prediction: Prediction | None
    """Of the primary profile; None when nothing asked for one."""
    runs: Sequence[Run]
    """One for each profile that ran, the primary's first."""


class Wait(NamedTuple):
    """One request's time in the queue of flow control."""

    seconds: float
    position: int
    """Requests ahead of it when it arrived: of its own band and of higher ones."""
    priority: int
    tenant: str


class Decisions:
    """A ring of the newest decisions; a `scheduler.Recorder`."""

    __slots__ = (
        "_clock",
        "_endpoints",
        "_failures",
        "_ring",
        "_scrapes",
        "_signals",
        "_table",
        "_version",
        "_waits",
        "_watched",
    )

    def __init__(self, table: EndpointTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        # Plain tuples: making a NamedTuple costs four times as much. `newest` turns them into `Kept`.
        self._ring: deque[tuple[Any, ...]] = deque(maxlen=KEPT)
        self._version = self._scrapes = -1
        self._watched = False
        self._failures: dict[str, int] = {}
        """Request id to the status of the model server's error; as many as decisions are kept."""
        self._waits: dict[str, tuple[float, int, int, str]] = {}
        """Request id to its wait; as many as decisions are kept."""
        self._endpoints: tuple[Endpoint | None, ...] = ()
        self._signals: tuple[Floats, ...] = ()

    def picked(
        self,
        request: InferenceRequest,
        rows: Rows,
        chosen: Sequence[Candidates],
        scheduling: Scheduling,
        decision: Decision,
    ) -> None:
        """Keep a pick, before it is reserved."""
        table = self._table
        if table.scrapes != self._scrapes:
            self._copy()
        first = chosen[0]
        self._ring.append((
            self._clock(), request.request_id[:NAME_LIMIT], request.model[:NAME_LIMIT],
            request.objective[:NAME_LIMIT], request.priority, scheduling, self._endpoints, self._signals,
            rows, table.unseen.tobytes(), first.held is not None, first.prefix_source,
            decision.destination, decision.prefix_hit,
            None, first.prediction, first.profile, first.left, _packed(first.scores), first.rows,
            decision.reservations[0].row,
            *(() if len(chosen) == 1 else map(_run_of, chosen[1:], decision.reservations[1:])),
        ))  # fmt: skip

    def refused(
        self,
        request: InferenceRequest,
        rows: Rows,
        chosen: Sequence[Candidates],
        scheduling: Scheduling,
        refusal: Refusal,
    ) -> None:
        """Keep a refusal."""
        run = _run_of(chosen[0]) if chosen else ()
        waited = bool(chosen) and chosen[0].held is not None
        self._keep_refusal(request, rows, scheduling, refusal, run, waited=waited)

    def unscheduled(self, request: InferenceRequest, refusal: Refusal, *, waited: bool) -> None:
        """Keep a refusal that no scheduler made: of an unreadable body, or of a decision that waits."""
        self._keep_refusal(request, _NO_ROWS, None, refusal, (), waited=waited)

    def _keep_refusal(
        self,
        request: InferenceRequest,
        rows: Rows,
        scheduling: Scheduling | None,
        refusal: Refusal,
        run: tuple[Any, ...],
        *,
        waited: bool,
    ) -> None:
        if self._table.scrapes != self._scrapes:
            self._copy()
        self._ring.append((
            self._clock(), request.request_id[:NAME_LIMIT], request.model[:NAME_LIMIT],
            request.objective[:NAME_LIMIT], request.priority, scheduling, self._endpoints, self._signals,
            rows, self._table.unseen.tobytes(), waited, "", "", 0.0, refusal, None, *run,
        ))  # fmt: skip

    def newest(self) -> Iterator[Kept]:
        """Return the decisions kept now, the newest first; later ones do not disturb the iteration."""
        return map(_unpacked, reversed(tuple(self._ring)))

    def of_request(self, request_id: str) -> Iterator[Kept]:
        """Return the decisions kept now on requests with that id, the newest first."""
        known = request_id[:NAME_LIMIT]
        return (_unpacked(entry) for entry in reversed(tuple(self._ring)) if entry[_REQUEST_ID] == known)

    def prefix_hits(self) -> dict[str, float]:
        """Return the mean prefix hit of the picks kept now, by endpoint."""
        hits: dict[str, list[float]] = {}
        for entry in self._ring:
            if entry[_DESTINATION]:
                hits.setdefault(entry[_DESTINATION].partition(",")[0], []).append(entry[_PREFIX_HIT])
        return {endpoint: sum(found) / len(found) for endpoint, found in hits.items()}

    def note_wait(self, request_id: str, wait: tuple[float, int, int, str]) -> None:
        """Keep how long a request was queued, for its explanation; `wait` has the fields of a `Wait`."""
        waits = self._waits
        waits[request_id[:NAME_LIMIT]] = wait
        if len(waits) > self.capacity:
            del waits[next(iter(waits))]

    def wait_of(self, request_id: str) -> Wait | None:
        """Return how long a request was queued; None when it was not, or that is forgotten."""
        wait = self._waits.get(request_id[:NAME_LIMIT])
        return None if wait is None else Wait._make((round(wait[0], 4), *wait[1:]))

    def note_failure(self, request_id: str, status: int) -> None:
        """Keep the status of the error that the model server answered a request with."""
        failures = self._failures
        failures[request_id[:NAME_LIMIT]] = status
        if len(failures) > self.capacity:
            del failures[next(iter(failures))]

    def failure_of(self, request_id: str) -> int | None:
        """Return the status of the model server's error; None without one, or when that is forgotten."""
        return self._failures.get(request_id[:NAME_LIMIT])

    def watch(self, watched: bool) -> None:
        """Keep more decisions from now on, or fewer again."""
        self._watched = watched
        self._resize()

    @property
    def now(self) -> float:
        """Return the time of the pool's clock."""
        return self._clock()

    @property
    def capacity(self) -> int:
        """Return how many decisions are kept at most."""
        return self._ring.maxlen or 0

    def __len__(self) -> int:
        return len(self._ring)

    def _copy(self) -> None:
        """Copy the columns that scrapes write, and the rows' tenants when they changed."""
        table = self._table
        self._scrapes = table.scrapes
        self._signals = (
            table.waiting.copy(),
            table.running.copy(),
            table.kv_usage.copy(),
            table.scraped_at.copy(),
        )
        if table.version != self._version:
            self._version = table.version
            self._endpoints = tuple(table.endpoints)
            self._resize()

    def _resize(self) -> None:
        kept, candidates = (KEPT_WATCHED, MAX_CANDIDATES_WATCHED) if self._watched else (KEPT, MAX_CANDIDATES)
        capacity = max(8, min(kept, candidates // max(1, len(self._table))))
        if capacity != self._ring.maxlen:
            self._ring = deque(self._ring, maxlen=capacity)


#: Positions in an entry: single fields, the first run's fields, then the other runs.
_REQUEST_ID: Final = Kept._fields.index("request_id")
_DESTINATION: Final = Kept._fields.index("destination")
_PREFIX_HIT: Final = Kept._fields.index("prefix_hit")
_FIRST: Final = len(Kept._fields) - 1
_OTHERS: Final = _FIRST + len(Run._fields)


def _unpacked(entry: tuple[Any, ...]) -> Kept:
    runs = [entry[_FIRST:_OTHERS], *entry[_OTHERS:]] if len(entry) > _FIRST else []
    kept = Kept._make((*entry[:_FIRST], [Run._make(each) for each in runs]))
    return kept._replace(
        signals=Signals._make(kept.signals), unseen=np.frombuffer(kept.unseen, dtype=np.int64)
    )


def _packed(scores: Sequence[Floats]) -> bytes:
    try:
        return b"".join(cast("Sequence[Buffer]", scores))  # numpy does not declare the protocol
    except (TypeError, ValueError, BufferError):  # a third-party scorer's array is not contiguous
        return b"".join([np.asarray(each, dtype=np.float64).tobytes() for each in scores])


def _run_of(each: Candidates, reservation: Reservation | None = None) -> tuple[Any, ...]:
    picked = -1 if reservation is None else reservation.row
    return each.profile, each.left, _packed(each.scores), each.rows, picked
