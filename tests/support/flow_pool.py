"""A router with flow control on a virtual clock, and its requests, for tests of the queue."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal, Waiting
from endpoint_picker.flowcontrol.control import FAIRNESS_HEADERS, FlowControl
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter
from endpoint_picker.scheduling.objectives import Objectives
from ext_proc.body.usage import Usage

REGISTRY = Registry.installed()

#: Two requests an endpoint; ids of tenants are trusted.
CONFIG = """
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
- {type: active-request-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  trustTenantHeaders: true
"""


class Asked:
    """One request, and what became of it."""

    def __init__(self, pool: "FlowPool", request: InferenceRequest, subset: Sequence[str] | None) -> None:
        self.pool = pool
        self.request = request
        self.subset = subset
        self.answers: list[Decision | Refusal] = []
        self.waiting: Waiting | None = None
        self.is_cancelled = False
        self.is_over = False
        self.has_begun = False
        """Its response's headers have come."""
        self.evicted: Refusal | None = None
        self.arrived_at = pool.now
        self.answered_at = 0.0

    def answer(self, answer: Decision | Refusal) -> None:
        if self.is_dispatched:
            assert isinstance(answer, Refusal)
            if not self.is_over and not self.has_begun:
                self.evicted = answer
                self.end(status=0)
            return
        self.answers.append(answer)
        self.answered_at = self.pool.now
        self.pool.answered.append(self)

    @property
    def decision(self) -> Decision:
        (answer,) = self.answers
        assert isinstance(answer, Decision)
        return answer

    @property
    def refusal(self) -> Refusal:
        (answer,) = self.answers
        assert isinstance(answer, Refusal)
        return answer

    @property
    def is_dispatched(self) -> bool:
        return bool(self.answers) and isinstance(self.answers[0], Decision)

    @property
    def waits(self) -> bool:
        return not self.answers and not self.is_cancelled

    def cancel(self) -> None:
        assert self.waiting is not None
        self.is_cancelled = True
        self.waiting.cancel()

    def end(self, *, prompt: int = 0, output: int = 0, status: int = 200) -> None:
        """End the dispatched request with this usage."""
        record = Record(self.arrived_at)
        record.response_status = status
        if prompt or output:
            record.usage = Usage(prompt, output, 0)
        self.is_over = True
        self.pool.router.ended(self.decision, record)


class FlowPool:
    """A pool on a virtual clock. Endpoints are numbered; number n has the address 10.0.0.n."""

    def __init__(
        self, config: str = CONFIG, endpoints: int = 1, priorities: Mapping[str, int] | None = None
    ) -> None:
        self.now = 100.0
        self.due: float | None = None
        self.answered: list[Asked] = []
        self.router = PoolRouter(REGISTRY, clock=lambda: self.now, rng=np.random.default_rng(1))
        self.router.wake_at = self.wake_at
        assert self.router.apply_config(config), self.router.config_error
        self.router.scheduler.use_objectives(Objectives(dict(priorities or {})))
        self.asked: list[Asked] = []
        self.have(range(1, endpoints + 1))
        self.settle()

    @property
    def flow(self) -> FlowControl:
        assert self.router.flow is not None
        return self.router.flow

    def wake_at(self, due: float) -> None:
        self.due = due if self.due is None else min(self.due, due)

    def settle(self) -> None:
        """Have the router advanced as often as it asks for at the present time."""
        for _ in range(1000):
            if self.due is None or self.due > self.now:
                return
            self.due = None
            again = self.router.advance()
            if again is not None and again > self.now + 0.0011:
                self.wake_at(again)
            elif again is not None:
                self.wake_at(self.now)
        raise AssertionError("the router is always due")

    def wait(self, seconds: float) -> None:
        """Let time pass; the router is advanced whenever it is due."""
        end = self.now + seconds
        while self.due is not None and self.due <= end:
            self.now = max(self.now, self.due)
            self.settle()
        self.now = end
        self.settle()

    def have(self, numbers: Iterable[int], **more: Any) -> None:
        """Make these the pool's endpoints."""
        self.router.replace_endpoints(
            Endpoint(f"p{number}", "default", f"10.0.0.{number}", 8000, **more) for number in numbers
        )

    def ask(
        self,
        objective: str = "",
        tenant: str = "",
        *,
        size: int = 100,
        prompt: int = 0,
        subset: Sequence[str] | None = None,
        model: str = "m",
        headers: Mapping[str, str] | None = None,
        settle: bool = True,
    ) -> Asked:
        """Send a request; `prompt` is its length in tokens."""
        found = dict(headers or {})
        if tenant:
            found[FAIRNESS_HEADERS[0]] = tenant
        request = InferenceRequest(
            request_id=f"r{len(self.asked)}",
            model=model,
            objective=objective,
            prompt=bytes(4 * prompt),
            body_bytes=size,
            headers=found,
        )
        asked = Asked(self, request, subset)
        self.asked.append(asked)
        answer = self.router.decide(request, subset, asked.answer)
        if isinstance(answer, Waiting):
            asked.waiting = answer
        else:
            asked.answer(answer)
        if settle:
            self.settle()
        return asked
