"""Flow control of one pool: joins queue, gate and scheduler. Pure: the pool's clock is passed in.

`PoolRouter` asks it instead of the scheduler while flow control is on. A request for which there is room, and
before which none waits, is decided at once. All others queue; `advance` dispatches as many as there is room
for. `wake` has it called after a release, a scrape, an arrival and a change of endpoints, priorities or
configuration.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from typing_extensions import override

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.decision import Decision, Refusal, Resume, Waiting
from endpoint_picker.flowcontrol.evictions import Evictions
from endpoint_picker.flowcontrol.flights import Flight, Victim
from endpoint_picker.flowcontrol.gate import Gate
from endpoint_picker.flowcontrol.queue import Ended, FlowQueue
from endpoint_picker.flowcontrol.queued import Queued
from endpoint_picker.flowcontrol.settings import FlowSettings
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.readers.agent_identity import AGENT_IDENTITY
from endpoint_picker.scheduling.scheduler import Scheduler

#: Headers with the fairness id; the first counts.
FAIRNESS_HEADERS: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
DEFAULT_FLOW: Final = "default-flow"
#: Longest fairness id, in characters; a longer one counts as its beginning.
MAX_ID: Final = 128
#: Seconds between two looks at a queue that nothing has moved: metrics may have become too old meanwhile.
LOOK_AGAIN_S: Final = 0.5
#: Requests dispatched in one call of `advance`, so that the event loop gets its turn.
DISPATCHED_AT_A_TIME: Final = 256

_SHUTTING_DOWN: Final = Refusal(Outcome.SHUTTING_DOWN, "the picker is shutting down", 1)
#: The answer when a plugin fails on a request that goes through the queue.
INTERNAL: Final = Refusal(Outcome.INTERNAL, "the picker failed on this request")

HoldFn = Callable[[InferenceRequest, Sequence[str] | None, Resume, Hold], Decision | Waiting | Refusal]
"""Makes a decision wait for a plugin; `PoolRouter`'s."""


class FlowObserver(Protocol):
    """Follows the requests of the queue; it only counts."""

    def over(self, tenant: str, priority: int, model: str, outcome: Outcome, waited_s: float | None) -> None:
        """Note that a request left the queue, or never entered it: then `waited_s` is None.

        `outcome` is PICKED for a dispatch, whatever the scheduler makes of it.
        """
        ...

    def revoked(self, priority: int) -> None:
        """Note that a request of this priority was taken back from its server."""
        ...


class FlowControl:
    """The flow control of one pool."""

    __slots__ = (
        "_cancel",
        "_decisions",
        "_evictions",
        "_hold",
        "_is_draining",
        "_on_fault",
        "_refused",
        "_scheduler",
        "_settings",
        "_waited",
        "_wake",
        "gate",
        "observer",
        "queue",
        "replicas",
    )

    def __init__(
        self,
        settings: FlowSettings,
        scheduler: Scheduler,
        *,
        hold: HoldFn,
        wake: Callable[[], None],
        refused: Callable[[InferenceRequest, Refusal, bool], None],
        on_fault: Callable[[Exception], None],
        observer: FlowObserver | None,
        waited: Callable[[Queued, float], None] = lambda _queued, _waited_s: None,
    ) -> None:
        """`waited(queued, seconds)` is called with each request that leaves the queue with an answer.

        `refused(request, refusal, waited)` is called with each refusal that the scheduler did not make.
        """
        self._scheduler = scheduler
        self._hold = hold
        self._wake = wake
        self._refused = refused
        self._waited = waited
        self._on_fault = on_fault
        self.observer = observer
        self._decisions: dict[Decision, Flight] = {}
        """The flights of the decisions that have not ended."""
        self._evictions = Evictions(scheduler.pool.table)
        self._is_draining = False
        self._cancel = self.cancel  # bound once: each queued request keeps it
        self.replicas = 1
        """Ready pickers of the pool; limits are divided by it."""
        self._settings = settings
        now = scheduler.pool.clock()
        self.gate = Gate(scheduler.pool, settings)
        self.queue = FlowQueue(settings, self.gate, now)
        self.queue.provide(scheduler.objectives.priorities.values(), now)

    @property
    def now(self) -> float:
        """Return the time of the pool's clock."""
        return self._scheduler.pool.clock()

    def look(self) -> None:
        """Bring the gate's figures up to now, for a reader."""
        self.gate.saturation(self.now)

    @property
    def settings(self) -> FlowSettings:
        """Return the settings in use, those of the whole pool."""
        return self._settings

    # Arrival.

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        """Dispatch at once when there is room and nothing waits, else queue or refuse."""
        scheduler = self._scheduler
        now = scheduler.pool.clock()
        try:
            scheduler.read(request)
        except Exception as fault:  # third-party plugins raise anything
            self._on_fault(fault)
            return self._not_queued(request, INTERNAL)
        scheduler.rank(request)
        if self._is_draining:
            return self._not_queued(request, _SHUTTING_DOWN)
        tenant = self.tenant_of(request)
        tokens = (request.prompt_bytes or len(request.prompt)) // BYTES_PER_TOKEN
        # What may be taken back goes through the queue: only an answer that waited can be taken back.
        takes_back = self._settings.evicts and request.priority < 0
        if not self.queue.requests and not takes_back and self._may_pass(request, subset, now):
            flight = self.queue.direct(request, tenant, tokens, now)
            if self.observer is not None:
                self.observer.over(tenant, request.priority, request.model, Outcome.PICKED, None)
            return self._dispatch(request, subset, resume, flight, None)
        try:
            entered = self.queue.enter(
                request, subset, resume, self._cancel, tenant=tenant, tokens=tokens, now=now
            )
        except Exception as fault:  # third-party policies raise anything
            self._on_fault(fault)
            return self._not_queued(request, INTERNAL)
        self._wake()  # it may have taken another's place, and its wait ends some time
        if isinstance(entered, Refusal):
            return self._not_queued(request, entered)
        return entered

    def tenant_of(self, request: InferenceRequest) -> str:
        """Return the fairness id of a request: a trusted header's, or its agent's, or the default."""
        if not self._settings.trust_tenant_headers:
            return DEFAULT_FLOW
        for name in FAIRNESS_HEADERS:
            if found := request.headers.get(name):
                return found[:MAX_ID]
        return request.attributes.get(AGENT_IDENTITY, DEFAULT_FLOW)[:MAX_ID]

    def _may_pass(self, request: InferenceRequest, subset: Sequence[str] | None, now: float) -> bool:
        gate, queue = self.gate, self.queue
        if queue.is_pool_empty or (subset is not None and not gate.may_serve(subset)):
            return False
        if self._settings.model_limits and not gate.model_has_room(request.model):
            return False
        return gate.below(queue.ceiling(request.priority, now), now)

    def _not_queued(self, request: InferenceRequest, refusal: Refusal) -> Refusal:
        self._refused(request, refusal, False)
        if self.observer is not None:
            tenant = self.tenant_of(request)
            self.observer.over(tenant, request.priority, request.model, refusal.outcome, None)
        return refusal

    # Dispatch.

    def advance(self, now: float) -> float | None:
        """Answer the waits that are over and dispatch what there is room for; return when to call again."""
        ended, due = self.queue.advance(now)
        self._answer(ended, now)
        sent = self._send(now)
        if self._settings.evicts:
            while sent < DISPATCHED_AT_A_TIME and self._evict(now):
                more = self._send(now)
                sent += more
                if more:
                    self._evictions.used()
        if sent >= DISPATCHED_AT_A_TIME:
            return now
        if not self.queue.requests:
            return None
        again = now + LOOK_AGAIN_S
        return again if due is None else min(due, again)

    def _send(self, now: float) -> int:
        """Dispatch what there is room for; return how many left the queue."""
        queue, sent = self.queue, 0
        while sent < DISPATCHED_AT_A_TIME:
            try:
                taken = queue.next(now)
            except Exception as fault:  # third-party policies raise anything
                self._on_fault(fault)
                first = queue.first(now)
                if first is None:
                    break
                self._answer([(first, INTERNAL)], now)
                sent += 1
                continue
            if taken is None:
                break
            queued, flight = taken
            sent += 1
            if self._settings.evicts and queued.priority < 0 and not flight.is_promised:
                flight.victim = Victim(queued.request, queued.resume)
            self._waited(queued, now - queued.enqueued_at)
            if self.observer is not None:
                waited = now - queued.enqueued_at
                self.observer.over(queued.tenant, queued.priority, flight.model, Outcome.PICKED, waited)
            answer = self._dispatch(queued.request, queued.subset, queued.resume, flight, queued)
            if isinstance(answer, Waiting):
                queued.dispatched_to(answer)
            else:
                self._resume(queued, answer)
        return sent

    def _evict(self, now: float) -> bool:
        """Take one request back from its server for one that waits; return whether that was done."""
        band, evictions = self.queue.held_back(now), self._evictions
        if band is None or not evictions.may(now, reads_metrics=self._settings.detector.reads_metrics):
            return False
        while (taken := evictions.take(band.priority)) is not None:
            decision, flight = taken
            if flight.victim is None:
                continue
            text = "the request was taken back from its server for a more important one"
            refusal = Refusal(Outcome.EVICTED, text, self.queue.retry_after(flight.band, now))
            try:
                flight.victim.resume(refusal)
            except Exception as fault:
                self._on_fault(fault)
            if decision in self._decisions:
                continue  # its answer has begun
            evictions.ended(decision, now)
            self._refused(flight.victim.request, refusal, True)
            if self.observer is not None:
                self.observer.revoked(flight.band.priority)
            return True
        return False

    def _dispatch(
        self,
        request: InferenceRequest,
        subset: Sequence[str] | None,
        resume: Resume,
        flight: Flight,
        queued: Queued | None,
    ) -> Decision | Refusal | Waiting:
        try:
            if queued is not None:
                queued.restore()
            answer = self._scheduler.decide(request, subset, admitted=True)
        except Exception as fault:  # third-party plugins raise anything
            self._on_fault(fault)
            self._refused(request, INTERNAL, queued is not None)
            answer = INTERNAL
        if isinstance(answer, Hold):
            held = _Held(self, flight, resume, queued)
            waiting = self._hold(request, subset, held.resume, answer)
            if not isinstance(waiting, Waiting):
                self.settle(waiting, flight)
                return waiting
            held.waiting = waiting
            self.gate.pending += 1
            self.gate.sent()
            return held
        self.settle(answer, flight)
        return answer

    def settle(self, answer: Decision | Refusal, flight: Flight) -> None:
        """Keep the flight of a decision until its end; forget that of a refusal."""
        if isinstance(answer, Decision):
            self._decisions[answer] = flight
            if flight.victim is not None:
                self._evictions.add(answer, flight)
            self.gate.sent()
        else:
            self.forget(flight)

    def forget(self, flight: Flight) -> None:
        """Count a request no longer that reached no endpoint."""
        self.queue.over(flight, 0, 0.0, self._scheduler.pool.clock())

    def _resume(self, queued: Queued, answer: Decision | Refusal) -> None:
        if queued.is_over:  # an earlier answer led to its cancellation
            if isinstance(answer, Decision):
                self._scheduler.ended(answer, Record(self._scheduler.pool.clock()))
            return
        queued.is_over = True
        try:
            queued.resume(answer)
        except Exception as fault:
            self._on_fault(fault)
            if isinstance(answer, Decision):
                self._scheduler.ended(answer, Record(self._scheduler.pool.clock()))

    def _answer(self, ended: Sequence[Ended], now: float) -> None:
        for queued, refusal in ended:
            if queued.is_over:
                continue
            self._waited(queued, now - queued.enqueued_at)
            self._refused(queued.request, refusal, True)
            if self.observer is not None:
                waited = now - queued.enqueued_at
                self.observer.over(
                    queued.tenant, queued.priority, queued.request.model, refusal.outcome, waited
                )
            self._resume(queued, refusal)

    # End.

    def cancel(self, queued: Queued) -> None:
        """Give a request up, queued or dispatched to a plugin that waits."""
        if queued.is_over:
            return
        queued.is_over = True
        if queued.is_dispatched:
            if queued.successor is not None:
                queued.successor.cancel()
            return
        now = self._scheduler.pool.clock()
        self.queue.remove(queued, now)
        if self.observer is not None:
            model, waited = queued.request.model, now - queued.enqueued_at
            self.observer.over(queued.tenant, queued.priority, model, Outcome.CANCELLED, waited)
        if self.queue.requests:
            self._wake()

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note that the prompt was computed; its tokens are free again."""
        flight = self._decisions.get(decision)
        if flight is not None:
            flight.answered = True
            if flight.victim is not None:
                self._evictions.discard(decision, flight)
            if self.queue.requests:
                self._wake()

    def ended(self, decision: Decision, record: Record) -> None:
        """Note the end of a dispatched request and correct what its tenant was charged."""
        flight = self._decisions.pop(decision, None)
        if flight is None:
            return
        if flight.victim is not None:
            self._evictions.discard(decision, flight)
        ledger = self._scheduler.pool.ledger
        for reservation in decision.reservations:
            ledger.freed(reservation)
        usage, now = record.usage, self._scheduler.pool.clock()
        if usage is not None and (usage.input_tokens or usage.output_tokens):
            self.queue.over(flight, usage.input_tokens, usage.output_tokens, now)
        elif flight.answered and record.response_status < 400:
            self.queue.over(flight, flight.prompt_tokens, flight.answer_tokens, now)
        else:
            self.queue.over(flight, flight.prompt_tokens if flight.answered else 0, 0.0, now)
        if self.queue.requests:
            self._wake()

    # Changes around it.

    def changed(self) -> None:
        """Note new metrics."""
        if self.queue.requests:
            self._wake()

    def endpoints_changed(self) -> None:
        """Note that endpoints came or went."""
        now = self._scheduler.pool.clock()
        self.gate.saturation(now)  # from here on the gate knows them
        self.queue.endpoints_changed(now)
        self._wake()

    def priorities_changed(self) -> None:
        """Note another priority table; it holds for the queued requests, too."""
        now = self._scheduler.pool.clock()
        self.queue.reprioritise(self._scheduler.objectives.priority_of, now)
        self.queue.provide(self._scheduler.objectives.priorities.values(), now)
        self._wake()

    def use(self, settings: FlowSettings) -> None:
        """Go on by other settings, with the same requests."""
        self._settings = settings
        now = self._scheduler.pool.clock()
        earlier = self.queue
        self._answer(earlier.displaced(), now)
        waiting = earlier.everything(now)
        shared = settings.shared_by(self.replicas)
        self.gate.use(shared)
        self.gate.replicas = self.replicas
        self.queue = FlowQueue(shared, self.gate, now)
        self.queue.follow(earlier)
        self.queue.provide(self._scheduler.objectives.priorities.values(), now)
        self.queue.take_over(waiting, now)
        self._wake()

    def shared_by(self, replicas: int) -> None:
        """Divide the limits by the number of ready pickers."""
        replicas = max(1, replicas)
        if replicas != self.replicas:
            self.replicas = replicas
            self.use(self._settings)

    def drain(self) -> None:
        """Refuse the queued requests and, from now on, every other."""
        self._is_draining = True
        now = self._scheduler.pool.clock()
        self._answer(self.queue.displaced(), now)
        self._answer([(each, _SHUTTING_DOWN) for each in self.queue.everything(now)], now)

    def give_back(self) -> Iterator[Queued]:
        """Yield the queued requests, which the caller decides on or refuses: flow control is switched off."""
        now = self._scheduler.pool.clock()
        self._answer(self.queue.displaced(), now)
        for queued in self.queue.everything(now):
            if not queued.is_over:
                queued.is_over = True
                yield queued


class _Held(Waiting):
    """A dispatched request whose decision a plugin makes wait."""

    __slots__ = ("_control", "_flight", "_is_over", "_queued", "_resume", "waiting")

    def __init__(self, control: FlowControl, flight: Flight, resume: Resume, queued: Queued | None) -> None:
        self._control = control
        self._flight = flight
        self._resume = resume
        self._queued = queued
        self._is_over = False
        self.waiting: Waiting | None = None

    def resume(self, answer: Decision | Refusal) -> None:
        """Pass the answer on."""
        self._end()
        self._control.settle(answer, self._flight)
        if self._queued is not None:
            self._queued.is_over = True
        self._resume(answer)

    @override
    def cancel(self) -> None:
        """Give the request up."""
        if not self._is_over:
            self._end()
            self._control.forget(self._flight)
            if self.waiting is not None:
                self.waiting.cancel()

    def _end(self) -> None:
        self._is_over = True
        self._control.gate.pending -= 1
