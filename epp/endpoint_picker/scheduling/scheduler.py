"""The decision: from a request to a reserved endpoint, a refusal or a hold. Pure; the clock is passed in.

`Scheduler` owns the state that a pool's decisions read and write. Discovery and scraping write its table. A
process and a simulation use the same class, each with its own clock and randomness.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.decision import NO_HOOKS, Decision, Hook, Hooks, Refusal, Reservation
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.objectives import Objectives, Source
from endpoint_picker.scheduling.plugin import MayWait, Plugin, Pool, RandomSource, SaturationDetector
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.prompt_size import prompt_tokens
from endpoint_picker.scheduling.release_rate import ReleaseRate

#: Saturation from which a request of negative priority is refused.
SATURATED: Final = 1.0

#: Header that names the rank to a pod's proxy.
DATA_PARALLEL_HEADER: Final = "x-data-parallel-host-port"

_NO_ENDPOINTS: Final = Refusal(Outcome.NO_ENDPOINTS, "no ready endpoint may serve this request")
_NOT_CACHED: Final = Refusal(Outcome.NOT_CACHED, "no decode worker has the requested KV cache")
_SATURATED: Final = "the pool is saturated and this request may be shed"

_T = TypeVar("_T")


ScreenFn = Callable[[InferenceRequest, Rows, EndpointTable], Rows]
AdmitFn = Callable[[InferenceRequest, Rows, EndpointTable, float], Refusal | None]
LateAdmitFn = Callable[[InferenceRequest, Candidates, EndpointTable], Refusal | None]
DecidedHook = Callable[[InferenceRequest, Candidates, Reservation], None]


ReadFn = Callable[[InferenceRequest], None]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The scheduling part of a configuration, with its methods bound."""

    profiles: tuple[Profile, ...]
    """The primary one first."""
    handler: ProfileHandler
    detector: SaturationDetector
    readers: tuple[ReadFn, ...] = ()
    """The request readers, called before anything else."""
    plugins: tuple[Plugin, ...] = ()
    """The plugins whose `attach` is called when the configuration comes into use."""
    screeners: tuple[ScreenFn, ...] = ()
    admitters: tuple[AdmitFn, ...] = ()
    late_admitters: tuple[LateAdmitFn, ...] = ()
    """Called with the candidates of the primary profile."""
    waiters: tuple[MayWait, ...] = ()
    decided: tuple[DecidedHook, ...] = ()
    """Called before the reservation is made."""
    hooks: Hooks = NO_HOOKS


class Recorder(Protocol):
    """Keeps decisions with their reasons. It must not raise.

    `rows` are the candidates before the filters; `chosen` has the candidates of each profile that ran, the
    primary's first.
    """

    def picked(
        self,
        request: InferenceRequest,
        rows: Rows,
        chosen: Sequence[Candidates],
        scheduling: Scheduling,
        decision: Decision,
    ) -> None:
        """Keep a pick. It is not reserved yet."""
        ...

    def refused(
        self,
        request: InferenceRequest,
        rows: Rows,
        chosen: Sequence[Candidates],
        scheduling: Scheduling,
        refusal: Refusal,
    ) -> None:
        """Keep a refusal."""
        ...


class Scheduler:
    """Decides for one pool. All methods are for one thread."""

    __slots__ = (
        "_ends",
        "_known",
        "_on_fault",
        "_rng",
        "_scheduling",
        "emit_scores",
        "matched_blocks",
        "objectives",
        "picked",
        "pool",
        "prompt_blocks",
        "recorder",
        "refused_no_endpoints",
        "refused_not_cached",
        "refused_saturated",
        "unknown_objectives",
    )

    def __init__(
        self,
        pool: Pool,
        scheduling: Scheduling,
        rng: RandomSource,
        recorder: Recorder,
        on_fault: Callable[[Exception], None],
    ) -> None:
        """`on_fault` is called with each exception that a follower raised."""
        self.pool = pool
        self._on_fault = on_fault
        self._ends = ReleaseRate(pool.ledger, pool.clock())
        self._rng = pool.rng = rng
        self.unknown_objectives = dict.fromkeys(Source, 0)
        """Requests of priority 0 because their objective is unknown, by where its name comes from."""
        self.use_objectives(Objectives({}))
        self.recorder = recorder
        self.emit_scores = False
        """Whether decisions have the scores of their candidates, for the proxy's metadata."""
        self.picked = 0
        self.refused_no_endpoints = 0
        self.refused_not_cached = 0
        self.refused_saturated = 0
        self.prompt_blocks = 0
        """Prompt blocks of all picks, the hit rate's denominator."""
        self.matched_blocks = 0
        """Prompt blocks of all picks that the prefix index held for the picked endpoint."""
        self.use(scheduling)

    @property
    def scheduling(self) -> Scheduling:
        """Return the scheduling in use."""
        return self._scheduling

    def use(self, scheduling: Scheduling) -> None:
        """Attach the plugins, then decide by `scheduling` from the next request on."""
        pool = self.pool
        pool.output = pool.kv_plan = pool.token_plan = None
        for plugin in scheduling.plugins:
            plugin.attach(pool)
        pool.kv_sources.use(pool.kv_plan)
        pool.tokenizing.use(pool.token_plan)
        self._scheduling = scheduling

    def follow(self, hooks: Hooks) -> None:
        """Call these followers for the decisions from now on, until the next `use`."""
        self._scheduling = replace(self._scheduling, hooks=hooks)

    def read(self, request: InferenceRequest) -> None:
        """Have the request readers write their facts, for flow control; `decide` then leaves them out."""
        for read in self._scheduling.readers:
            read(request)

    def use_objectives(self, objectives: Objectives) -> None:
        """Take the priorities of requests from `objectives` from now on."""
        self.objectives = objectives
        self._known = objectives.known

    def rank(self, request: InferenceRequest) -> None:
        """Write the priority, and the objective that a request without a header has; count unknown ones."""
        priority = self._known.get(request.objective)
        request.priority = self._rare_priority(request) if priority is None else priority

    def _rare_priority(self, request: InferenceRequest) -> int:
        source = self.objectives.name(request)
        priority = self.objectives.priorities.get(request.objective)
        if priority is None and request.objective:
            self.unknown_objectives[source] += 1
        return priority or 0

    def decide(
        self,
        request: InferenceRequest,
        subset: Sequence[str] | None,
        held: Hold | None = None,
        *,
        admitted: bool = False,
    ) -> Decision | Refusal | Hold:
        """Pick and reserve, say why not, or return the hold of the plugin that puts the decision off.

        `held` is the released hold when the decision is made after a wait. With `admitted` flow control has
        read and ranked the request and let it pass, so that it is not shed. Refusals are shared objects: do
        not change them.
        """
        pool, scheduling = self.pool, self._scheduling
        table = pool.table
        if scheduling.readers and held is None and not admitted:  # one that waited has been read before
            for read in scheduling.readers:
                read(request)
        if not admitted:  # flow control ranks on arrival, and again whenever the table changes
            priority = self._known.get(request.objective)
            request.priority = self._rare_priority(request) if priority is None else priority
        rows = table.ready_rows if subset is None else table.rows_of(subset)
        if not rows.size:
            self.refused_no_endpoints += 1
            self.recorder.refused(request, rows, (), scheduling, _NO_ENDPOINTS)
            return _NO_ENDPOINTS
        now, progress = pool.clock(), pool.progress
        if now >= progress.due:
            progress.look(now)
        if progress.stalled:
            rows = progress.narrow(rows, now)
        if request.priority < 0 and not admitted:
            load = scheduling.detector.saturation(rows, table, now)
            if load >= SATURATED:
                self.refused_saturated += 1
                shed = Refusal(Outcome.SATURATED, _SATURATED, self._ends.retry_after(load, now))
                self.recorder.refused(request, rows, (), scheduling, shed)
                return shed
        if scheduling.screeners:
            rows = _screened(scheduling.screeners, request, rows, table)
            if not rows.size:
                self.refused_no_endpoints += 1
                self.recorder.refused(request, rows, (), scheduling, _NO_ENDPOINTS)
                return _NO_ENDPOINTS
        if scheduling.admitters and held is None:  # a decision that waited was admitted before
            refusal = self._refusal(request, rows)
            if refusal is not None:
                self.recorder.refused(request, rows, (), scheduling, refusal)
                return refusal
        candidates = Candidates(rows, held)
        chosen = scheduling.handler.schedule(request, candidates, table, self._rng, scheduling.profiles)
        if isinstance(chosen, Hold):
            return chosen
        if not chosen:
            self.refused_no_endpoints += 1
            self.recorder.refused(request, rows, (candidates,), scheduling, _NO_ENDPOINTS)
            return _NO_ENDPOINTS
        if request.if_available and not _is_cached(request, chosen[0]):
            self.refused_not_cached += 1
            self.recorder.refused(request, rows, chosen, scheduling, _NOT_CACHED)
            return _NOT_CACHED
        if scheduling.late_admitters:
            for admit in scheduling.late_admitters:
                refusal = admit(request, chosen[0], table)
                if refusal is not None:
                    self.refused_saturated += 1
                    self.recorder.refused(request, rows, chosen, scheduling, refusal)
                    return refusal
        decision = self._decision(request, chosen)
        if self.emit_scores:
            decision.scores = self._scores(chosen[0], scheduling)
        self.recorder.picked(request, rows, chosen, scheduling, decision)
        reservations = decision.reservations
        for hook in scheduling.decided:
            try:
                for at, reservation in enumerate(reservations):
                    hook(request, chosen[at], reservation)
            except Exception as fault:  # third-party plugins raise anything
                # Followers called before have noted the decision. It stands, so that `ended` reaches them.
                self._on_fault(fault)
        # Reserve last: a fault in an earlier step then leaves nothing to release.
        for reservation in reservations:
            progress.sent(reservation.row, now)
            pool.ledger.reserve(reservation)
        return decision

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Give the prompt's tokens back, as it has been computed, and call the followers.

        All reservations but the primary's are released. When another endpoint than the primary answered, the
        primary's moves there; it is released, too, when that address is no ready endpoint.
        """
        ledger, reservations = self.pool.ledger, decision.reservations
        served, pool = reservations[0], self.pool
        if record.served_by and record.served_by != decision.endpoint:
            row = self.pool.table.row_of(record.served_by)
            if row is None:
                ledger.release(served)
            else:
                ledger.move(served, row)
        else:
            ledger.computed(served)
        late = len(reservations) > 1 and self._stages_over(reservations[1:], record)
        if pool.table.generation[served.row] == served.generation:
            if late:
                pool.progress.lives(served.row, pool.clock())
            else:
                pool.progress.answered(served.row, record.first_byte_at - record.decided_at, pool.clock())
        for hook in decision.hooks.first_byte:
            self._follow(hook, decision, record)

    def _stages_over(self, reservations: Sequence[Reservation], record: Record) -> bool:
        """Release the stages before the answer; return whether the answer came later than the patience.

        An answer within the patience is a sign of life of all its endpoints. A later one may come from a
        server that waited for the stage before it in vain and did its work: it says nothing about that
        stage's endpoint, and nothing about how long an answer takes.
        """
        pool = self.pool
        late = record.first_byte_at - record.decided_at > pool.progress.patience_s
        for reservation in reservations:
            if not late and pool.table.generation[reservation.row] == reservation.generation:
                pool.progress.lives(reservation.row, pool.clock())
            pool.ledger.release(reservation)
        return late

    def ended(self, decision: Decision, record: Record) -> None:
        """Release all reservations, then call the followers. A further call releases nothing."""
        ledger = self.pool.ledger
        for reservation in decision.reservations:
            ledger.release(reservation)
        served, pool = decision.reservations[0], self.pool
        if record.response_status and pool.table.generation[served.row] == served.generation:
            pool.progress.lives(served.row, pool.clock())
            if record.response_status < 400 and record.first_byte_at:
                pool.progress.served(served.row, record.ended_at - record.decided_at)
        for hook in decision.hooks.ended:
            self._follow(hook, decision, record)

    def response_headers(self, decision: Decision, record: Record) -> Sequence[tuple[str, str]]:
        """Return the headers that followers set on the response, without those of a follower that fails."""
        return self._gather(decision.hooks.response_headers, decision, record)

    def response_complete(self, decision: Decision, record: Record) -> Sequence[tuple[str, str, float]]:
        """Return the followers' metadata about the whole response, without that of one that fails."""
        return self._gather(decision.hooks.response_complete, decision, record)

    def _gather(
        self, hooks: Iterable[Callable[[Decision, Record], Iterable[_T]]], decision: Decision, record: Record
    ) -> list[_T]:
        """Return what all hooks return; pass the fault of one to `on_fault`, and leave its part out."""
        found: list[_T] = []
        for hook in hooks:
            try:
                found += hook(decision, record)
            except Exception as fault:  # third-party plugins raise anything
                self._on_fault(fault)
        return found

    def _follow(self, hook: Hook, decision: Decision, record: Record) -> None:
        """Call a follower; pass its fault to `on_fault`, so that the followers after it are called, too."""
        try:
            hook(decision, record)
        except Exception as fault:  # third-party plugins raise anything
            self._on_fault(fault)

    def saturation(self) -> float:
        """Return the load of all ready endpoints over their capacity; 1.0 when there is none."""
        table = self.pool.table
        return self._scheduling.detector.saturation(table.ready_rows, table, self.pool.clock())

    def _refusal(self, request: InferenceRequest, rows: Rows) -> Refusal | None:
        """Return the first admitter's refusal, and count it."""
        now = self.pool.clock()
        for admit in self._scheduling.admitters:
            refusal = admit(request, rows, self.pool.table, now)
            if refusal is not None:
                if refusal.outcome is Outcome.NO_ENDPOINTS:
                    self.refused_no_endpoints += 1
                else:
                    self.refused_saturated += 1
                return refusal
        return None

    def _decision(self, request: InferenceRequest, chosen: Sequence[Candidates]) -> Decision:
        """Return the decision, not reserved yet; the order of `chosen[0]` is the destination."""
        first = chosen[0]
        hostports = self.pool.table.hostports
        rows = first.rows[first.order].tolist()
        endpoint = hostports[rows[0]]
        tokens = prompt_tokens(request)
        blocks = first.prompt_blocks
        matched = _matched(first) if blocks else 0
        generation = self.pool.table.generation
        reservation = Reservation(rows[0], generation[rows[0]], tokens - matched * first.block_tokens)
        output = self.pool.output
        if output is not None:
            reservation.decode_tokens = output.of(tokens, request.max_tokens)
        reservation.is_primary = True
        reservation.profile = first.profile
        decision = Decision(
            destination=endpoint if len(rows) == 1 else ",".join([hostports[each] for each in rows]),
            endpoint=endpoint,
            reservations=(reservation,)
            if len(chosen) == 1
            else (reservation, *[self._reservation(each, tokens) for each in chosen[1:]]),
            hooks=self._scheduling.hooks,
        )
        if first.entry_port:
            _enter_by(decision, first.entry_port)
        if len(chosen) > 1:
            self._scheduling.handler.complete(decision, chosen, self.pool.table, tokens)
        self.picked += 1
        if blocks:
            decision.prefix_hit = matched / blocks
            self.prompt_blocks += blocks
            self.matched_blocks += matched
        return decision

    def _scores(self, chosen: Candidates, scheduling: Scheduling) -> Sequence[tuple[str, float]]:
        """Return ("ip:port", sum of the weighted scores) of each candidate that was scored."""
        profile = next(each for each in scheduling.profiles if each.name == chosen.profile)
        total = np.zeros(chosen.rows.size)
        for scores, scorer in zip(chosen.scores, profile.scorers, strict=True):
            total += scores * scorer.weight
        hostports = self.pool.table.hostports
        return [
            (hostports[row], score) for row, score in zip(chosen.rows.tolist(), total.tolist(), strict=True)
        ]

    def _reservation(self, chosen: Candidates, tokens: int) -> Reservation:
        row = int(chosen.rows[chosen.order[0]])
        matched = _matched(chosen) if chosen.prompt_blocks else 0
        reservation = Reservation(
            row, self.pool.table.generation[row], tokens - matched * chosen.block_tokens
        )
        reservation.profile = chosen.profile
        return reservation


def _screened(
    screeners: Sequence[ScreenFn], request: InferenceRequest, rows: Rows, table: EndpointTable
) -> Rows:
    """Return the rows that every screener keeps."""
    kept = rows
    for screen in screeners:
        kept = kept[np.isin(kept, screen(request, rows, table), assume_unique=True)]
    return kept


def _enter_by(decision: Decision, port: int) -> None:
    """Send the request to this port of the endpoint's address, and name the endpoint in a header."""
    decision.headers = ((DATA_PARALLEL_HEADER, decision.endpoint),)
    address = decision.endpoint.rpartition(":")[0]
    decision.destination = decision.endpoint = f"{address}:{port}"


def _is_cached(request: InferenceRequest, chosen: Candidates) -> bool:
    """Tell whether the best candidate is believed to hold the prompt's beginning, or there is no body."""
    return not request.body_bytes or bool(chosen.prompt_blocks and _matched(chosen))


def _matched(chosen: Candidates) -> int:
    """Return how many leading blocks of the prompt the best candidate holds."""
    return int(chosen.prefix_matched.item(chosen.order.item(0)))
