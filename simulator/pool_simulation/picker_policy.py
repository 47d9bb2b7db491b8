"""The picker's own router as a policy: real configuration, table, ledger, prefix index and scorers.

Only the clock, the randomness and the source of the scraped values are the simulation's.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from typing_extensions import override

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.decision import Decision, Refusal, Waiting
from endpoint_picker.latency.link import Link
from endpoint_picker.latency.objectives import TPOT_HEADERS, TTFT_HEADERS
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest, Tokens
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.handlers.disaggregated import PREFILL_HEADER
from endpoint_picker.scheduling.objectives import Objectives
from endpoint_picker.scheduling.plugin import Plugin
from ext_proc.body.usage import Usage
from ext_proc.processor import Ending
from latency_contract.sample_wire import SampleBatch
from latency_contract.states import State
from pool_simulation.kv_events import EngineEvents
from pool_simulation.policy import Pick, Policy, Refused, Resume, Surroundings
from pool_simulation.prompts import prompt_bytes
from pool_simulation.scrapes import Scrapes, ScrapeTiming, keep_scraping
from pool_simulation.workload import SimulatedRequest

FAIRNESS_HEADER: Final = "x-llm-d-inference-fairness-id"
#: Bytes of a body beside its prompt.
_BODY_BYTES: Final = 200
#: Virtual seconds between two batches of samples.
LEARN_S: Final = 1.0


class SimulatedPredictor(Link, Protocol):
    """A prediction server of a run, and what the run tells it."""

    def asking(self, request: SimulatedRequest, router: PoolRouter) -> None:
        """Note the request that is decided on next."""
        ...

    def picked(self, request: SimulatedRequest, server: int) -> None:
        """Note where a request goes."""
        ...

    def answering(self, request: SimulatedRequest, server: int) -> None:
        """Note a first token."""
        ...

    def ended(self, request: SimulatedRequest) -> None:
        """Note the end of a request."""
        ...

    def learn(self, batch: SampleBatch) -> None:
        """Take what the picker would send to the trainer."""
        ...


class PolicyRequest(InferenceRequest):
    """A request with the simulation's own, for plugins that know more than a picker could."""

    __slots__ = ("simulated",)
    simulated: SimulatedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSettings:
    """A picker in a simulation."""

    config: str = ""
    """Text of an EndpointPickerConfig; blank is the default one."""
    scrape: ScrapeTiming = field(default_factory=ScrapeTiming)
    counts_own_requests: bool = True
    """False hides from the scorers what was sent since the last scrape: every decision then sees a page as
    old as the last scrape, as in a picker without a ledger."""
    expires_metrics: bool = True
    """False keeps using the last values of a server whose pages no longer come."""
    kv_events_s: float | None = None
    """Seconds between an engine's KV events and the picker's knowledge of them; None: it does not follow."""
    predictor: Callable[[Surroundings], SimulatedPredictor] | None = None
    """Makes the prediction server of a run; None: the picker knows none."""
    sends_objectives: bool = False
    """Requests have their SLOs in headers."""
    plugins: Mapping[str, Callable[[Surroundings], type[Plugin]]] = field(default_factory=dict)
    """Further plugin types by name, each made for the surroundings of a run."""


class _RunRegistry(Registry):
    """A registry, and plugin types that exist for one run only."""

    __slots__ = ("_own", "_registry")

    def __init__(self, registry: Registry, own: Mapping[str, type[Plugin]]) -> None:
        super().__init__({})
        self._registry = registry
        self._own = own

    @override
    def find(self, type_name: str, path: str) -> type[Plugin]:
        return self._own.get(type_name) or self._registry.find(type_name, path)


class _Columns(ScrapeColumns):
    """Scrape columns whose values never expire."""

    __slots__ = ()

    @override
    def expire(self, now: float) -> None:
        pass


class _Held:
    """What the policy keeps for one pick."""

    __slots__ = ("decision", "record", "request", "router")

    def __init__(
        self, router: PoolRouter, decision: Decision, record: Record, request: SimulatedRequest
    ) -> None:
        self.request = request
        self.router = router
        self.decision = decision
        self.record = record


class PickerPolicy(Policy):
    """Decides as a picker with these settings would. While it restarts, servers take turns (FailOpen).

    Raises ValueError when the configuration is refused.
    """

    def __init__(self, settings: PickerSettings, registry: Registry, seed: str) -> None:
        self._settings = settings
        self._registry = registry
        self._seed = seed
        self._starts = 0
        self._pool: Surroundings
        self._numbers: dict[str, int] = {}
        self._priorities: dict[str, int] = {}
        self._turn = -1
        self.router: PoolRouter | None = None
        """The picker's router; None while the picker restarts."""
        self._routers: list[PoolRouter] = []
        self._events: EngineEvents | None = None
        self._wakes_at: float | None = None
        self._predictor: SimulatedPredictor | None = None

    @override
    def start(self, pool: Surroundings) -> None:
        self._pool = pool
        if self._settings.predictor is not None:
            self._predictor = self._settings.predictor(pool)
            pool.at(LEARN_S, self._learn)
        self._numbers = {server.hostport: server.number for server in pool.servers}
        self._open()

    def _open(self) -> None:
        settings, pool = self._settings, self._pool
        self._starts += 1
        seed = f"{self._seed}/{self._starts}"
        own = {name: make(pool) for name, make in settings.plugins.items()}
        router = build_router(
            config_text=settings.config,
            clock=pool.clock,
            rng=np.random.Generator(np.random.PCG64(random.Random(seed).getrandbits(64))),  # noqa: S311
            registry=_RunRegistry(self._registry, own),
        )
        if router.config_error:
            msg = f"the picker refuses the configuration: {router.config_error}"
            raise ValueError(msg)
        router.scheduler.use_objectives(Objectives(self._priorities))
        if self._predictor is not None:
            router.pool.desk.connect(self._predictor)
            router.pool.desk.state = State.SEEDED
        router.wake_at = self._wake_at
        self.router = router
        self._routers.append(router)
        self._wakes_at = None
        self.endpoints_changed()
        columns_type = ScrapeColumns if settings.expires_metrics else _Columns
        columns = columns_type(router.table, router.ledger, router.index.follow_block_size, router.page_read)
        scrapes = Scrapes(
            columns,
            pool.servers,
            settings.scrape,
            random.Random(f"{seed}/scrapes"),  # noqa: S311
        )
        keep_scraping(scrapes, pool.at, pool.clock, lambda: self.router is router)
        if settings.kv_events_s is not None:
            self._events = EngineEvents(pool, router, settings.kv_events_s, lambda: self.router is router)

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        router = self.router
        if router is None:
            return self._by_turns()
        now = self._pool.clock.now
        if request.objective is not None and request.priority:
            self._priorities[request.objective] = request.priority
        prompt = prompt_bytes(request.prompt)
        asked = PolicyRequest(
            request_id=request.request_id,
            model=request.adapter or request.model,
            prompt=prompt,
            stream=True,
            objective=request.objective or "",
            body_bytes=len(prompt) + _BODY_BYTES,
            headers=self._headers(request),
        )
        asked.arrived_at = now
        asked.simulated = request
        if self._events is not None:
            asked.tokens = Tokens(prompt, "simulated")
            self._events.note(request)
        record = Record(now)
        record.request_id = request.request_id
        record.model = asked.model
        record.request_bytes = asked.body_bytes
        record.streaming = True

        def later(answer: Decision | Refusal) -> None:
            resume(self._answer(router, answer, record, request))

        if self._predictor is not None:
            self._predictor.asking(request, router)
        answer = router.decide(asked, None, later)
        if isinstance(answer, Waiting):
            return None
        return self._answer(router, answer, record, request)

    def _headers(self, request: SimulatedRequest) -> Mapping[str, str]:
        headers = {FAIRNESS_HEADER: request.tenant} if request.tenant else {}
        if self._settings.sends_objectives:
            if request.slo_ttft_ms is not None:
                headers[TTFT_HEADERS[0]] = str(request.slo_ttft_ms)
            if request.slo_tpot_ms is not None:
                headers[TPOT_HEADERS[0]] = str(request.slo_tpot_ms)
        return headers

    def _learn(self) -> None:
        """Hand the samples of the last seconds over, and do so again."""
        pool = self._pool
        if self.router is not None and self._predictor is not None:
            while batch := self.router.pool.desk.samples.take():
                self._predictor.learn(batch)
        pool.at(pool.clock.now + LEARN_S, self._learn)

    def _answer(
        self, router: PoolRouter, answer: Decision | Refusal, record: Record, request: SimulatedRequest
    ) -> Pick | Refused:
        if isinstance(answer, Refusal):
            return Refused(answer.outcome.value)
        record.decided_at = self._pool.clock.now
        record.endpoint = answer.endpoint
        if not self._settings.counts_own_requests:
            for reservation in answer.reservations:
                router.ledger.scrape_started(reservation.row)
                router.ledger.scrape_succeeded(reservation.row)
        numbers = self._numbers
        servers = [numbers[hostport] for hostport in answer.destination.split(",")]
        prefiller = numbers[dict(answer.headers)[PREFILL_HEADER]] if len(answer.reservations) > 1 else None
        if self._predictor is not None:
            self._predictor.picked(request, servers[0])
        return Pick(servers, _Held(router, answer, record, request), prefiller)

    def _by_turns(self) -> Pick | Refused:
        servers = self._pool.servers
        listed = [server.number for server in servers if server.in_pool]
        if not listed:
            return Refused("no_endpoints")
        self._turn = (self._turn + 1) % len(listed)
        return Pick(listed[self._turn :] + listed[: self._turn])

    @override
    def answering(self, pick: Pick, served_by: int) -> None:
        held = pick.held
        if isinstance(held, _Held):
            record = held.record
            record.first_byte_at = record.first_token_at = self._pool.clock.now
            record.response_status = 200
            record.served_by = self._pool.servers[served_by].hostport
            held.router.first_byte(held.decision, record)
            if self._predictor is not None:
                self._predictor.answering(held.request, served_by)

    @override
    def ended(self, pick: Pick, request: SimulatedRequest, *, served: bool) -> None:
        held = pick.held
        if isinstance(held, _Held):
            record = held.record
            record.ended_at = record.last_token_at = self._pool.clock.now
            record.ending = Ending.COMPLETED if served else Ending.DISCONNECTED
            if served:
                record.usage = Usage(request.prompt_tokens, request.output_tokens, 0)
            if self._predictor is not None:
                self._predictor.ended(request)
            held.router.ended(held.decision, held.record)

    @override
    def endpoints_changed(self) -> None:
        if self.router is not None:
            self.router.replace_endpoints([server.endpoint() for server in self._pool.servers])

    @override
    def restart(self, down_s: float) -> None:
        if self.router is not None:
            router, self.router = self.router, None
            router.drain()
        self._pool.at(self._pool.clock.now + down_s, self._open)

    @override
    def leak(self) -> str:
        for router in self._routers:
            ledger, table = router.ledger, router.table
            if ledger.held or ledger.reserved != ledger.released:
                return f"the ledger holds {ledger.held} reservations"
            columns = (table.inflight_requests, table.inflight_tokens, table.unseen)
            if any(column.any() for column in columns) or any(table.decode_tokens):
                return "the table counts requests or tokens in flight"
            if router.waiting:
                return f"{router.waiting} decisions wait"
        return ""

    def _wake_at(self, due: float) -> None:
        """Have the router advanced at `due`, unless that will happen sooner."""
        if self._wakes_at is not None and self._wakes_at <= due:
            return
        self._wakes_at = due
        self._pool.at(due, lambda: self._advance(due))

    def _advance(self, due: float) -> None:
        if self._wakes_at != due or self.router is None:
            return
        self._wakes_at = None
        again = self.router.advance()
        if again is not None:
            self._wake_at(again)
