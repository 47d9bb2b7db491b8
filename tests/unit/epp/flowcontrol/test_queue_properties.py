"""Whatever happens to it in whatever order, the queue loses nothing and keeps its promises."""

from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from endpoint_picker.outcomes import Outcome
from flow_pool import Asked, FlowPool

CONCURRENCY = 2
BAND_REQUESTS = 6
CONFIG = f"""
featureGates: [flowControl]
plugins:
- {{type: concurrency-detector, parameters: {{maxConcurrency: {CONCURRENCY}}}}}
- {{type: active-request-scorer}}
- {{type: round-robin-fairness-policy}}
- {{type: token-fairness-policy}}
- {{type: program-aware-fairness}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  trustTenantHeaders: true
  defaultRequestTTL: 8s
  noEndpointRequestTTL: 5s
  maxRequests: 15
  defaultPriorityBand: {{maxRequests: {BAND_REQUESTS}, fairnessPolicyRef: program-aware-fairness}}
  modelLimits: [{{model: small, maxRequests: 1}}]
  priorityBands:
  - {{priority: 10, maxRequests: {BAND_REQUESTS}, fairnessPolicyRef: token-fairness-policy}}
  - {{priority: 0, maxRequests: {BAND_REQUESTS}, fairnessPolicyRef: round-robin-fairness-policy}}
  - {{priority: -5, maxRequests: {BAND_REQUESTS}, maxWait: 6s, minShare: 0.1}}
"""
OBJECTIVES = ["high", "low", "batch", "", "odd"]
PRIORITIES = {"high": 10, "low": 0, "batch": -5, "odd": 3}
SUBSETS = [None, None, None, None, ["10.0.0.1"], ["10.0.0.2:8000", "10.0.0.3"], []]


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = FlowPool(CONFIG, 2, PRIORITIES)
        self.has_moved = False
        """Requests have changed their band, or the configuration was read again."""

    # What happens.

    @rule(
        objective=st.sampled_from(OBJECTIVES),
        tenant=st.sampled_from("abc"),
        subset=st.sampled_from(SUBSETS),
        model=st.sampled_from(["m", "m", "small"]),
        prompt=st.integers(0, 300),
    )
    def arrive(self, objective: str, tenant: str, subset: Any, model: str, prompt: int) -> None:
        pool = self.pool
        asked = pool.ask(
            objective, tenant, size=prompt, prompt=prompt, subset=subset, model=model, settle=False
        )
        if asked.waits and not self.has_moved:
            band = pool.flow.queue.band(asked.request.priority, pool.now)
            assert band.requests <= BAND_REQUESTS
            assert pool.flow.queue.requests <= 15
        pool.settle()

    @precondition(lambda self: any(self.running()))
    @rule(data=st.data(), output=st.integers(0, 500), kind=st.sampled_from(["usage", "none", "error"]))
    def end(self, data: st.DataObject, output: int, kind: str) -> None:
        asked = data.draw(st.sampled_from(self.running()))
        if kind == "usage":
            asked.end(prompt=50, output=output)
        else:
            asked.end(status=500 if kind == "error" else 200)
        self.pool.settle()

    @precondition(lambda self: any(self.waiting()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.waiting())).cancel()
        self.pool.settle()

    @rule(numbers=st.sets(st.integers(1, 4), max_size=3))
    def endpoints(self, numbers: set[int]) -> None:
        self.pool.have(sorted(numbers))
        self.pool.settle()

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0, 9.0]))
    def time(self, seconds: float) -> None:
        self.pool.wait(seconds)

    @rule(high=st.sampled_from([10, 0, -5, 7]), batch=st.sampled_from([-5, 3]))
    def priorities(self, high: int, batch: int) -> None:
        table = {"high": high, "low": 0, "batch": batch}
        entries = ", ".join(f'"{name}": {{"priority": {value}}}' for name, value in table.items())
        self.has_moved = True
        assert self.pool.router.apply_priorities(f'{{"objectives": {{{entries}}}}}')
        self.pool.settle()

    @rule()
    def configuration(self) -> None:
        self.has_moved = True
        self.pool.flow.use(self.pool.flow.settings)
        self.pool.settle()

    @rule(replicas=st.integers(1, 3))
    def replicas(self, replicas: int) -> None:
        self.has_moved = True
        self.pool.router.use_replicas(replicas)
        self.pool.settle()

    # What holds.

    def running(self) -> list[Asked]:
        return [each for each in self.pool.asked if each.is_dispatched and not each.is_over]

    def waiting(self) -> list[Asked]:
        return [each for each in self.pool.asked if each.waits]

    @invariant()
    def gauges_equal_a_recount(self) -> None:
        queue, waiting = self.pool.flow.queue, self.waiting()
        assert queue.requests == len(waiting) == self.pool.router.waiting
        assert queue.bytes == sum(each.request.body_bytes for each in waiting)
        for band in queue.bands:
            inside = [each for each in waiting if each.request.priority == band.priority]
            assert band.requests == len(inside) == len(band.by_age)
            assert band.bytes == sum(each.request.body_bytes for each in inside)
            flows = [flow for flow in band.flows.values() if flow.is_active]
            assert len(band.lanes) == len(flows)
            assert all(flow.live for flow in flows)
        assert self.pool.router.ledger.held == len(self.running())

    @invariant()
    def nothing_is_answered_twice_or_after_its_cancellation(self) -> None:
        for each in self.pool.asked:
            assert len(each.answers) <= (0 if each.is_cancelled else 1)

    @invariant()
    def capacity_is_used_and_never_exceeded(self) -> None:
        router = self.pool.router
        rows = router.table.ready_rows
        is_open = self.pool.flow.queue.opens_at <= self.pool.now
        for each in self.waiting() if is_open else ():
            if each.subset is None and each.request.model == "m" and rows.size:
                flow = self.flow_of(each)
                if flow is None or not flow.is_active:
                    continue  # a request before it in its flow waits for its model
                inflight = router.table.inflight_requests[rows].sum() * self.pool.flow.replicas
                assert inflight >= CONCURRENCY * rows.size
        small = [each for each in self.running() if each.request.model == "small"]
        assert len(small) <= 1

    def flow_of(self, asked: Asked) -> Any:
        return self.pool.flow.queue.band(asked.request.priority, self.pool.now).flows.get(
            self.pool.flow.tenant_of(asked.request)
        )

    @invariant()
    def no_one_waits_longer_than_allowed(self) -> None:
        for each in self.waiting():
            assert self.pool.now - each.arrived_at <= 8.0 + 5.0 + 8.0  # at most, over two flips

    @invariant()
    def flows_keep_their_order(self) -> None:
        if self.has_moved:
            return
        last: dict[tuple[int, str], int] = {}
        for each in self.pool.answered:
            if each.is_dispatched and each.subset is None and each.waiting is not None:
                key = (each.request.priority, self.pool.flow.tenant_of(each.request))
                number = int(each.request.request_id[1:])
                assert last.get(key, -1) < number
                last[key] = number

    @override
    def teardown(self) -> None:
        pool = self.pool
        pool.router.drain()
        pool.settle()
        for each in pool.asked:
            assert each.is_cancelled or len(each.answers) == 1
        late = [each for each in pool.asked if each.answers and not each.is_dispatched]
        assert all(each.refusal.outcome is not Outcome.PICKED for each in late)
        for each in self.running():
            each.end()
        assert pool.router.ledger.held == 0
        queue = pool.flow.queue
        assert (queue.requests, queue.bytes, queue.idle_flows <= 15) == (0, 0, True)


QueueMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestQueue = QueueMachine.TestCase
