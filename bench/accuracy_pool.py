"""A simulated pool that notes what its picker saw at each pick, and what then happened; with disturbances.

No predictor takes part. What disturbs is drawn from seeds of its own: stalls, foreign requests, delays.
"""

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Iterator

import numpy as np
from accuracy_specs import FOREIGN, SERVERS, Trace
from typing_extensions import override

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision
from endpoint_picker.latency.board import RATE_S, RECENT
from endpoint_picker.record import Record
from latency_contract.schema import INPUT_NAMES, AdapterState, Role
from model_server_sim.engine import Request, Sequence
from pool_simulation.picker_policy import PickerPolicy, PickerSettings, PolicyRequest
from pool_simulation.policies import picker_config
from pool_simulation.policy import Pick, Refused, Resume, Surroundings
from pool_simulation.prompts import prompt_bytes
from pool_simulation.server import SimulatedServer
from pool_simulation.simulation import Simulation
from pool_simulation.workload import SimulatedRequest, Workload


class PrefillDecode:
    """A workload whose requests are prefilled first, and decoded elsewhere once that has ended."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._whole: dict[str, SimulatedRequest] = {}

    def arrivals(self) -> Iterator[SimulatedRequest]:
        for request in self._workload.arrivals():
            self._whole[request.request_id] = request
            yield dataclasses.replace(request, request_id=f"{request.request_id}-p", output_tokens=1)

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        name = request.request_id[:-2]
        if request.request_id.endswith("-p") and served:
            yield dataclasses.replace(self._whole[name], request_id=f"{name}-d", arrival_s=now)
            return
        yield from self._workload.finished(self._whole.pop(name), now, served=served)


class DecodeServer(SimulatedServer):
    """Fetches keys and values of its prompts from a prefill server."""

    __slots__ = ()

    @override
    def submit(self, request: Request, now: float) -> Sequence:
        return super().submit(dataclasses.replace(request, remote_prefill=True), now)


class _Seen:
    """What the picker keeps of one endpoint beside the table; each is O(1) a request."""

    __slots__ = ("answers", "decode_tokens", "prefill_rate", "prefill_tokens", "rate_at", "tpot_s")

    def __init__(self) -> None:
        self.prefill_tokens = 0.0
        self.decode_tokens = 0.0
        self.tpot_s = np.nan
        self.answers = 0
        self.prefill_rate = 0.0
        self.rate_at = 0.0

    def rate(self, now: float) -> float:
        return self.prefill_rate * float(np.exp((self.rate_at - now) / RATE_S))

    def sent(self, tokens: float, now: float) -> None:
        self.prefill_rate = self.rate(now) + tokens / RATE_S
        self.rate_at = now

    def answered(self, tpot_s: float) -> None:
        self.answers += 1
        weight = 1.0 / min(self.answers, RECENT)
        self.tpot_s = tpot_s if self.answers == 1 else self.tpot_s + weight * (tpot_s - self.tpot_s)


class _Flight:
    __slots__ = ("expected", "first_at", "request", "row", "slot", "uncached")

    def __init__(self, request: SimulatedRequest, slot: int, row: int) -> None:
        self.request = request
        self.slot = slot
        self.row = row
        self.uncached = 0.0
        self.expected = 0.0
        self.first_at: float | None = None


class RecordingPolicy(PickerPolicy):
    """A picker that notes its row at each pick and what became of the request."""

    def __init__(self, trace: Trace, registry: Registry, seed: int, duration_s: float) -> None:
        weights = {
            "queue-scorer": 2.0,
            "kv-cache-utilization-scorer": 2.0,
            "prefix-cache-scorer": 3.0,
        }
        if trace.engine.max_loras and "lora" in trace.name:
            weights["lora-affinity-scorer"] = 2.0
        super().__init__(PickerSettings(config=picker_config(weights)), registry, f"accuracy/{seed}")
        self._trace = trace
        self._chance = random.Random(f"accuracy/{trace.name}/{seed}")
        self._stalls = random.Random(f"accuracy/stalls/{trace.name}/{seed}")
        self._end_s = duration_s
        self._slowness = 1.0
        self._stalled = [0] * SERVERS
        self.disturbed = hashlib.sha256()
        self._seen = [_Seen() for _ in range(SERVERS)]
        self._expected: dict[str, tuple[int, float]] = {}
        self._flights: dict[str, _Flight] = {}
        self.rows: list[list[float]] = []
        self.actual: list[tuple[float, float, float]] = []
        self.times: list[tuple[float, float]] = []
        self.shifted: list[bool] = []
        self._simulation: Simulation | None = None

    def watch(self, simulation: Simulation) -> None:
        self._simulation = simulation

    @override
    def start(self, pool: Surroundings) -> None:
        super().start(pool)
        for server in pool.servers:
            self._plan_stall(server, 0.0)

    # Disturbances.

    def _plan_stall(self, server: SimulatedServer, now: float) -> None:
        chance = self._stalls
        at = now + chance.expovariate(1 / self._trace.stall_every_s)
        if at > self._end_s:
            return
        # Pareto of shape 1.5 from 0.15 s: mean 0.45 s, 1 % above 3.2 s.
        lasts = min(0.15 * chance.paretovariate(1.5), 8.0)
        factor = chance.choice((2.0, 4.0, 8.0))
        self.disturbed.update(f"{server.number} {at:.6f} {lasts:.6f} {factor}".encode())

        def begin() -> None:
            self._set_speed(server, factor)

        def end() -> None:
            self._set_speed(server, 1.0)

        self._pool.at(at, begin)
        self._pool.at(at + lasts, end)
        self._plan_stall(server, at + lasts)

    def _set_speed(self, server: SimulatedServer, factor: float) -> None:
        assert self._simulation is not None
        self._simulation._advance(server)
        server.slow_down(factor * self._slowness)
        self._simulation._advance(server)

    def _shift(self) -> None:
        self._slowness = 2.0
        for server in self._pool.servers:
            self._set_speed(server, 1.0)

    # Picks.

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        if request.stream == FOREIGN:
            return Pick([self._chance.randrange(SERVERS)])
        router = self.router
        assert router is not None
        trace = self._trace
        limit = trace.slowdown_at
        if limit is not None and self._slowness == 1.0 and len(self.rows) >= limit * trace.requests:
            self._shift()
        now = self._pool.clock.now
        prompt = prompt_bytes(request.prompt)
        asked = PolicyRequest(
            request_id=request.request_id,
            model=request.adapter or request.model,
            prompt=prompt,
            stream=True,
            objective="",
            body_bytes=len(prompt) + 200,
            headers={},
        )
        asked.simulated = request
        record = Record(now)
        record.request_id, record.model, record.streaming = request.request_id, asked.model, True
        before = _Before(router.table, request.adapter)
        answer = router.decide(asked, self._subset(request), resume)  # type: ignore[arg-type]
        assert isinstance(answer, Decision), answer
        pick = self._answer(router, answer, record, request)
        assert isinstance(pick, Pick)
        self._note(request, answer, before, pick.servers[0], len(prompt) // BYTES_PER_TOKEN)
        return pick

    def _subset(self, request: SimulatedRequest) -> list[str] | None:
        split = self._trace.prefill_servers
        if not split:
            return None
        servers = self._pool.servers
        part = servers[:split] if request.request_id.endswith("-p") else servers[split:]
        return [server.hostport for server in part]

    def _note(
        self, request: SimulatedRequest, decision: Decision, before: "_Before", slot: int, tokens: int
    ) -> None:
        now = self._pool.clock.now
        router = self.router
        assert router is not None
        table = router.table
        row = decision.reservations[0].row
        seen = self._seen[slot]
        flight = _Flight(request, slot, len(self.rows))
        key = f"{request.adapter or request.model}/{request.tenant}"
        expected = self._expected.get(key, (0, np.nan))[1]
        flight.expected = 0.0 if np.isnan(expected) else expected
        role = Role.BOTH
        hit = decision.prefix_hit
        if self._trace.prefill_servers:
            role = Role.PREFILL if request.request_id.endswith("-p") else Role.DECODE
            if role is Role.PREFILL:
                expected = flight.expected = 1.0
        flight.uncached = tokens * (1 - hit) if role is not Role.DECODE else 0.0
        values = {
            "input_tokens": tokens,
            "expected_output_tokens": expected,
            "prefix_hit": hit,
            "waiting_requests": before.waiting[row],
            "running_requests": before.running[row],
            "kv_usage": before.kv_usage[row],
            "kv_capacity_tokens": float(table.num_blocks[row] * table.block_size[row]) or np.nan,
            "metrics_age_s": min(now - before.scraped_at[row], 1e6),
            "inflight_requests": before.inflight[row],
            "awaiting_requests": before.awaiting[row],
            "unseen_requests": before.unseen[row],
            "prefill_tokens_in_flight": seen.prefill_tokens,
            "decode_tokens_in_flight": seen.decode_tokens,
            "recent_tpot_s": seen.tpot_s,
            "recent_prefill_rate": seen.rate(now),
            "quiet_s": now - before.progress_at[row] if before.awaiting[row] else 0.0,
            "adapter_state": before.adapter_states[row],
            "role": role,
            "endpoint_class": 0,
        }
        self.rows.append([float(values[name]) for name in INPUT_NAMES])
        self.actual.append((np.nan, np.nan, np.nan))
        self.times.append((now, np.inf))
        self.shifted.append(self._slowness > 1.0)
        seen.prefill_tokens += flight.uncached
        seen.sent(flight.uncached, now)
        self._flights[request.request_id] = flight

    @override
    def answering(self, pick: Pick, served_by: int) -> None:
        super().answering(pick, served_by)
        held = getattr(pick.held, "record", None)
        flight = None if held is None else self._flights.get(held.request_id)
        if flight is not None and flight.first_at is None:
            flight.first_at = self._pool.clock.now
            seen = self._seen[flight.slot]
            seen.prefill_tokens -= flight.uncached
            seen.decode_tokens += flight.request.prompt_tokens + flight.expected

    @override
    def ended(self, pick: Pick, request: SimulatedRequest, *, served: bool) -> None:
        super().ended(pick, request, served=served)
        flight = self._flights.pop(request.request_id, None)
        if flight is None:
            return
        seen, now = self._seen[flight.slot], self._pool.clock.now
        decided = self.times[flight.row][0]
        if flight.first_at is None:
            seen.prefill_tokens -= flight.uncached
            return
        seen.decode_tokens -= request.prompt_tokens + flight.expected
        if not served:
            return
        # Pareto of shape 1.3 from 0.5 ms: 1 % above 17 ms.
        delay = min(0.0005 * self._chance.paretovariate(1.3), 5.0)
        ttft, e2e, tpot = flight.first_at - decided + delay, now - decided + delay, np.nan
        if request.output_tokens > 1:
            tpot = (now - flight.first_at) / (request.output_tokens - 1)
            seen.answered(tpot)
            key = f"{request.adapter or request.model}/{request.tenant}"
            count, mean = self._expected.get(key, (0, 0.0))
            self._expected[key] = (
                count + 1,
                mean + (request.output_tokens - mean) / min(count + 1, 4 * RECENT),
            )
        if self._trace.prefill_servers:
            ttft, tpot, e2e = (
                (ttft, np.nan, e2e) if request.request_id.endswith("-p") else (np.nan, tpot, e2e)
            )
        self.actual[flight.row] = (ttft, tpot, e2e)
        self.times[flight.row] = (decided, now)


class _Before:
    """The table's columns before a decision reserves."""

    __slots__ = (
        "adapter_states",
        "awaiting",
        "inflight",
        "kv_usage",
        "progress_at",
        "running",
        "scraped_at",
        "unseen",
        "waiting",
    )

    def __init__(self, table: EndpointTable, adapter: str | None) -> None:
        # The decision itself makes the adapter resident in the picker's memory.
        self.adapter_states = [
            self._adapter_state(table, adapter, row) for row in range(len(table.endpoints))
        ]
        self.waiting = table.waiting.tolist()
        self.running = table.running.tolist()
        self.kv_usage = table.kv_usage.tolist()
        self.scraped_at = table.scraped_at.tolist()
        self.inflight = table.inflight_requests.tolist()
        self.unseen = table.unseen.tolist()
        self.awaiting = list(table.awaiting)
        self.progress_at = list(table.progress_at)

    @staticmethod
    def _adapter_state(table: EndpointTable, adapter: str | None, row: int) -> AdapterState:
        adapters = table.adapters
        if adapter is None or not adapters.is_known(adapter):
            return AdapterState.NONE
        if row in adapters.running(adapter):
            return AdapterState.RUNNING
        if row in adapters.resident(adapter):
            return AdapterState.RESIDENT
        if not adapters.slots[row]:
            return AdapterState.UNKNOWN
        has_room = adapters.held[row] < adapters.slots[row] or np.isfinite(adapters.idle_since[row])
        return AdapterState.LOADABLE if has_room else AdapterState.FULL


class Limited:
    """Ends a workload once the picker had its number of requests, and digests the first arrivals."""

    def __init__(self, workload: Workload, limit: int, digest: "hashlib._Hash") -> None:
        self._workload = workload
        self._left = limit
        self._digest = digest

    def arrivals(self) -> Iterator[SimulatedRequest]:
        for request in self._workload.arrivals():
            if self._left <= 0:
                return
            said = (
                f"{request.arrival_s:.9f} {request.prompt} {request.output_tokens} "
                f"{request.adapter} {request.stream}"
            )
            self._digest.update(said.encode())
            self._count(request)
            yield request

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        for following in self._workload.finished(request, now, served=served):
            if self._left > 0:
                self._count(following)
                yield following

    def _count(self, request: SimulatedRequest) -> None:
        self._left -= request.stream != FOREIGN
