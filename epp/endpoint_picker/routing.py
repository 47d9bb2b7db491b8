"""A pool's router: joins the scheduler, the live configuration and the waiting decisions. Starts no timer.

Discovery and scraping write its table. Exchanges call `decide`, `first_byte` and `ended`. In a process
`WaitingTimer` calls `advance`; a simulation calls it by its own clock.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from endpoint_picker.config.live import LiveConfig
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import BodyReading, Decision, Refusal, Resume, Waiting
from endpoint_picker.faults import FaultLog
from endpoint_picker.flowcontrol.control import INTERNAL, FlowControl, FlowObserver
from endpoint_picker.flowcontrol.queued import Queued
from endpoint_picker.flowcontrol.settings import FlowSettings
from endpoint_picker.flowcontrol.waiting import Released, WaitingRoom
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.observability.explain import Pausing
from endpoint_picker.observability.queue_page import queue_page
from endpoint_picker.observability.state_page import prediction_of, state_page
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.rewrites import Rewrites
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Pool, RandomSource
from endpoint_picker.scheduling.scheduler import Scheduler
from inference_api.offered import Offered
from inference_api.prediction_report import PredictionReport

#: Shortest pause, in seconds, before `advance` is due again. Without it a plugin that is always due would
#: keep the event loop busy.
AGAIN_S: Final = 0.001
#: Holds in a row of a decision that may not wait; then it is refused.
MOST_HOLDS: Final = 4

_HELD_AGAIN: Final = Refusal(Outcome.OVERLOADED, "the picker cannot hold the request")

_LOG: Final = logging.getLogger(__name__)


class PoolRouter:
    """A `decision.Router` for one pool. All methods are for one thread, the event loop's."""

    __slots__ = (
        "_clock",
        "_faults",
        "_flow_observer",
        "_listeners",
        "_reading",
        "_replicas",
        "_rewrites",
        "_room",
        "decisions",
        "ended",
        "first_byte",
        "flow",
        "index",
        "ledger",
        "live",
        "pool",
        "response_complete",
        "response_headers",
        "scheduler",
        "table",
        "wake_at",
    )

    def __init__(self, registry: Registry, *, clock: Callable[[], float], rng: RandomSource) -> None:
        self._clock = clock
        self._faults = FaultLog(_LOG, "a plugin failed")
        self._listeners: list[Callable[[], None]] = []
        self._rewrites: Rewrites | None = None
        self._room = WaitingRoom(self._note_fault)
        self.wake_at: Callable[[float], None] = lambda _due: None
        """Requests a call of `advance` at a time of the clock; the earliest requested time counts."""
        self.pool = Pool(clock=clock)
        self.pool.wake = self._wake
        self.flow: FlowControl | None = None
        """None while flow control is off."""
        self._flow_observer: FlowObserver | None = None
        self._replicas = 1
        self.table, self.ledger, self.index = self.pool.table, self.pool.ledger, self.pool.index
        self.live = LiveConfig(registry, self._use)
        self.decisions = Decisions(self.table, clock)
        self.scheduler = Scheduler(
            self.pool, self.live.config.scheduling, rng, self.decisions, self._note_fault
        )
        # Bound here, so that these two calls of the Router protocol cost no further frame.
        self.first_byte = self.scheduler.first_byte
        self.ended = self.scheduler.ended
        self.response_headers = self.scheduler.response_headers
        self.response_complete = self.scheduler.response_complete
        self._room.use(self.live.config.scheduling.waiters)
        self._reading = self.live.config.reading

    # The Router protocol.

    def reading(self) -> BodyReading:
        """Return which bodies are read."""
        return self._reading

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        """Pick an endpoint and reserve it, say why not, or put the decision off; a refusal is shared."""
        if self.flow is not None:
            return self.flow.decide(request, subset, resume)
        answer = self.scheduler.decide(request, subset)
        return self._wait(request, subset, resume, answer) if isinstance(answer, Hold) else answer

    def unrouted(self, request: InferenceRequest, refusal: Refusal) -> None:
        """Note a request that was refused without a call of `decide`."""
        self.decisions.unscheduled(request, refusal, waited=False)

    def failed(self, request_id: str, status: int) -> None:
        """Note the status of a model server's error, for the explanation."""
        self.decisions.note_failure(request_id, status)

    # Waiting decisions.

    @property
    def waiting(self) -> int:
        """Return how many decisions wait, for a plugin or in the queue."""
        return len(self._room) + (0 if self.flow is None else self.flow.queue.requests)

    def advance(self) -> float | None:
        """Answer the decisions whose wait is over; return when to call again, None: when `wake_at` asks."""
        released, due = self._room.advance(self._clock())
        self._answer(released)
        if self.flow is not None:
            again = self.flow.advance(self._clock())
            if again is not None and (due is None or again < due):
                due = again
        return None if due is None else max(self._clock() + AGAIN_S, due)

    def drain(self) -> None:
        """Refuse the waiting decisions and, from now on, every decision that would wait.

        With flow control, from now on every decision.
        """
        if self.flow is not None:
            self.flow.drain()
        self._answer(self._room.drain())

    def _wait(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume, hold: Hold
    ) -> Decision | Refusal | Waiting:
        for _ in range(MOST_HOLDS):
            waiting = self._room.add(request, subset, resume, hold)
            if waiting is None:
                answer = self.scheduler.decide(request, subset, hold, admitted=self.flow is not None)
                if not isinstance(answer, Hold):
                    return answer
                hold = answer
                continue
            if isinstance(waiting, Refusal):
                self.decisions.unscheduled(request, waiting, waited=False)
            # Have `advance` called now: it returns when the hold's plugin is due next.
            self._wake()
            return waiting
        return self._held_for_ever(request, waited=False)

    def _answer(self, released: Iterable[Released]) -> None:
        for each in released:
            decision = each.decision
            if decision.is_over:  # an earlier answer in this loop led to its cancellation
                continue
            try:
                answer = self._answer_of(each)
            except Exception as fault:  # third-party plugins raise anything
                self._note_fault(fault)
                answer = decision.hold.refusal or _HELD_AGAIN
            if answer is None:
                continue
            decision.is_over = True
            try:
                decision.resume(answer)
            except Exception as fault:
                self._note_fault(fault)
                if isinstance(answer, Decision):
                    self.scheduler.ended(answer, Record(self._clock()))

    def _answer_of(self, released: Released) -> Decision | Refusal | None:
        """Return the answer to a decision whose wait is over; None when it waits again."""
        decision = released.decision
        if released.refusal is not None:
            self.decisions.unscheduled(decision.request, released.refusal, waited=True)
            return released.refusal
        hold = decision.hold
        for _ in range(MOST_HOLDS):
            answer = self.scheduler.decide(
                decision.request, decision.subset, hold, admitted=self.flow is not None
            )
            if not isinstance(answer, Hold):
                return answer
            # A plugin that releases this hold at once must not keep the event loop busy.
            self.wake_at(self._clock() + AGAIN_S)
            waiting = self._room.again(decision, answer)
            if waiting is decision:
                return None
            if isinstance(waiting, Refusal):
                self.decisions.unscheduled(decision.request, waiting, waited=True)
                return waiting
            hold = answer
        return self._held_for_ever(decision.request, waited=True)

    def _held_for_ever(self, request: InferenceRequest, *, waited: bool) -> Refusal:
        """Refuse a decision that its plugins hold again although it may not wait."""
        self._note_fault(ValueError("a plugin held a decision again that may not wait"))
        self.decisions.unscheduled(request, _HELD_AGAIN, waited=waited)
        return _HELD_AGAIN

    def _wake(self) -> None:
        self.wake_at(self._clock())

    # Input: endpoints and texts.

    def replace_endpoints(self, endpoints: Iterable[Endpoint]) -> bool:
        """Make these the pool's endpoints, at once; return whether anything changed."""
        changed = self.table.replace(endpoints)
        if changed:
            for listener in self._listeners:
                listener()
            if self.flow is not None:
                self.flow.endpoints_changed()
            self._answer(self._room.endpoints_changed(self._may_be_served))
        return changed

    def _may_be_served(self, subset: Sequence[str] | None) -> bool:
        return bool((self.table.ready_rows if subset is None else self.table.rows_of(subset)).size)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener()` after every change of the endpoints or their readiness. It must not raise."""
        self._listeners.append(listener)

    def apply_config(self, text: str) -> bool:
        """Take a configuration into use between two requests; blank is the default one.

        Return whether it is used. A faulty one changes only `config_error`, which names fault and path.
        """
        return self.live.apply_config(text)

    def apply_priorities(self, text: str) -> bool:
        """Take a priority table (JSON) into use; a faulty one changes only `priorities_error`."""
        used = self.live.apply_priorities(text)
        self.scheduler.use_objectives(self.live.objectives)
        rules, rng = self.live.table.rewrites, self.pool.rng
        self._rewrites = Rewrites(rules, lambda: float(rng.random(1)[0])) if rules else None
        self._reading = replace(self.live.config.reading, rewrites=self._rewrites)
        if self.flow is not None:
            self.flow.priorities_changed()
        return used

    def page_read(self) -> None:
        """Note that the metrics of an endpoint were read: the queue may move."""
        if self.flow is not None:
            self.flow.changed()

    def observe_flow(self, observer: FlowObserver) -> None:
        """Have an observer follow the queue from now on, whenever there is one."""
        self._flow_observer = observer
        if self.flow is not None:
            self.flow.observer = observer

    def use_replicas(self, ready: int) -> None:
        """Divide the limits of the pool's flow control by the number of ready pickers."""
        self._replicas = max(1, ready)
        if self.flow is not None:
            self.flow.shared_by(self._replicas)

    def _use(self, config: PickerConfig) -> None:
        try:
            self.scheduler.use(config.scheduling)
        except Exception as error:  # third-party plugins raise anything
            self.scheduler.use(self.live.config.scheduling)
            raise ConfigError("plugins", f"one cannot be taken into use: {error}") from error
        self._reading = replace(config.reading, rewrites=self._rewrites)
        self._use_flow(config.flow)
        self._answer(self._room.use(config.scheduling.waiters))

    def _use_flow(self, settings: FlowSettings | None) -> None:
        """Switch flow control on, over to other settings, or off; queued requests stay, or are decided on."""
        flow = self.flow
        if settings is None:
            self.flow = None
            if flow is not None:
                for queued in flow.give_back():
                    self._decide_late(queued)
            return
        if flow is None:
            flow = self.flow = FlowControl(
                settings,
                self.scheduler,
                hold=self._wait,
                wake=self._wake,
                refused=self._note_refusal,
                on_fault=self._note_fault,
                observer=self._flow_observer,
                waited=self._note_wait,
            )
            flow.shared_by(self._replicas)
            if self._room.is_draining:
                flow.drain()
        else:
            flow.use(settings)
        hooks = self.scheduler.scheduling.hooks
        added = replace(
            hooks, first_byte=(*hooks.first_byte, flow.first_byte), ended=(*hooks.ended, flow.ended)
        )
        self.scheduler.follow(added)

    def _decide_late(self, queued: Queued) -> None:
        """Decide on a request of a queue that is no more."""
        try:
            queued.restore()
            answer = self.scheduler.decide(queued.request, queued.subset)
            if isinstance(answer, Hold):
                waiting = self._wait(queued.request, queued.subset, queued.resume, answer)
                if isinstance(waiting, Waiting):
                    queued.dispatched_to(waiting)
                    return
                answer = waiting
        except Exception as fault:  # third-party plugins raise anything
            self._note_fault(fault)
            answer = INTERNAL
        queued.resume(answer)

    def _note_wait(self, queued: Queued, waited_s: float) -> None:
        wait = (waited_s, queued.position, queued.priority, queued.tenant)
        self.decisions.note_wait(queued.request.request_id, wait)

    def _note_refusal(self, request: InferenceRequest, refusal: Refusal, waited: bool) -> None:
        self.decisions.unscheduled(request, refusal, waited=waited)

    # Output: state.

    @property
    def config(self) -> PickerConfig:
        """Return the configuration in use."""
        return self.live.config

    @property
    def prediction(self) -> PredictionReport | None:
        """Return the state of prediction for the operator; None while it is not configured."""
        page = prediction_of(self.scheduler, self.live)
        return PredictionReport.model_validate(page) if page["enabled"] else None

    @property
    def offered(self) -> Offered:
        """Return the verdicts on the configuration and the priorities offered last."""
        return self.live.offered

    @property
    def config_error(self) -> str:
        """Return what is wrong with the configuration offered last; "" when it is the one in use."""
        return self.live.offered.config.error

    @property
    def priorities_error(self) -> str:
        """Return what is wrong with the priorities offered last; "" when they are those in use."""
        return self.live.offered.priorities.error

    def ready_addresses(self) -> tuple[str, ...]:
        """Return "ip:port" of every ready endpoint, in row order."""
        return tuple(self.table.hostports[row] for row in self.table.ready_rows.tolist())

    def state(self) -> dict[str, Any]:
        """Return the whole state as JSON values, for /debug/state. Too slow for the hot path."""
        return state_page(self.scheduler, self.live, self.decisions.prefix_hits())

    def queue_page(self) -> Pausing:
        """Begin the page /debug/queue, made in steps between which requests may be served."""
        return queue_page(self.flow)

    def _note_fault(self, fault: Exception) -> None:
        self._faults.note(fault, self._clock())


def build_router(
    *,
    config_text: str = "",
    priorities_text: str = "",
    clock: Callable[[], float] = time.monotonic,
    rng: RandomSource | None = None,
    registry: Registry | None = None,
) -> PoolRouter:
    """Return a router without endpoints.

    Faulty texts do not raise: the defaults are used, and `config_error` or `priorities_error` says why, so
    that a picker starts, serves and reports instead of crashing in a loop. `clock` is monotonic, in seconds.
    """
    registry = registry or Registry.installed()
    _rehearse(registry)
    router = PoolRouter(registry, clock=clock, rng=rng or np.random.default_rng())
    router.apply_config(config_text)
    router.apply_priorities(priorities_text)
    return router


def _rehearse(registry: Registry) -> None:
    """Make throw-away decisions, so that numpy's set-up cost does not fall on the first request."""
    router = PoolRouter(registry, clock=time.monotonic, rng=np.random.default_rng(0))
    router.replace_endpoints([Endpoint(name, "", "127.0.0.1", port) for name, port in (("a", 1), ("b", 2))])
    router.table.waiting[0] = router.table.running[0] = router.table.kv_usage[0] = 0.0
    prompt = bytes(2 * router.index.block_tokens * BYTES_PER_TOKEN)
    for _ in range(2):
        router.scheduler.decide(InferenceRequest(request_id="", prompt=prompt), None)
